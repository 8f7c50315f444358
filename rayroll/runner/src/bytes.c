/* Bytes, buffers and fields. Pure: nothing here makes a system call. */
#include "bytes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

enum { KEPT_CAPACITY = 256 << 10 };

void *xmalloc(size_t n) {
    return xrealloc(NULL, n);
}

void *xrealloc(void *p, size_t n) {
    void *grown = realloc(p, n ? n : 1);
    if (!grown) _exit(70); /* EX_SOFTWARE */
    return grown;
}

char *xstrndup(const void *p, size_t n) {
    char *copy = xmalloc(n + 1);
    if (n) memcpy(copy, p, n);
    copy[n] = 0;
    return copy;
}

char *xstrdup(const char *text) { return xstrndup(text, strlen(text)); }

struct bytes bytes_of(const struct buf *b) { return (struct bytes){b->p, b->n}; }

void buf_add(struct buf *b, const void *p, size_t n) {
    if (!n) return;
    if (b->n + n > b->cap) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap < b->n + n) cap *= 2;
        b->p = xrealloc(b->p, cap);
        b->cap = cap;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void buf_drop(struct buf *b, size_t n) {
    if (!n) return;
    b->n -= n;
    if (b->n) memmove(b->p, b->p + n, b->n);
    else if (b->cap > KEPT_CAPACITY) buf_free(b); /* a rare large frame must not stay in a small sandbox's memory */
}

void buf_free(struct buf *b) {
    free(b->p);
    *b = (struct buf){0};
}

u64 hash_bytes(u64 seed, const void *p, size_t n) {
    const u8 *at = p;
    u64 hash = seed ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

void put_bytes(struct buf *b, u8 tag, const void *p, size_t n) {
    u32 size = (u32)n;
    buf_add(b, &tag, 1);
    buf_add(b, &size, 4);
    buf_add(b, p, n);
}

void put_text(struct buf *b, u8 tag, const char *text) { put_bytes(b, tag, text, strlen(text)); }
void put_num(struct buf *b, u8 tag, u64 value) { put_bytes(b, tag, &value, 8); }

/* The field at *at, and a step over it; false at the end, or where the rest is no field. */
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

/* A limit that is silently not applied is worse than a refused request, so what we read as a number must be one. */
static bool value_fits(u8 tag, struct bytes value) {
    switch (tag) {
    case T_VERSION_MIN:
    case T_VERSION_MAX:
    case T_LEASE_MS:
    case T_TIMEOUT_MS:
    case T_IDLE_MS:
    case T_GRACE_MS:
    case T_HEAD_BYTES:
    case T_TAIL_BYTES:
    case T_FLAGS:
    case T_MAX_BYTES:
    case T_BYTES: return value.n == 8;
    case T_SCRIPT:
    case T_USER:
    case T_CWD:
    case T_PATH: return !value.n || !memchr(value.p, 0, value.n);
    case T_IDS: return value.n % 4 == 0;
    default: return true;
    }
}

bool fields_valid(struct bytes payload) {
    bool seen[256] = {false};
    size_t at = 0;
    u8 tag;
    struct bytes value;
    while (at < payload.n) {
        if (!next_field(payload, &at, &tag, &value) || seen[tag] || !value_fits(tag, value)) return false;
        seen[tag] = true;
    }
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

u64 field_ns(struct bytes payload, u8 tag, u64 otherwise_ns) {
    static const u64 year_ms = 365ull * 24 * 3600 * 1000;
    u64 ms = field_num(payload, tag, UINT64_MAX);
    if (ms == UINT64_MAX) return otherwise_ns;
    return (ms < year_ms ? ms : year_ms) * 1000000;
}

char *field_text(struct bytes payload, u8 tag) {
    struct bytes value = field(payload, tag);
    return value.p ? xstrndup(value.p, value.n) : NULL;
}
