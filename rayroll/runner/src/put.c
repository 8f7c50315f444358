/* Entries into files. What has a name of its own stays below its base, whatever links an agent put there; each file is
 * whole under its name or not there. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files.h"
#include "system.h"
#include "wire.h"

enum { DEPTH_MOST = 256, TEMPORARY = 40 };

/* The one file that is being written. The name is complete before `there` says so. */
static struct { int dir, fd; char name[TEMPORARY]; volatile sig_atomic_t there; } unfinished;

void put_abandon(void) {
    if (!unfinished.there) return;
    unlinkat(unfinished.dir, unfinished.name, 0);
    close_fd(&unfinished.fd); /* its space is free before the host hears of it */
    unfinished.there = 0;
}

static void begin_temporary(int dir) {
    static unsigned counter;
    snprintf(unfinished.name, sizeof unfinished.name, ".rr-%d-%u", (int)getpid(), counter++);
    unfinished.dir = dir;
    unfinished.fd = -1;
    unfinished.there = 1;
}

/* --- folders --- */

struct put {
    int from;
    const char *base;
    int base_fd;      /* -1: not needed yet */
    char *parent;     /* of the last entry; NULL: none yet */
    int parent_fd;
    struct fault *f;
};

enum { FOLDER = O_PATH | O_DIRECTORY | O_CLOEXEC };

/* openat2 follows links that stay inside; without it (before Linux 5.6, or under a filter) no link is followed at all. */
static int open_beneath(int base, const char *path) {
    static bool missing;
    if (!missing) {
        struct open_how how = {.flags = FOLDER, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
        int fd;
        do fd = (int)syscall(SYS_openat2, base, path, &how, sizeof how);
        while (fd < 0 && errno == EAGAIN); /* something was renamed meanwhile */
        if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return fd;
        missing = true;
    }
    int at = dup(base);
    while (at >= 0 && *path) {
        char part[NAME_MAX + 1];
        size_t n = strcspn(path, "/");
        if (n > NAME_MAX) {
            close(at);
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(part, path, n);
        part[n] = 0;
        int next = openat(at, n ? part : ".", FOLDER | O_NOFOLLOW);
        int error = errno;
        close(at);
        errno = error;
        at = next;
        path += n + (path[n] == '/');
    }
    return at;
}

/* The folder, made with those above it where it is not there. */
static int make_beneath(int base, const char *path, int depth) {
    int fd = open_beneath(base, path);
    if (fd >= 0 || errno != ENOENT || depth > DEPTH_MOST) return fd;
    const char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    char *above = xstrndup(path, slash ? (size_t)(slash - path) : 0);
    int parent = *above ? make_beneath(base, above, depth + 1) : dup(base);
    free(above);
    if (parent < 0) return -1;
    int made = mkdirat(parent, leaf, 0755), error = errno;
    close(parent);
    if (made && error != EEXIST) {
        errno = error;
        return -1;
    }
    return open_beneath(base, path);
}

/* The same for a path of the host's own: its links are followed, as everywhere. */
static int make_folder(const char *path) {
    int error = 0;
    char *at = xstrdup(path);
    for (char *slash = at; slash; ) {
        slash = strchr(slash + 1, '/');
        if (slash) *slash = 0;
        if (*at && mkdir(at, 0755) && errno != EEXIST) error = errno;
        if (slash) *slash = '/';
    }
    free(at);
    int fd = open(path, FOLDER);
    if (fd < 0 && errno == ENOENT && error) errno = error;
    return fd;
}

/* --- one entry --- */

static bool copy_in(struct put *p, int to, u64 n, const char *path) {
    static u8 chunk[WIRE_CHUNK];
    while (n) {
        size_t part = n < sizeof chunk ? (size_t)n : sizeof chunk;
        if (!read_all(p->from, chunk, part)) return fault_at(p->f, EPIPE, path);
        if (!write_all(to, chunk, part)) return fault_at(p->f, errno, path);
        n -= part;
    }
    return true;
}

/* A device takes bytes, it is not replaced. */
static bool write_into(struct put *p, const struct entry *e, int dir, const char *leaf, const char *path) {
    int fd = openat(dir, leaf, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return fault_at(p->f, errno, path);
    bool ok = copy_in(p, fd, e->size, path);
    if (close(fd) && ok) return fault_at(p->f, errno, path);
    return ok;
}

static bool fill(struct put *p, const struct entry *e, int fd, const struct stat *old, const char *path) {
    u32 mode = e->mode != KEEP ? e->mode & 07777 : old && S_ISREG(old->st_mode) ? old->st_mode & 07777 : 0644;
    uid_t uid = e->uid == KEEP && old ? old->st_uid : e->uid;
    gid_t gid = e->gid == KEEP && old ? old->st_gid : e->gid;
    if (!copy_in(p, fd, e->size, path)) return false;
    /* An owner that was asked for must hold; an owner that was merely there before is kept where that is allowed. */
    if (fchown(fd, uid, gid) && (e->uid != KEEP || e->gid != KEEP)) return fault_at(p->f, errno, path);
    if (fchmod(fd, mode)) return fault_at(p->f, errno, path);
    if (e->mtime_ns) {
        struct timespec times[] = {{.tv_nsec = UTIME_NOW},
                                   {(time_t)(e->mtime_ns / 1000000000u), (long)(e->mtime_ns % 1000000000u)}};
        futimens(fd, times);
    }
    return true;
}

static bool put_file(struct put *p, const struct entry *e, int dir, const char *leaf, const char *path) {
    struct stat old;
    bool exists = fstatat(dir, leaf, &old, AT_SYMLINK_NOFOLLOW) == 0;
    if (exists && S_ISDIR(old.st_mode)) return fault_at(p->f, EISDIR, path);
    if (exists && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode)) return write_into(p, e, dir, leaf, path);
    begin_temporary(dir);
    int fd = openat(dir, unfinished.name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        unfinished.there = 0;
        return fault_at(p->f, errno, path);
    }
    unfinished.fd = fd;
    bool ok = fill(p, e, fd, exists ? &old : NULL, path);
    unfinished.fd = -1;
    /* Some file systems say "no space" only at close. */
    if (close(fd) && ok) ok = fault_at(p->f, errno, path);
    if (ok && renameat(dir, unfinished.name, dir, leaf)) ok = fault_at(p->f, errno, path);
    if (ok) unfinished.there = 0;
    else put_abandon();
    return ok;
}

static bool put_link(struct put *p, const struct entry *e, int dir, const char *leaf, const char *to, const char *path) {
    begin_temporary(dir);
    bool ok = symlinkat(to, dir, unfinished.name) == 0 &&
              ((e->uid == KEEP && e->gid == KEEP) || fchownat(dir, unfinished.name, e->uid, e->gid, AT_SYMLINK_NOFOLLOW) == 0) &&
              renameat(dir, unfinished.name, dir, leaf) == 0;
    if (ok) unfinished.there = 0;
    else fault_at(p->f, errno, path);
    put_abandon();
    return ok;
}

/* By the descriptor, since the name may be another thing by now; by the name where there is no /proc. */
static bool set_mode(int dir, const char *leaf, int fd, u32 mode) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return chmod(path, mode & 07777) == 0 || (errno == ENOENT && fchmodat(dir, leaf, mode & 07777, 0) == 0);
}

static bool put_folder(struct put *p, const struct entry *e, int dir, const char *leaf, const char *path) {
    if (mkdirat(dir, leaf, e->mode == KEEP ? 0755 : e->mode & 07777) && errno != EEXIST) return fault_at(p->f, errno, path);
    int fd = openat(dir, leaf, FOLDER | O_NOFOLLOW);
    if (fd < 0) { /* a link to a folder does as well, and keeps its mode: what it leads to is not ours */
        struct stat st;
        int error = errno;
        bool is_folder = fstatat(dir, leaf, &st, 0) == 0 && S_ISDIR(st.st_mode);
        return is_folder || fault_at(p->f, error == ELOOP ? ENOTDIR : error, path);
    }
    bool ok = (e->uid == KEEP && e->gid == KEEP) || fchownat(fd, "", e->uid, e->gid, AT_EMPTY_PATH) == 0;
    ok = ok && (e->mode == KEEP || set_mode(dir, leaf, fd, e->mode));
    if (!ok) fault_at(p->f, errno, path);
    close(fd);
    return ok;
}

/* What an agent closed to itself is opened again, where we may. */
static int open_to_empty(int dir, const char *name) {
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 || errno != EACCES) return fd;
    int closed = openat(dir, name, FOLDER | O_NOFOLLOW);
    if (closed < 0) return -1;
    bool opened = set_mode(dir, name, closed, 0700);
    close(closed);
    errno = EACCES;
    return opened ? openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
}

bool remove_tree(int dir, const char *name, int depth) {
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT || errno == ENOTDIR) return true;
    if (errno != EISDIR && errno != EPERM) return false;
    if (unlinkat(dir, name, AT_REMOVEDIR) == 0) return true;
    if (errno != ENOTEMPTY && errno != EEXIST && errno != EACCES) return false;
    int fd = depth < DEPTH_MOST ? open_to_empty(dir, name) : (errno = ENAMETOOLONG, -1);
    DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
    if (!listing) {
        close_fd(&fd);
        return false;
    }
    bool ok = true, opened = false;
    for (struct dirent *e; ok && (e = readdir(listing));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        ok = remove_tree(fd, e->d_name, depth + 1);
        if (ok || errno != EACCES || opened) continue;
        opened = fchmod(fd, 0700) == 0; /* it could be read, but nothing in it removed */
        ok = opened && remove_tree(fd, e->d_name, depth + 1);
    }
    int error = errno;
    closedir(listing);
    errno = error;
    return ok && unlinkat(dir, name, AT_REMOVEDIR) == 0;
}

/* --- where it goes --- */

static bool climbs(const char *name) {
    for (const char *at = name; at; at = strchr(at, '/')) {
        at += *at == '/';
        if (!strncmp(at, "..", 2) && (!at[2] || at[2] == '/')) return true;
    }
    return false;
}

/* "a/b/c/" is "c" in "a/b", "c" is "c" in "", "/" is "." in "/". Both point into the path. */
static void split(char *path, const char **parent, const char **leaf) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') path[--n] = 0;
    char *slash = strrchr(path, '/');
    *leaf = !slash ? path : slash[1] ? slash + 1 : ".";
    *parent = !slash ? "" : slash == path ? "/" : path;
    if (slash && slash != path) *slash = 0;
}

/* The base itself is the host's own path; what is below it stays below it. Nothing is made where something is removed. */
static int open_parent(struct put *p, const char *parent, bool is_base, bool make) {
    if (is_base && !*parent) parent = ".";
    if (is_base) return make ? make_folder(parent) : open(parent, FOLDER);
    if (p->base_fd < 0) p->base_fd = make ? make_folder(p->base) : open(p->base, FOLDER);
    if (p->base_fd < 0) return -1;
    if (!*parent) return dup(p->base_fd);
    return make ? make_beneath(p->base_fd, parent, 0) : open_beneath(p->base_fd, parent);
}

static bool put_entry(struct put *p, const struct entry *e, const char *given, const char *link) {
    while (*given == '/') given++;
    bool is_base = !*given, is_gone = e->type == 'r';
    const char *parent, *leaf, *where = is_base ? p->base : given;
    if (climbs(given)) return fault_at(p->f, EXDEV, given);
    char *path = xstrdup(where);
    split(path, &parent, &leaf);
    if (!p->parent || strcmp(p->parent, parent)) { /* entries of one folder come one after the other */
        free(p->parent);
        p->parent = NULL;
        close_fd(&p->parent_fd);
        p->parent_fd = open_parent(p, parent, is_base, !is_gone);
        if (p->parent_fd >= 0) p->parent = xstrdup(parent);
    }
    bool ok;
    if (p->parent_fd < 0) ok = (is_gone && (errno == ENOENT || errno == ENOTDIR)) || fault_at(p->f, errno, where);
    else if (e->type == 'f') ok = put_file(p, e, p->parent_fd, leaf, where);
    else if (e->type == 'd') ok = put_folder(p, e, p->parent_fd, leaf, where);
    else if (e->type == 'l') ok = put_link(p, e, p->parent_fd, leaf, link, where);
    else if (is_gone) ok = remove_tree(p->parent_fd, leaf, 0) || fault_at(p->f, errno, where);
    else ok = fault_at(p->f, EINVAL, where);
    free(path);
    return ok;
}

static char *read_text(struct put *p, size_t n) {
    char *text = xmalloc(n + 1);
    bool whole = read_all(p->from, text, n);
    text[n] = 0;
    if (whole && strlen(text) == n) return text;
    fault_at(p->f, whole ? EINVAL : EPIPE, whole ? text : "an entry is cut short");
    free(text);
    return NULL;
}

bool put_stream(int from, const char *base, u64 *count, struct fault *f) {
    struct put p = {.from = from, .base = base, .base_fd = -1, .parent_fd = -1, .f = f};
    struct entry e;
    bool ok = true;
    while (ok) {
        ssize_t first = read(from, &e, 1);
        if (first < 0 && errno == EINTR) continue;
        if (first == 0) break;
        if (first < 0 || !read_all(from, (u8 *)&e + 1, sizeof e - 1)) {
            ok = fault_at(f, EPIPE, "an entry is cut short");
            break;
        }
        char *name = read_text(&p, e.path_n), *link = name ? read_text(&p, e.link_n) : NULL;
        ok = name && link && put_entry(&p, &e, name, link);
        *count += ok;
        free(name);
        free(link);
    }
    close_fd(&p.base_fd);
    close_fd(&p.parent_fd);
    free(p.parent);
    return ok;
}
