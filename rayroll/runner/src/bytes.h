/* Bytes, growing buffers, and payloads: lists of fields, each a tag (1 byte), a length (4 bytes) and a value. */
#ifndef RR_BYTES_H
#define RR_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

struct bytes { const u8 *p; size_t n; };     /* somebody else's */
struct buf { u8 *p; size_t n, cap; };        /* ours; all zero is an empty one */

/* Running out of memory ends the process: half a reply helps nobody, and the host notices. */
void *xmalloc(size_t n);
void *xrealloc(void *p, size_t n);
char *xstrndup(const void *p, size_t n);
char *xstrdup(const char *text);

struct bytes bytes_of(const struct buf *b);
void buf_add(struct buf *b, const void *p, size_t n);
void buf_drop(struct buf *b, size_t n); /* from the front */
void buf_free(struct buf *b);
u64 hash_bytes(u64 seed, const void *p, size_t n); /* FNV-1a: tells changes, resists nobody */

void put_bytes(struct buf *b, u8 tag, const void *p, size_t n);
void put_text(struct buf *b, u8 tag, const char *text);
void put_num(struct buf *b, u8 tag, u64 value);

/* A list of fields, no tag twice, numbers 8 bytes long, and no NUL in what is one path, name or script. */
bool fields_valid(struct bytes payload);
struct bytes field(struct bytes payload, u8 tag); /* .p is NULL where absent */
u64 field_num(struct bytes payload, u8 tag, u64 otherwise);
u64 field_ns(struct bytes payload, u8 tag, u64 otherwise_ns); /* from milliseconds; a year at most */
char *field_text(struct bytes payload, u8 tag);               /* malloc'ed; NULL where absent */

#endif
