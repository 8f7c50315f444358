/* Bytes, fields and small system helpers. Running out of memory ends the runner: half a reply helps nobody. */
#include "rr.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void *xmalloc(size_t n) {
    void *p = malloc(n ? n : 1);
    if (!p) _exit(70);
    return p;
}

char *xstrndup(const void *p, size_t n) {
    char *copy = xmalloc(n + 1);
    if (n) memcpy(copy, p, n);
    copy[n] = 0;
    return copy;
}

void buf_add(struct buf *b, const void *p, size_t n) {
    if (!n) return;
    if (b->n + n > b->cap) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap < b->n + n) cap *= 2;
        u8 *grown = realloc(b->p, cap);
        if (!grown) _exit(70);
        b->p = grown;
        b->cap = cap;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void buf_drop(struct buf *b, size_t n) {
    b->n -= n;
    if (b->n) memmove(b->p, b->p + n, b->n);
    else if (b->cap > (256 << 10)) buf_free(b); /* a rare large frame must not stay in a small sandbox's memory */
}

void buf_free(struct buf *b) {
    free(b->p);
    *b = (struct buf){0};
}

void put_bytes(struct buf *b, u8 tag, const void *p, size_t n) {
    u32 size = (u32)n;
    buf_add(b, &tag, 1);
    buf_add(b, &size, 4);
    buf_add(b, p, n);
}

void put_num(struct buf *b, u8 tag, u64 value) { put_bytes(b, tag, &value, 8); }
void put_text(struct buf *b, u8 tag, const char *text) { put_bytes(b, tag, text, strlen(text)); }

/* Calls for the field at *at and steps over it; false at the end or where the payload is malformed. */
static bool next_field(struct bytes payload, size_t *at, u8 *tag, struct bytes *value) {
    u32 size;
    if (payload.n - *at < 5) return false;
    *tag = payload.p[*at];
    memcpy(&size, payload.p + *at + 1, 4);
    if (payload.n - *at - 5 < size) return false;
    *value = (struct bytes){payload.p + *at + 5, size};
    *at += 5 + (size_t)size;
    return true;
}

bool fields_valid(struct bytes payload) {
    size_t at = 0;
    u8 tag;
    struct bytes value;
    while (at < payload.n)
        if (!next_field(payload, &at, &tag, &value)) return false;
    return true;
}

struct bytes field(struct bytes payload, u8 wanted) {
    size_t at = 0;
    u8 tag;
    struct bytes value;
    while (next_field(payload, &at, &tag, &value))
        if (tag == wanted) return value;
    return (struct bytes){NULL, 0};
}

u64 field_num(struct bytes payload, u8 tag, u64 otherwise) {
    struct bytes value = field(payload, tag);
    u64 number;
    if (!value.p || value.n != 8) return otherwise;
    memcpy(&number, value.p, 8);
    return number;
}

char *field_text(struct bytes payload, u8 tag) {
    struct bytes value = field(payload, tag);
    if (!value.p || memchr(value.p, 0, value.n)) return NULL;
    return xstrndup(value.p, value.n);
}

u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

bool write_all(int fd, const void *p, size_t n) {
    const u8 *at = p;
    while (n) {
        ssize_t done = write(fd, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        n -= (size_t)done;
    }
    return true;
}

bool read_all(int fd, void *p, size_t n) {
    u8 *at = p;
    while (n) {
        ssize_t done = read(fd, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        n -= (size_t)done;
    }
    return true;
}

void close_from(int first) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0) return;
#endif
    DIR *dir = opendir("/proc/self/fd"); /* before Linux 5.9 */
    if (!dir) {
        for (int fd = first; fd < 4096; fd++) close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        int fd = atoi(entry->d_name);
        if (fd >= first && fd != dirfd(dir)) close(fd);
    }
    closedir(dir);
}

int memfd_with(const char *name, const void *p, size_t n, bool seal) {
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (!write_all(fd, p, n) || lseek(fd, 0, SEEK_SET) != 0) {
        close(fd);
        return -1;
    }
    if (seal) fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    return fd;
}

void null_stdio(void) {
    int fd = open("/dev/null", O_RDWR);
    if (fd < 0) fd = memfd_with("null", "", 0, false); /* an image without /dev */
    for (int i = 0; i < 3 && fd >= 0; i++) dup2(fd, i);
    if (fd > 2) close(fd);
}
