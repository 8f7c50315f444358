#include "cgroup.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct source { const char *path, *key; u64 unit; int fd; bool tried; };

/* cgroup v2 first; v1 as Docker mounts it. A file that is absent stays absent: it is tried once. */
static struct source throttled[] = {
    {"/sys/fs/cgroup/cpu.stat", "throttled_usec ", 1000, -1, false},
    {"/sys/fs/cgroup/cpu/cpu.stat", "throttled_time ", 1, -1, false},
};
static struct source memory[] = {
    {"/sys/fs/cgroup/memory.events", "max ", 1, -1, false},
    {"/sys/fs/cgroup/memory/memory.failcnt", "", 1, -1, false},
};

static u64 read_one(struct source *s) {
    char text[1024];
    if (!s->tried) {
        s->tried = true;
        s->fd = open(s->path, O_RDONLY | O_CLOEXEC);
    }
    if (s->fd < 0) return 0;
    ssize_t n = pread(s->fd, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = 0;
    /* "max " must start a line: memory.events has other keys that end in it. */
    for (char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (!strncmp(line, s->key, strlen(s->key))) return strtoull(line + strlen(s->key), NULL, 10) * s->unit;
        if (!*line) break;
    }
    return 0;
}

struct pressure pressure_read(void) {
    struct pressure p = {0, 0};
    for (int i = 0; i < 2; i++) p.throttled_ns += read_one(&throttled[i]);
    for (int i = 0; i < 2; i++) p.memory_hits += read_one(&memory[i]);
    return p;
}
