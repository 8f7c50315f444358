/* SHA-256 (FIPS 180-4), for digests of file trees. */
#ifndef RR_SHA256_H
#define RR_SHA256_H

#include "bytes.h"

struct sha256 { u32 h[8]; u64 n; u8 block[64]; };
void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *p, size_t n);
void sha256_end(struct sha256 *s, u8 out[32]);

#endif
