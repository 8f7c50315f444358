/* Killing, without ever forking: the process limit may be full. */
#ifndef RR_KILL_H
#define RR_KILL_H

#include <sys/types.h>

#include "bytes.h"

enum { KILL_PATIENCE_S = 5 }; /* for processes that the kernel holds back (disk wait) */

int kill_descendants(pid_t root, int sig); /* how many; -1: /proc cannot be read here */
bool kill_everything(void);                /* until nothing but the runner is left; false: something would not die */
bool kill_kept(void);                      /* the keepers that earlier runners left, and what they look after */

#endif
