/* Files and trees, as a stream of entries (a header, the path, then the link or the contents).
 *
 * Disks block, so each transfer runs in a forked worker joined to the poll loop by pipes: the lease and every other
 * request go on. Paths are bytes and are never shown to a shell. */
#include "rr.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* types: 'f' file, 'd' folder, 'l' symbolic link, 's' anything else (named only), 'r' remove whatever is there */
struct entry {
    u8 type, reserved;
    u16 path_n;
    u32 mode, uid, gid; /* KEEP: as it is, or the default for a new one */
    u64 mtime_ns, size, full_size; /* size: content bytes that follow; full_size: the file's own */
    u16 link_n, reserved2;
    u32 reserved3;
};
_Static_assert(sizeof(struct entry) == 48, "the client unpacks 48 bytes");
enum { KEEP = 0xffffffff, PIPE_BYTES = 1 << 20 };

static int status_out = -1;
static char unfinished[PATH_MAX]; /* a temporary file to remove when we are stopped */

static _Noreturn void finish(struct worker_status status) {
    (void)!write(status_out, &status, sizeof status);
    _exit(0);
}

static _Noreturn void fail(int error, const char *where) {
    struct worker_status status = {.error = error ? error : EIO};
    snprintf(status.where, sizeof status.where, "%s", where);
    if (unfinished[0]) unlink(unfinished);
    close_from(5); /* its space is free before the host hears of it */
    finish(status);
}

static void stopped(int sig) {
    (void)sig;
    if (unfinished[0]) unlink(unfinished);
    _exit(1);
}

/* Forks; the child keeps only its two pipe ends, and may become the request's user. */
static pid_t worker(struct bytes request, int *data_fd, bool to_worker, int *status_fd, int *in_worker) {
    int data[2] = {-1, -1}, status[2];
    struct launch as = {0};
    char home[256], *user = field_text(request, T_USER);
    bool known = !user || find_user(user, &as.uid, &as.gid, home, as.user);
    as.switch_user = user && (as.uid != getuid() || as.gid != getgid());
    free(user);
    if (!known || (as.switch_user && geteuid() != 0)) {
        errno = EPERM;
        return -1;
    }
    if (pipe2(status, O_CLOEXEC)) return -1;
    if (data_fd && pipe2(data, O_CLOEXEC)) {
        close(status[0]);
        close(status[1]);
        return -1;
    }
    if (data_fd) fcntl(data[0], F_SETPIPE_SZ, PIPE_BYTES);
    int mine = to_worker ? data[1] : data[0], theirs = to_worker ? data[0] : data[1];
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        status_out = fcntl(status[1], F_DUPFD_CLOEXEC, 100);
        if (data_fd) theirs = fcntl(theirs, F_DUPFD_CLOEXEC, 100);
        null_stdio();
        status_out = dup3(status_out, 3, O_CLOEXEC);
        if (data_fd) *in_worker = dup3(theirs, 4, O_CLOEXEC);
        close_from(5);
        prctl(PR_SET_NAME, "rayroll-files", 0, 0, 0);
        signal(SIGTERM, stopped);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        switch_user(&as);
        umask(0);
        return 0;
    }
    close(status[1]);
    if (data_fd) close(theirs);
    if (pid < 0) {
        int error = errno;
        close(status[0]);
        if (data_fd) close(mine);
        errno = error;
        return -1;
    }
    *status_fd = status[0];
    fcntl(status[0], F_SETFL, O_NONBLOCK);
    if (data_fd) {
        *data_fd = mine;
        fcntl(mine, F_SETFL, O_NONBLOCK);
    }
    return pid;
}

/* --- put --- */

static void make_parents(char *path) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        int made = mkdir(path, 0755);
        if (made && errno != EEXIST && errno != EROFS && errno != EACCES) fail(errno, path);
        *slash = '/';
    }
}

static int remove_tree_at(int dir, const char *name) {
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
    if (!listing) return -1;
    int result = 0;
    for (struct dirent *e; !result && (e = readdir(listing));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) result = remove_tree_at(fd, e->d_name);
    closedir(listing);
    return result ? result : unlinkat(dir, name, AT_REMOVEDIR);
}

static void copy_in(int from, int to, u64 n, const char *path) {
    static u8 chunk[RR_CHUNK];
    while (n) {
        size_t part = n < sizeof chunk ? (size_t)n : sizeof chunk;
        if (!read_all(from, chunk, part)) fail(EPIPE, path);
        if (to >= 0 && !write_all(to, chunk, part)) fail(errno, path);
        n -= part;
    }
}

static void put_file(int from, const struct entry *e, const char *path) {
    static unsigned counter;
    struct stat old;
    bool exists = lstat(path, &old) == 0;
    if (exists && S_ISDIR(old.st_mode)) fail(EISDIR, path);
    if (exists && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode)) { /* a device takes bytes, it is not replaced */
        int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) fail(errno, path);
        copy_in(from, fd, e->size, path);
        if (close(fd)) fail(errno, path);
        return;
    }
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    if (snprintf(unfinished, sizeof unfinished, "%.*s.rr-%d-%u", folder, path, (int)getpid(), counter++) >=
        (int)sizeof unfinished)
        fail(ENAMETOOLONG, path);
    u32 mode = e->mode != KEEP ? e->mode : exists && S_ISREG(old.st_mode) ? old.st_mode & 07777 : 0644;
    int fd = open(unfinished, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        unfinished[0] = 0;
        fail(errno, path);
    }
    copy_in(from, fd, e->size, path);
    uid_t uid = e->uid != KEEP ? e->uid : exists ? old.st_uid : (uid_t)-1;
    gid_t gid = e->gid != KEEP ? e->gid : exists ? old.st_gid : (gid_t)-1;
    /* An owner that was asked for must hold; an owner that was merely there before is kept where that is allowed. */
    if (fchown(fd, uid, gid) && (e->uid != KEEP || e->gid != KEEP)) fail(errno, path);
    if (fchmod(fd, mode)) fail(errno, path);
    if (e->mtime_ns) {
        struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {(time_t)(e->mtime_ns / 1000000000u), (long)(e->mtime_ns % 1000000000u)}};
        futimens(fd, times);
    }
    if (close(fd)) fail(errno, path); /* some file systems say "no space" only here */
    if (rename(unfinished, path)) fail(errno, path);
    unfinished[0] = 0;
}

static void put_entry(int from, const struct entry *e, char *path, const char *link) {
    make_parents(path);
    if (e->type == 'f') {
        put_file(from, e, path);
    } else if (e->type == 'd') {
        if (mkdir(path, e->mode == KEEP ? 0755 : e->mode & 07777) && errno != EEXIST) fail(errno, path);
        if (e->uid != KEEP && lchown(path, e->uid, e->gid)) fail(errno, path);
        if (e->mode != KEEP && chmod(path, e->mode & 07777)) fail(errno, path);
    } else if (e->type == 'l') {
        if (unlink(path) && errno != ENOENT) fail(errno, path);
        if (symlink(link, path)) fail(errno, path);
        if (e->uid != KEEP && lchown(path, e->uid, e->gid)) fail(errno, path);
    } else if (e->type == 'r') {
        if (remove_tree_at(AT_FDCWD, path)) fail(errno, path);
    } else {
        fail(EINVAL, path);
    }
}

static char *joined(const char *base, const char *name) {
    size_t n = strlen(base) + strlen(name) + 2;
    char *path = xmalloc(n);
    if (!*name) snprintf(path, n, "%s", base);
    else snprintf(path, n, *base && base[strlen(base) - 1] != '/' ? "%s/%s" : "%s%s", base, name);
    return path;
}

static char *read_text(int from, size_t n) {
    char *text = xmalloc(n + 1);
    if (!read_all(from, text, n)) fail(EPIPE, "");
    text[n] = 0;
    if (strlen(text) != n) fail(EINVAL, text);
    return text;
}

/* An archive may not write beside its folder; names are otherwise whatever they are. */
static bool climbs(const char *name) {
    for (const char *at = name; at; at = strchr(at, '/')) {
        at += *at == '/';
        if (!strncmp(at, "..", 2) && (!at[2] || at[2] == '/')) return true;
    }
    return false;
}

pid_t put_start(struct bytes request, int *data_fd, int *status_fd) {
    int from = -1;
    pid_t pid = worker(request, data_fd, true, status_fd, &from);
    if (pid) return pid;
    char *base = field_text(request, T_PATH);
    struct worker_status status = {0};
    struct entry e;
    for (;;) {
        ssize_t first = read(from, &e, 1);
        if (first == 0) break;
        if (first < 0 || !read_all(from, (u8 *)&e + 1, sizeof e - 1)) fail(EPIPE, "");
        char *name = read_text(from, e.path_n), *link = read_text(from, e.link_n);
        if (climbs(name)) fail(EINVAL, name);
        char *path = joined(base ? base : "", name);
        put_entry(from, &e, path, link);
        free(path);
        free(link);
        free(name);
        status.count++;
    }
    finish(status);
}

/* --- get and digest: the same walk, names in byte order, links not followed --- */

struct walk {
    int to;                 /* where entries go; -1: into the digest */
    struct sha256 sha;
    u64 count, max_bytes;
    struct bytes exclude;
    bool content, children;
};

static bool excluded(const struct walk *w, const char *name) {
    for (size_t at = 0; at < w->exclude.n;) {
        const char *item = (const char *)w->exclude.p + at;
        size_t n = strnlen(item, w->exclude.n - at);
        if (n && !strncmp(name, item, n) && (!name[n] || name[n] == '/')) return true;
        at += n + 1;
    }
    return false;
}

static void emit(struct walk *w, const void *p, size_t n) {
    if (w->to < 0) sha256_add(&w->sha, p, n);
    else if (!write_all(w->to, p, n)) _exit(1); /* nobody listens any more */
}

static void emit_content(struct walk *w, int fd, u64 n) {
    static u8 chunk[RR_CHUNK];
    while (n) {
        size_t part = n < sizeof chunk ? (size_t)n : sizeof chunk;
        ssize_t got = read(fd, chunk, part);
        if (got <= 0) { /* it shrank while we read; the length is promised already */
            memset(chunk, 0, part);
            got = (ssize_t)part;
        }
        emit(w, chunk, (size_t)got);
        n -= (u64)got;
    }
}

static void walk_one(struct walk *w, const char *path, const char *name, bool follow);

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void walk_children(struct walk *w, const char *path, const char *name) {
    DIR *dir = opendir(path);
    if (!dir) {
        if (!*name) fail(errno, path);
        return; /* a folder that cannot be read has an entry, and no children */
    }
    char **names = NULL;
    size_t n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char **grown = realloc(names, (n + 1) * sizeof *names);
        if (!grown) _exit(70);
        names = grown;
        names[n++] = xstrndup(e->d_name, strlen(e->d_name));
    }
    closedir(dir);
    if (n) qsort(names, n, sizeof *names, by_bytes);
    for (size_t i = 0; i < n; i++) {
        char *child = joined(path, names[i]), *child_name = *name ? joined(name, names[i]) : xstrndup(names[i], strlen(names[i]));
        if (!excluded(w, child_name)) walk_one(w, child, child_name, false);
        free(child);
        free(child_name);
        free(names[i]);
    }
    free(names);
}

static void walk_one(struct walk *w, const char *path, const char *name, bool follow) {
    struct stat st;
    char link[PATH_MAX] = "";
    u8 *whole = NULL;
    int fd = -1;
    if (follow ? stat(path, &st) : lstat(path, &st)) {
        if (!*name) fail(errno, path);
        return; /* gone since it was listed */
    }
    struct entry e = {.path_n = (u16)strlen(name), .mode = st.st_mode & 07777, .uid = st.st_uid, .gid = st.st_gid};
    if (w->to >= 0) e.mtime_ns = (u64)st.st_mtim.tv_sec * 1000000000u + (u64)st.st_mtim.tv_nsec;
    if (S_ISREG(st.st_mode)) {
        e.type = 'f';
        e.full_size = (u64)st.st_size;
        if (w->content) {
            fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
            if (fd < 0 && !*name) fail(errno, path);
            e.size = fd < 0 ? 0 : e.full_size < w->max_bytes ? e.full_size : w->max_bytes;
            if (fd >= 0 && !e.full_size && !*name) { /* files of /proc have contents but no size */
                size_t most = w->max_bytes < (1 << 20) ? (size_t)w->max_bytes : 1 << 20;
                whole = xmalloc(most);
                for (ssize_t got; e.size < most && (got = read(fd, whole + e.size, most - e.size)) > 0;) e.size += (u64)got;
                e.full_size = e.size;
            }
        }
    } else if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlink(path, link, sizeof link);
        e.type = 'l';
        e.link_n = (u16)(n < 0 ? 0 : n);
    } else {
        e.type = S_ISDIR(st.st_mode) ? 'd' : 's';
    }
    if (!*name && w->content && !w->children && e.type != 'f') fail(e.type == 'd' ? EISDIR : EINVAL, path);
    emit(w, &e, sizeof e);
    emit(w, name, e.path_n);
    emit(w, link, e.link_n);
    if (whole) emit(w, whole, (size_t)e.size);
    else if (fd >= 0) emit_content(w, fd, e.size);
    if (fd >= 0) close(fd);
    free(whole);
    w->count++;
    if (e.type == 'd' && w->children) walk_children(w, path, name);
}

static _Noreturn void walk_main(struct bytes request, struct walk w) {
    char *path = field_text(request, T_PATH);
    if (!path) fail(EINVAL, "");
    w.exclude = field(request, T_EXCLUDE);
    w.max_bytes = field_num(request, T_MAX_BYTES, UINT64_MAX);
    sha256_start(&w.sha);
    walk_one(&w, path, "", w.content && !w.children);
    struct worker_status status = {.count = w.count};
    sha256_end(&w.sha, status.sha256);
    finish(status);
}

pid_t get_start(struct bytes request, int *data_fd, int *status_fd) {
    u64 flags = field_num(request, T_FLAGS, 0);
    struct walk w = {.content = !(flags & FLAG_NO_CONTENT), .children = flags & FLAG_TREE};
    pid_t pid = worker(request, data_fd, false, status_fd, &w.to);
    if (pid) return pid;
    walk_main(request, w);
}

pid_t digest_start(struct bytes request, int *status_fd) {
    struct walk w = {.to = -1, .content = true, .children = true};
    pid_t pid = worker(request, NULL, false, status_fd, &w.to);
    if (pid) return pid;
    walk_main(request, w);
}
