/* Files into entries: names in byte order, links not followed. A digest is of the same entries without their times. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "sha256.h"
#include "system.h"
#include "wire.h"

enum { DEPTH_MOST = 256, SIZELESS_MOST = 1 << 20 };

struct walker { struct walk *w; struct sha256 sha; struct fault *f; };

static bool is_excluded(const struct walk *w, const char *name) {
    for (size_t at = 0; at < w->exclude.n;) {
        const char *item = (const char *)w->exclude.p + at;
        size_t n = strnlen(item, w->exclude.n - at);
        if (n && !strncmp(name, item, n) && (!name[n] || name[n] == '/')) return true;
        at += n + 1;
    }
    return false;
}

static void emit(struct walker *k, const void *p, size_t n) {
    if (k->w->to < 0) sha256_add(&k->sha, p, n);
    else if (!write_all(k->w->to, p, n)) _exit(1); /* nobody listens any more */
}

static void emit_content(struct walker *k, int fd, u64 n) {
    static u8 chunk[WIRE_CHUNK];
    while (n) {
        size_t part = n < sizeof chunk ? (size_t)n : sizeof chunk;
        ssize_t got = read(fd, chunk, part);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) { /* it shrank while we read; the length is promised already */
            memset(chunk, 0, part);
            got = (ssize_t)part;
        }
        emit(k, chunk, (size_t)got);
        n -= (u64)got;
    }
}

/* Files of /proc have contents but no size. */
static u8 *read_sizeless(int fd, u64 most, u64 *size) {
    u8 *whole = xmalloc(most < SIZELESS_MOST ? (size_t)most : SIZELESS_MOST);
    *size = 0;
    while (*size < most && *size < SIZELESS_MOST) {
        u64 room = (most < SIZELESS_MOST ? most : SIZELESS_MOST) - *size;
        ssize_t got = read(fd, whole + *size, (size_t)room);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        *size += (u64)got;
    }
    return whole;
}

/* --- folders --- */

static bool walk_one(struct walker *k, int dir, const char *leaf, const char *name, bool follow, int depth);

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

bool names_in(int dir, struct names *names) {
    struct names l = {0};
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* closedir closes what it read from */
    DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
    if (!listing) {
        close_fd(&fd);
        return false;
    }
    for (struct dirent *e; (e = readdir(listing));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if ((l.n & (l.n - 1)) == 0) l.items = xrealloc(l.items, (l.n ? 2 * l.n : 1) * sizeof *l.items);
        l.items[l.n++] = xstrdup(e->d_name);
    }
    closedir(listing);
    if (l.n) qsort(l.items, l.n, sizeof *l.items, by_bytes);
    *names = l;
    return true;
}

void names_free(struct names *names) {
    for (size_t i = 0; i < names->n; i++) free(names->items[i]);
    free(names->items);
    *names = (struct names){0};
}

static char *joined(const char *folder, const char *leaf) {
    size_t n = strlen(folder), m = strlen(leaf);
    char *path = xmalloc(n + m + 2);
    memcpy(path, folder, n);
    path[n] = '/';
    memcpy(path + n + (n > 0), leaf, m + 1);
    return path;
}

static bool walk_children(struct walker *k, int dir, const char *leaf, const char *name, int depth) {
    int fd = openat(dir, leaf, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (*name ? O_NOFOLLOW : 0));
    struct names names;
    if (fd < 0 || !names_in(fd, &names)) {
        int error = errno;
        close_fd(&fd);
        if (*name && (error == EACCES || error == ENOENT || error == ENOTDIR || error == ELOOP)) return true; /* its entry stands */
        return fault_at(k->f, error, *name ? name : leaf);
    }
    bool ok = depth < DEPTH_MOST || fault_at(k->f, ENAMETOOLONG, name); /* deeper than a digest could be trusted to see */
    for (size_t i = 0; i < names.n; i++) {
        char *child = joined(name, names.items[i]);
        if (ok && !is_excluded(k->w, child)) ok = walk_one(k, fd, names.items[i], child, false, depth + 1);
        free(child);
    }
    names_free(&names);
    close(fd);
    return ok;
}

/* --- one path --- */

static bool walk_one(struct walker *k, int dir, const char *leaf, const char *name, bool follow, int depth) {
    struct walk *w = k->w;
    struct stat st;
    char link[PATH_MAX];
    u8 *sizeless = NULL;
    int fd = -1;
    size_t name_n = strlen(name);
    bool is_root = !*name, ok = true;
    if (fstatat(dir, leaf, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW))
        return (!is_root && errno == ENOENT) || fault_at(k->f, errno, is_root ? leaf : name); /* gone since it was listed */
    if (name_n > UINT16_MAX) return fault_at(k->f, ENAMETOOLONG, name);
    struct entry e = {.path_n = (u16)name_n, .mode = st.st_mode & 07777, .uid = st.st_uid, .gid = st.st_gid};
    if (w->to >= 0) e.mtime_ns = (u64)st.st_mtim.tv_sec * 1000000000u + (u64)st.st_mtim.tv_nsec;
    e.type = S_ISREG(st.st_mode) ? 'f' : S_ISDIR(st.st_mode) ? 'd' : S_ISLNK(st.st_mode) ? 'l' : 's';
    if (is_root && w->content && !w->children && e.type != 'f') return fault_at(k->f, e.type == 'd' ? EISDIR : EINVAL, leaf);
    if (e.type == 'f') {
        e.full_size = (u64)st.st_size;
        /* O_NONBLOCK: it may have become a pipe since. */
        if (w->content) fd = openat(dir, leaf, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
        if (w->content && fd < 0 && is_root) return fault_at(k->f, errno, leaf);
        if (fd >= 0) e.size = e.full_size < w->max_bytes ? e.full_size : w->max_bytes;
        if (fd >= 0 && !e.full_size && is_root) {
            sizeless = read_sizeless(fd, w->max_bytes, &e.size);
            e.full_size = e.size;
        }
    } else if (e.type == 'l') {
        ssize_t n = readlinkat(dir, leaf, link, sizeof link);
        e.link_n = (u16)(n < 0 ? 0 : n);
    }
    emit(k, &e, sizeof e);
    emit(k, name, e.path_n);
    emit(k, link, e.link_n);
    if (sizeless) emit(k, sizeless, (size_t)e.size);
    else if (fd >= 0) emit_content(k, fd, e.size);
    close_fd(&fd);
    free(sizeless);
    w->count++;
    if (e.type == 'd' && w->children) ok = walk_children(k, dir, leaf, name, depth);
    return ok;
}

bool walk_tree(struct walk *w, const char *path, struct fault *f) {
    struct walker k = {.w = w, .f = f};
    sha256_start(&k.sha);
    bool ok = walk_one(&k, AT_FDCWD, path, "", w->content && !w->children, 0);
    sha256_end(&k.sha, w->sha256);
    return ok;
}
