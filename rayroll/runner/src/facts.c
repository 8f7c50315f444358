#include "facts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sha256.h"
#include "system.h"

static const char *const names[FACTS] = {"mounts",          "shared memory (System V)", "semaphores (System V)",
                                         "message queues (System V)", "the runner's oom_score_adj", "the runner's autogroup",
                                         "the runner's limits", "the runner's priority",    "the runner's CPUs",
                                         "the number of processes killed for want of memory"};
static const char *const files[] = {"/proc/self/mountinfo", "/proc/sysvipc/shm",          "/proc/sysvipc/sem",
                                    "/proc/sysvipc/msg",    "/proc/self/oom_score_adj", "/proc/self/autogroup"};
enum { FILES = sizeof files / sizeof *files, OPTIONAL_FROM = 1 };

static bool read_file(const char *path, struct buf *b) {
    char chunk[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;
    while (fd >= 0 && (n = read(fd, chunk, sizeof chunk)) > 0) buf_add(b, chunk, (size_t)n);
    close_fd(&fd);
    return n == 0;
}

/* A space, a tab, a newline or a backslash in a path is written as \040. */
static void unescape(char *text) {
    char *to = text;
    for (const char *at = text; *at; at++) {
        if (*at == '\\' && at[1] && at[2] && at[3]) {
            *to++ = (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0'));
            at += 3;
        } else {
            *to++ = *at;
        }
    }
    *to = 0;
}

static bool is_ro(const char *options) { return !strncmp(options, "ro", 2) && (!options[2] || options[2] == ','); }

static bool is_kernels(const char *type) {
    static const char *const types[] = {"proc", "sysfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "bpf"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i])) return true;
    return false;
}

/* "36 35 98:0 /root /where rw,noatime master:1 - ext4 /dev/root rw" */
static void take_mount(struct mounts *m, char *line) {
    char *field[6] = {0}, *save = NULL;
    for (int i = 0; i < 6; i++)
        if (!(field[i] = strtok_r(i ? NULL : line, " ", &save))) return;
    char *word, *type = NULL;
    while ((word = strtok_r(NULL, " ", &save)) && strcmp(word, "-")) {}
    if (!word || !(type = strtok_r(NULL, " ", &save))) return;
    char *source = strtok_r(NULL, " ", &save), *super = source ? strtok_r(NULL, " ", &save) : NULL;
    if (!is_ro(field[5]) && !(super && is_ro(super)) && !is_kernels(type)) return;
    unescape(field[4]);
    if ((m->n & (m->n - 1)) == 0) m->opaque = xrealloc(m->opaque, (m->n ? 2 * m->n : 1) * sizeof *m->opaque);
    m->opaque[m->n++] = xstrdup(field[4]);
}

bool mounts_opaque(const struct mounts *m, const char *path) {
    for (size_t i = 0; i < m->n; i++)
        if (!strcmp(m->opaque[i], path)) return true;
    return false;
}

void mounts_free(struct mounts *m) {
    for (size_t i = 0; i < m->n; i++) free(m->opaque[i]);
    free(m->opaque);
    *m = (struct mounts){0};
}

/* By which a later death would be put down to want of memory. cgroup v2 first; v1 as Docker mounts it. */
static u64 killed_for_memory(void) {
    static const char *const paths[] = {"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"};
    u64 killed = 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct buf text = {0};
        if (read_file(paths[i], &text)) {
            buf_add(&text, "", 1);
            char *line = strstr((char *)text.p, "\noom_kill ");
            if (line) killed += strtoull(line + sizeof "\noom_kill " - 1, NULL, 10);
        }
        buf_free(&text);
    }
    return killed;
}

static void set(struct facts *f, int i, const void *p, size_t n) {
    struct sha256 sha;
    sha256_start(&sha);
    if (n) sha256_add(&sha, p, n);
    sha256_end(&sha, (u8 *)f->hash[i]);
}

bool facts_read(struct facts *f, struct mounts *m) {
    memset(f, 0, sizeof *f);
    for (int i = 0; i < FILES; i++) {
        struct buf text = {0};
        if (!read_file(files[i], &text) && (i < OPTIONAL_FROM || errno != ENOENT)) {
            buf_free(&text);
            return false;
        }
        set(f, i, text.p, text.n);
        if (i == 0) {
            char *save = NULL, *all = xstrndup(text.p, text.n);
            for (char *line = strtok_r(all, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) take_mount(m, line);
            free(all);
        }
        buf_free(&text);
    }
    struct rlimit limits[RLIM_NLIMITS] = {0};
    for (int i = 0; i < RLIM_NLIMITS; i++) getrlimit(i, &limits[i]);
    set(f, FILES, limits, sizeof limits);
    long ranks[] = {getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), syscall(SYS_ioprio_get, 1, 0)};
    set(f, FILES + 1, ranks, sizeof ranks);
    u8 cpus[1024] = {0};
    syscall(SYS_sched_getaffinity, 0, sizeof cpus, cpus);
    set(f, FILES + 2, cpus, sizeof cpus);
    u64 killed = killed_for_memory();
    set(f, FILES + 3, &killed, sizeof killed);
    return true;
}

bool keys_can_be_left(void) {
    enum { GET_KEYRING_ID = 0, USER_KEYRING = -4 };
    return syscall(SYS_keyctl, GET_KEYRING_ID, USER_KEYRING, 0) >= 0 || (errno != EPERM && errno != ENOSYS);
}

const char *facts_other(const struct facts *a, const struct facts *b) {
    for (int i = 0; i < FACTS; i++)
        if (memcmp(a->hash[i], b->hash[i], sizeof a->hash[i])) return names[i];
    return NULL;
}
