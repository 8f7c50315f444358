/* A sandbox's files as they were at its birth, and the way back to them.
 *
 * BASELINE writes a table of every path on every file system that can be written: kind, mode, owner, size, times, inode.
 * RESET walks it. A file whose inode and ctime are the table's was not touched: no system call sets a ctime back, and
 * only a privilege that no command has sets the clock. Whatever else is there is removed; what was changed or is missing is
 * made again from a copy in the table, and where there is no copy the sandbox is said to be dirty.
 *
 * Why a walk, and not a digest of all contents or the engine's list of changes: 8,700 entries take 21 ms (2.4 us each),
 * reading their 150 MB would take ten times the budget, and an engine sees neither /dev/shm nor a local sandbox.
 *
 * The table lives in a nameless file that only the runner and its workers have open. */
#ifndef RR_BASELINE_H
#define RR_BASELINE_H

#include "files.h"

struct baseline {
    int fd;              /* of the table */
    struct bytes keep;   /* NUL-separated absolute prefixes of what a copy is kept of */
    u64 most_bytes;      /* of all copies together */
    u64 count;           /* rows */
    u64 repaired;        /* what was removed, made again or set back */
    u8 sha256[32];       /* of names, kinds, modes, owners, times, and contents or identity */
};
bool baseline_take(struct baseline *b, struct fault *f);
bool baseline_restore(struct baseline *b, struct fault *f); /* nothing but the runner may run */

#endif
