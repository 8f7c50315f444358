/* How often the sandbox's own limits held it back: CPU throttling and memory-limit hits, from its cgroup. */
#ifndef RR_CGROUP_H
#define RR_CGROUP_H

#include "bytes.h"

struct pressure { u64 throttled_ns, memory_hits; };
struct pressure pressure_read(void);

#endif
