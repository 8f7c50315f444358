/* What the whole runner knows: how long it may live, and whether it is about to end. */
#ifndef RR_MAIN_H
#define RR_MAIN_H

#include "bytes.h"

#ifndef RR_BUILD
#define RR_BUILD "unknown"
#endif

extern bool is_init;    /* PID 1 of a pid namespace (or machine) of our own: everything in it is ours to kill */
extern bool stopping;   /* leave the loop, kill everything, exit */
extern bool one_shot;   /* `once`: no host to lease from, no second request */
extern bool had_shell;  /* when we started: one that is gone since is not the image's fault */
extern u8 instance[16]; /* random: a host that comes back must find the one it left */

void lease_set(u64 duration_ns); /* 0: as it was; renews it, too */
void lease_renew(void);

int bench_main(int argc, char **argv);
int connect_main(const char *path);
int boot_main(void);

#endif
