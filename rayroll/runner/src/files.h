/* Files and trees, as a stream of entries (a header, the path, then the link or the contents).
 *
 * Disks block, so each transfer runs in a forked worker joined to the loop by pipes: the lease and every other request go
 * on. Paths are bytes and are never shown to a shell. */
#ifndef RR_FILES_H
#define RR_FILES_H

#include <sys/types.h>

#include "bytes.h"
#include "user.h"

/* types: 'f' file, 'd' folder, 'l' symbolic link, 's' anything else (named only), 'r' remove whatever is there */
struct entry {
    u8 type, reserved;
    u16 path_n;
    u32 mode, uid, gid; /* KEEP: as it is, or the default for a new one */
    u64 mtime_ns, size, full_size; /* size: content bytes that follow; full_size: the file's own */
    u16 link_n, reserved2;
    u32 reserved3;
};
_Static_assert(sizeof(struct entry) == 48, "tree.py unpacks 48 bytes");
enum { KEEP = 0xffffffff }; /* which is also chown's word for "unchanged" */

struct fault { int error; char where[256]; };
bool fault_at(struct fault *f, int error, const char *where); /* false, always: to be returned */

/* What a worker says at its end, in one write. */
struct worker_status { int error; bool is_user; u64 count, repaired; u8 sha256[32]; char where[256]; };

/* Type is F_PUT, F_GET, F_DIGEST, F_BASELINE or F_RESET; `who` where it is known already. -1 with errno. Both ends are non-blocking. */
pid_t worker_start(u8 type, struct bytes request, const struct user *who, int *data_fd, int *status_fd);

bool put_stream(int from, const char *base, u64 *count, struct fault *f);
bool remove_tree(int dir, const char *name, int depth); /* whatever is there; nothing there is fine; false with errno */
void put_abandon(void); /* remove the half-written file, if there is one; a signal handler may call it */

struct names { char **items; size_t n; };
bool names_in(int dir, struct names *names); /* of a folder, in byte order; false with errno */
void names_free(struct names *names);

struct walk {
    int to; /* where entries go; -1: into the digest only */
    bool content, children;
    u64 max_bytes, count;
    struct bytes exclude; /* NUL-separated prefixes */
    u8 sha256[32];
};
bool walk_tree(struct walk *w, const char *path, struct fault *f);

#endif
