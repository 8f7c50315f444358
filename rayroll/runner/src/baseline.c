#include "baseline.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "facts.h"
#include "sha256.h"
#include "system.h"

enum {
    DEPTH_MOST = 256,
    KEPT_FILE_MOST = 4 << 20,
    SETTLED_NS = 50000000, /* file systems' clocks tick every 1 to 10 ms: two changes in one tick have one ctime */
    FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
};

enum {
    KEPT = 1,       /* the table has a copy of it */
    VOLATILE = 2,   /* its times prove nothing: a tmpfs does not tell of writes by mmap, and some clocks tick in seconds */
    UNSETTLED = 4,  /* nor do this one's yet: it may be changed within the tick of its ctime */
    HAS_XATTR = 8,
    OPAQUE = 16,    /* cannot be written or is the kernel's own: not looked at */
    CLOSED = 32,    /* a folder the runner cannot read, nor can commands */
    GONE = 64,      /* for the time of one reset: is not there any more */
    TOUCHED = 128,
    CHANGED = 256,  /* was made again */
    DIGESTED = 512, /* a folder's sha256 is that of what is in it */
};

struct row {
    u64 ino, size, ctime_ns, mtime_ns, name, content; /* name, content: places in the heap */
    u32 mode, uid, gid, flags, attributes, parent, first_child, child_n;
    u8 sha256[32]; /* of what is kept; of a folder: of all that is in it */
};

struct head { u64 row_n, heap_n; struct facts facts; };

struct table {
    struct baseline *b;
    struct fault *f;
    struct row *rows;
    u64 row_n;
    char *heap;
    struct buf heap_buf, path; /* path: of what is being looked at, while the table is made */
    struct mounts mounts;
    u64 kept_bytes, newest_ns, now_ns;
};

static u64 wall_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

static u64 ns_of(struct timespec t) { return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec; }

static bool dirty(struct table *t, const char *what, const char *path) {
    char text[sizeof t->f->where];
    snprintf(text, sizeof text, "%s %.180s", what, path);
    return fault_at(t->f, EUCLEAN, text);
}

static char *path_of(struct table *t, u64 i) {
    size_t n = 0;
    for (u64 at = i; at; at = t->rows[at].parent) n += strlen(t->heap + t->rows[at].name) + 1;
    char *path = xmalloc(n + 2);
    strcpy(path, "/");
    if (n) path[n] = 0;
    for (u64 at = i; at; at = t->rows[at].parent) {
        size_t m = strlen(t->heap + t->rows[at].name);
        memcpy(path + n - m, t->heap + t->rows[at].name, m);
        path[n - m - 1] = '/';
        n -= m + 1;
    }
    return path;
}

static bool dirty_row(struct table *t, const char *what, u64 i) {
    char *path = path_of(t, i);
    dirty(t, what, path);
    free(path);
    return false;
}

static bool is_device(u32 mode) { return S_ISCHR(mode) || S_ISBLK(mode); }

static bool is_bad_name(const char *name) { return !strcmp(name, "security.selinux"); } /* the host's, on every file */

static bool has_xattr(int fd) {
    char names[4096];
    ssize_t n = flistxattr(fd, names, sizeof names);
    if (n < 0) return errno == ERANGE;
    for (ssize_t at = 0; at < n; at += (ssize_t)strlen(names + at) + 1)
        if (!is_bad_name(names + at)) return true;
    return false;
}

/* Those of chattr. Others the file system sets by itself: ext4 keeps an index of a folder that was large once. */
static u32 attributes_of(int fd) {
    enum { SET_BY_USERS = FS_FL_USER_MODIFIABLE | FS_PROJINHERIT_FL | FS_NOCOW_FL | FS_CASEFOLD_FL | FS_DAX_FL };
    int value = 0;
    return ioctl(fd, FS_IOC_GETFLAGS, &value) ? 0 : (u32)value & SET_BY_USERS;
}

static void note(struct row *r, const struct stat *st) {
    r->ino = st->st_ino;
    r->size = is_device(st->st_mode) ? st->st_rdev : S_ISDIR(st->st_mode) ? 0 : (u64)st->st_size;
    r->ctime_ns = ns_of(st->st_ctim);
    r->mtime_ns = ns_of(st->st_mtim);
    r->mode = st->st_mode;
    r->uid = st->st_uid;
    r->gid = st->st_gid;
}

static bool is_same(const struct row *r, const struct stat *st) {
    struct row now;
    note(&now, st);
    bool same = r->ino == now.ino && r->size == now.size && r->mode == now.mode && r->uid == now.uid && r->gid == now.gid;
    /* Writing to a terminal is not changing it. */
    return same && (is_device(r->mode) || (r->ctime_ns == now.ctime_ns && r->mtime_ns == now.mtime_ns));
}

/* --- taking it --- */

static u64 heap_add(struct table *t, const void *p, size_t n) {
    u64 at = t->heap_buf.n;
    buf_add(&t->heap_buf, p, n);
    return at;
}

static u64 row_add(struct table *t) {
    if ((t->row_n & (t->row_n - 1)) == 0) t->rows = xrealloc(t->rows, (t->row_n ? 2 * t->row_n : 1) * sizeof *t->rows);
    t->rows[t->row_n] = (struct row){0};
    return t->row_n++;
}

static bool is_kept(struct table *t) {
    const char *path = (const char *)t->path.p;
    for (size_t at = 0; at < t->b->keep.n;) {
        const char *item = (const char *)t->b->keep.p + at;
        size_t n = strnlen(item, t->b->keep.n - at);
        if (n && !strncmp(path, item, n) && (!path[n] || path[n] == '/')) return true;
        at += n + 1;
    }
    return false;
}

static void hash(const void *p, size_t n, u8 out[32]) {
    struct sha256 sha;
    sha256_start(&sha);
    sha256_add(&sha, p, n);
    sha256_end(&sha, out);
}

static void keep(struct table *t, struct row *r, int dir, const char *leaf) {
    if (r->size > KEPT_FILE_MOST || t->kept_bytes + r->size > t->b->most_bytes) return;
    char *content = xmalloc(r->size + 1);
    bool whole = false;
    if (S_ISLNK(r->mode)) {
        whole = readlinkat(dir, leaf, content, r->size + 1) == (ssize_t)r->size;
    } else {
        int fd = openat(dir, leaf, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        whole = fd >= 0 && !has_xattr(fd) && read_all(fd, content, r->size);
        close_fd(&fd);
    }
    if (whole) {
        r->content = heap_add(t, content, r->size);
        hash(content, r->size, r->sha256);
        r->flags |= KEPT;
        t->kept_bytes += r->size;
    }
    free(content);
}

static bool take_children(struct table *t, u64 i, int fd, int depth);

static bool take_one(struct table *t, u64 i, int dir, const char *leaf, bool in_memory, int depth) {
    struct stat st;
    struct row r = t->rows[i];
    const char *path = (const char *)t->path.p;
    if (fstatat(dir, leaf, &st, AT_SYMLINK_NOFOLLOW)) return fault_at(t->f, errno, path);
    note(&r, &st);
    if (mounts_opaque(&t->mounts, path)) r.flags |= OPAQUE;
    if ((S_ISREG(r.mode) && in_memory) || r.ctime_ns % 1000000000 == 0) r.flags |= VOLATILE;
    if (r.ctime_ns > t->now_ns) r.flags |= UNSETTLED;
    else if (r.ctime_ns > t->newest_ns && !(r.flags & OPAQUE)) t->newest_ns = r.ctime_ns;
    /* Another name may be where nobody looks, and a copy would not be the same file. */
    bool is_alone = st.st_nlink == 1;
    if (!(r.flags & OPAQUE) && (S_ISLNK(r.mode) || (S_ISREG(r.mode) && is_alone && (in_memory || is_kept(t))))) keep(t, &r, dir, leaf);
    t->rows[i] = r;
    if (!S_ISDIR(r.mode) || r.flags & OPAQUE) return true;
    int fd = openat(dir, leaf, FOLDER);
    if (fd < 0 && errno == EACCES) {
        t->rows[i].flags |= CLOSED;
        return true;
    }
    if (fd < 0) return fault_at(t->f, errno, path);
    t->rows[i].attributes = attributes_of(fd);
    if (has_xattr(fd)) t->rows[i].flags |= HAS_XATTR;
    bool ok = take_children(t, i, fd, depth);
    close(fd);
    return ok;
}

static bool take_children(struct table *t, u64 i, int fd, int depth) {
    struct names names;
    struct statfs fs;
    if (depth > DEPTH_MOST) return fault_at(t->f, ENAMETOOLONG, (const char *)t->path.p);
    if (!names_in(fd, &names)) return fault_at(t->f, errno, (const char *)t->path.p);
    bool in_memory = fstatfs(fd, &fs) || fs.f_type == TMPFS_MAGIC, ok = true;
    u64 first = t->row_n;
    for (size_t c = 0; c < names.n; c++) {
        u64 row = row_add(t);
        t->rows[row].parent = (u32)i;
        t->rows[row].name = heap_add(t, names.items[c], strlen(names.items[c]) + 1);
    }
    t->rows[i].first_child = (u32)first;
    t->rows[i].child_n = (u32)names.n;
    size_t path_n = t->path.n - 1; /* without its NUL */
    for (size_t c = 0; ok && c < names.n; c++) {
        t->path.n = path_n;
        if (path_n != 1) buf_add(&t->path, "/", 1);
        buf_add(&t->path, names.items[c], strlen(names.items[c]) + 1);
        ok = take_one(t, first + c, fd, names.items[c], in_memory, depth + 1);
    }
    t->path.n = path_n;
    buf_add(&t->path, "", 1);
    names_free(&names);
    return ok;
}

/* --- the digest --- */

static bool names_are_those(struct table *t, u64 i) {
    struct row *r = &t->rows[i];
    struct names names;
    char *path = path_of(t, i);
    int fd = open(path, FOLDER);
    bool ok = fd >= 0 && names_in(fd, &names);
    if (ok) {
        ok = names.n == r->child_n;
        for (size_t c = 0; ok && c < names.n; c++) ok = !strcmp(names.items[c], t->heap + t->rows[r->first_child + c].name);
        names_free(&names);
    }
    close_fd(&fd);
    free(path);
    return ok || dirty_row(t, "has other names than it had:", i);
}

/* What was made again is read again: the digest tells what is there, not what was meant to be. */
static bool look_again(struct table *t, u64 i, struct row *now) {
    struct stat st;
    char *path = path_of(t, i), *content = NULL;
    bool ok = !lstat(path, &st) || fault_at(t->f, errno, path);
    if (ok) note(now, &st);
    if (ok && now->flags & KEPT) {
        content = xmalloc(now->size + 1);
        int fd = S_ISREG(now->mode) ? open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC) : -1;
        ok = S_ISLNK(now->mode) ? readlink(path, content, now->size + 1) == (ssize_t)now->size
                                : fd >= 0 && read_all(fd, content, now->size);
        close_fd(&fd);
        if (ok) hash(content, now->size, now->sha256);
        else fault_at(t->f, errno, path);
    }
    free(content);
    free(path);
    return ok;
}

static void add_row(struct table *t, struct sha256 *sha, u64 i, const struct row *r) {
    const char *name = t->heap + r->name;
    bool by_content = r->flags & KEPT || S_ISDIR(r->mode);
    u64 facts[] = {i, r->mode, (u64)r->uid << 32 | r->gid, r->size, is_device(r->mode) ? 0 : r->mtime_ns,
                   by_content ? 0 : r->ino, by_content || is_device(r->mode) ? 0 : r->ctime_ns};
    sha256_add(sha, name, strlen(name) + 1);
    sha256_add(sha, facts, sizeof facts);
    if (r->flags & KEPT) sha256_add(sha, r->sha256, sizeof r->sha256);
}

/* Of what is in a folder. One in which nothing was made again has the digest that it had: the walk has just seen that. */
static bool digest_folder(struct table *t, u64 i) {
    struct row *folder = &t->rows[i];
    struct sha256 sha;
    bool look = folder->flags & CHANGED, ok = true, any = !(folder->flags & DIGESTED) || look;
    for (u64 c = 0; !any && c < folder->child_n; c++) any = t->rows[folder->first_child + c].flags & CHANGED;
    if (!any) return true;
    sha256_start(&sha);
    for (u64 c = 0; ok && c < folder->child_n; c++) {
        struct row r = t->rows[folder->first_child + c];
        if (r.flags & CHANGED) ok = look_again(t, folder->first_child + c, &r);
        if (r.flags & OPAQUE) memset(&r, 0, offsetof(struct row, name));
        add_row(t, &sha, folder->first_child + c, &r);
    }
    if (ok && look) ok = names_are_those(t, i);
    sha256_end(&sha, folder->sha256);
    folder->flags |= DIGESTED;
    return ok;
}

static bool digest(struct table *t) {
    struct sha256 sha;
    struct row root = t->rows[0];
    sha256_start(&sha);
    if (root.flags & CHANGED && !look_again(t, 0, &root)) return false;
    add_row(t, &sha, 0, &root);
    for (u64 i = 0; i < t->row_n; i++) {
        if (!S_ISDIR(t->rows[i].mode) || t->rows[i].flags & (OPAQUE | CLOSED)) continue;
        if (!digest_folder(t, i)) return false;
        sha256_add(&sha, t->rows[i].sha256, sizeof t->rows[i].sha256);
    }
    sha256_end(&sha, t->b->sha256);
    return true;
}

bool baseline_take(struct baseline *b, struct fault *f) {
    struct table t = {.b = b, .f = f, .now_ns = wall_ns()};
    struct head head = {0};
    buf_add(&t.path, "/", 2);
    heap_add(&t, "", 1);
    if (!facts_read(&head.facts, &t.mounts)) return fault_at(f, errno, "/proc");
    row_add(&t);
    if (!take_one(&t, 0, AT_FDCWD, "/", false, 0)) return false;
    t.heap = (char *)t.heap_buf.p;
    if (!digest(&t)) return false;
    b->count = head.row_n = t.row_n;
    head.heap_n = t.heap_buf.n;
    if (ftruncate(b->fd, 0) || lseek(b->fd, 0, SEEK_SET) || !write_all(b->fd, &head, sizeof head) ||
        !write_all(b->fd, t.rows, t.row_n * sizeof *t.rows) || !write_all(b->fd, t.heap, t.heap_buf.n))
        return fault_at(f, errno, "the table");
    /* Until then a command could change the newest file within the tick of its ctime. */
    struct pollfd none = {.fd = -1};
    for (u64 now; (now = wall_ns()) >= t.newest_ns && now - t.newest_ns < SETTLED_NS;) poll(&none, 1, 5);
    return true;
}

/* --- what is different --- */

static bool remove_extra(struct table *t, u64 i, int fd, const char *leaf) {
    t->b->repaired++;
    return remove_tree(fd, leaf, 0) || dirty_row(t, "something new cannot be removed from", i);
}

static bool mark_gone(struct table *t, u64 i) {
    struct row *r = &t->rows[i];
    if (!S_ISDIR(r->mode) && !(r->flags & KEPT)) return dirty_row(t, "there is no copy of", i);
    if (r->flags & (OPAQUE | CLOSED | HAS_XATTR)) return dirty_row(t, "there is no copy of", i);
    r->flags |= GONE;
    for (u64 c = 0; c < r->child_n; c++)
        if (!mark_gone(t, r->first_child + c)) return false;
    return true;
}

/* For files whose times prove nothing. */
static bool content_is_kept(struct table *t, const struct row *r, int dir, const char *leaf) {
    if (!(r->flags & KEPT)) return false;
    if (S_ISLNK(r->mode)) return true; /* a link is never changed, only replaced: another inode */
    int fd = openat(dir, leaf, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    char *content = xmalloc(r->size + 1);
    bool same = fd >= 0 && read_all(fd, content, r->size) && !memcmp(content, t->heap + r->content, r->size) && !has_xattr(fd);
    free(content);
    close_fd(&fd);
    return same;
}

static bool check_folder(struct table *t, u64 i, int fd, int depth);

static bool check_one(struct table *t, u64 i, int dir, int depth) {
    struct row *r = &t->rows[i];
    const char *leaf = t->heap + r->name;
    struct stat st;
    if (r->flags & OPAQUE) return true;
    if (fstatat(dir, leaf, &st, AT_SYMLINK_NOFOLLOW)) return errno == ENOENT ? mark_gone(t, i) : dirty_row(t, "cannot be looked at:", i);
    if ((st.st_mode & S_IFMT) != (r->mode & S_IFMT)) {
        t->b->repaired++;
        return remove_tree(dir, leaf, 0) ? mark_gone(t, i) : dirty_row(t, "cannot be removed:", i);
    }
    bool same = is_same(r, &st);
    if (S_ISDIR(r->mode)) {
        if (r->flags & CLOSED) return same || dirty_row(t, "there is no copy of", i);
        if (!same && (st.st_mode & 0700) != 0700) fchmodat(dir, leaf, 0700, 0); /* what was closed to us; set back later */
        int fd = openat(dir, leaf, FOLDER);
        if (fd < 0) return dirty_row(t, "cannot be opened:", i);
        bool ok = check_folder(t, i, fd, depth);
        close(fd);
        return ok;
    }
    if (same && S_ISREG(r->mode) && r->flags & (VOLATILE | UNSETTLED)) same = content_is_kept(t, r, dir, leaf);
    if (same) {
        if (t->now_ns > r->ctime_ns && t->now_ns - r->ctime_ns > SETTLED_NS) r->flags &= ~(u32)UNSETTLED;
        return true;
    }
    if (!(r->flags & KEPT)) return dirty_row(t, r->flags & VOLATILE ? "in memory, and there is no copy of" : "there is no copy of", i);
    r->flags |= TOUCHED;
    return true;
}

/* Both lists are in byte order. */
static bool check_names(struct table *t, u64 i, int fd, int depth) {
    struct row *r = &t->rows[i];
    struct names names;
    if (!names_in(fd, &names)) return dirty_row(t, "cannot be listed:", i);
    bool ok = true;
    size_t at = 0;
    u64 c = 0;
    while (ok && (at < names.n || c < r->child_n)) {
        u64 child = r->first_child + c;
        int order = at == names.n ? 1 : c == r->child_n ? -1 : strcmp(names.items[at], t->heap + t->rows[child].name);
        if (order < 0) {
            ok = remove_extra(t, i, fd, names.items[at++]);
            continue;
        }
        ok = order > 0 ? mark_gone(t, child) : check_one(t, child, fd, depth + 1);
        at += order == 0;
        c++;
    }
    names_free(&names);
    return ok;
}

static bool check_folder(struct table *t, u64 i, int fd, int depth) {
    struct row *r = &t->rows[i];
    struct stat st;
    if (fstat(fd, &st)) return dirty_row(t, "cannot be looked at:", i);
    if (!is_same(r, &st) || r->flags & (UNSETTLED | VOLATILE)) {
        r->flags |= TOUCHED;
        return check_names(t, i, fd, depth);
    }
    /* An unchanged folder has the names that it had. */
    for (u64 c = 0; c < r->child_n; c++)
        if (!check_one(t, r->first_child + c, fd, depth + 1)) return false;
    return true;
}

/* --- the way back --- */

static int open_parent(struct table *t, u64 i) {
    char *path = path_of(t, t->rows[i].parent);
    int fd = open(path, FOLDER);
    free(path);
    return fd;
}

static bool set_back(int fd, const struct row *r) {
    struct timespec times[] = {{.tv_nsec = UTIME_NOW}, {(time_t)(r->mtime_ns / 1000000000u), (long)(r->mtime_ns % 1000000000u)}};
    return !fchown(fd, r->uid, r->gid) && !fchmod(fd, r->mode & 07777) && !futimens(fd, times);
}

static bool make_link(struct table *t, const struct row *r, int dir, const char *leaf) {
    char *target = xstrndup(t->heap + r->content, r->size);
    struct timespec times[] = {{.tv_nsec = UTIME_NOW}, {(time_t)(r->mtime_ns / 1000000000u), (long)(r->mtime_ns % 1000000000u)}};
    bool ok = !symlinkat(target, dir, leaf) && !fchownat(dir, leaf, r->uid, r->gid, AT_SYMLINK_NOFOLLOW) &&
              !utimensat(dir, leaf, times, AT_SYMLINK_NOFOLLOW);
    free(target);
    return ok;
}

static bool make_file(struct table *t, const struct row *r, int dir, const char *leaf, bool in_place) {
    int fd = openat(dir, leaf, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (in_place ? O_TRUNC : O_CREAT | O_EXCL), 0600);
    bool ok = fd >= 0 && !(in_place && has_xattr(fd)) && write_all(fd, t->heap + r->content, r->size) && set_back(fd, r);
    if (fd >= 0 && close(fd)) ok = false; /* some file systems say "no space" only now */
    return ok;
}

static bool make_again(struct table *t, u64 i) {
    struct row *r = &t->rows[i];
    const char *leaf = t->heap + r->name;
    int dir = open_parent(t, i);
    bool ok = dir >= 0, in_place = false;
    if (ok && r->flags & TOUCHED && unlinkat(dir, leaf, 0)) {
        in_place = errno == EBUSY && S_ISREG(r->mode); /* somebody's mount, such as /etc/hosts */
        ok = in_place;
    }
    if (ok) ok = S_ISDIR(r->mode) ? !mkdirat(dir, leaf, 0700) : S_ISLNK(r->mode) ? make_link(t, r, dir, leaf) : make_file(t, r, dir, leaf, in_place);
    close_fd(&dir);
    t->b->repaired++;
    t->rows[r->parent].flags |= TOUCHED;
    return ok || dirty_row(t, "cannot be made again:", i);
}

static bool settle_folder(struct table *t, u64 i) {
    struct row *r = &t->rows[i];
    char *path = path_of(t, i);
    int fd = open(path, FOLDER);
    struct stat st;
    free(path);
    bool ok = fd >= 0 && !fstat(fd, &st);
    /* A default ACL or `chattr` acts on what is made in there; it has to be what it was, and a new value has no copy. */
    bool plain = ok && !(r->flags & HAS_XATTR) && !has_xattr(fd) && (r->flags & GONE || attributes_of(fd) == r->attributes);
    bool unchanged = ok && !(r->flags & GONE) && is_same(r, &st); /* unsettled, and nothing happened */
    if (ok && !unchanged) ok = plain && set_back(fd, r);
    close_fd(&fd);
    return ok || dirty_row(t, "cannot be set back:", i);
}

/* What its identity is from now on. */
static bool renew(struct table *t, u64 i) {
    struct row *r = &t->rows[i];
    struct stat st;
    char *path = path_of(t, i);
    bool ok = !lstat(path, &st) || fault_at(t->f, errno, path);
    free(path);
    if (!ok) return false;
    r->ino = st.st_ino;
    r->ctime_ns = ns_of(st.st_ctim);
    if (t->now_ns > r->ctime_ns && t->now_ns - r->ctime_ns > SETTLED_NS) r->flags &= ~(u32)UNSETTLED;
    else r->flags |= UNSETTLED;
    r->flags |= CHANGED;
    return true;
}

static bool go_back(struct table *t) {
    for (u64 i = 0; i < t->row_n; i++) { /* folders before what is in them */
        u32 flags = t->rows[i].flags;
        if (flags & GONE || (flags & TOUCHED && !S_ISDIR(t->rows[i].mode)))
            if (!make_again(t, i)) return false;
    }
    for (u64 i = t->row_n; i--;) { /* and after it: each change in there moves their times */
        if (!(t->rows[i].flags & (GONE | TOUCHED))) continue;
        if (S_ISDIR(t->rows[i].mode) && !settle_folder(t, i)) return false;
        if (!renew(t, i)) return false;
    }
    return true;
}

static bool restore(struct table *t, const struct head *head) {
    struct facts now;
    struct mounts mounts = {0};
    if (!facts_read(&now, &mounts)) return fault_at(t->f, errno, "/proc");
    mounts_free(&mounts);
    const char *other = facts_other(&head->facts, &now);
    if (other) return dirty(t, "not as it was:", other);
    if (keys_can_be_left()) return dirty(t, "there may be something in", "the kernel's keyrings");
    for (u64 i = 0; i < t->row_n; i++) t->rows[i].flags &= ~(u32)(GONE | TOUCHED | CHANGED); /* of one that was cut short */
    int root = open("/", FOLDER);
    bool ok = root >= 0 && check_folder(t, 0, root, 0) && go_back(t) && digest(t);
    close_fd(&root);
    return ok;
}

bool baseline_restore(struct baseline *b, struct fault *f) {
    struct stat st;
    if (fstat(b->fd, &st) || st.st_size < (off_t)sizeof(struct head)) return fault_at(f, ENOENT, "there is no baseline");
    size_t n = (size_t)st.st_size;
    u8 *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (p == MAP_FAILED) return fault_at(f, errno, "the table");
    struct head *head = (struct head *)p;
    struct table t = {.b = b, .f = f, .now_ns = wall_ns(), .rows = (struct row *)(p + sizeof *head), .row_n = head->row_n};
    t.heap = (char *)(t.rows + t.row_n);
    b->count = t.row_n;
    bool ok = restore(&t, head);
    munmap(p, n);
    return ok;
}
