/* What a command can leave behind that is no file: mounts, System V objects, limits and priorities of the runner,
 * processes killed for want of memory. */
#ifndef RR_FACTS_H
#define RR_FACTS_H

#include "bytes.h"

enum { FACTS = 10 };
struct facts { u64 hash[FACTS][4]; };

struct mounts { char **opaque; size_t n; }; /* where nobody can write, or the kernel answers */

bool facts_read(struct facts *f, struct mounts *m);
const char *facts_other(const struct facts *a, const struct facts *b); /* the first that differs; NULL: none */
bool keys_can_be_left(void); /* the kernel's keyrings are open to commands, and nobody can see all that is in them */
bool mounts_opaque(const struct mounts *m, const char *path);
void mounts_free(struct mounts *m);

#endif
