/* The directory and the exported variables that one command leaves to the next.
 *
 * No long-lived shell: each command's shell, as it exits, runs `runner state` from an EXIT trap. That helper sees the
 * shell's directory as its own and the exported variables as its environment, and writes both, in binary, to a memfd
 * that the runner reads afterwards. So no shell text is parsed, and `exit`, `set -e` or an open quote lose nothing. */
#include "rr.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

enum { STATE_MAX = 4 << 20, STATE_MAGIC = 0x31535252 };
struct state_head { u32 magic, cwd_n, env_n; };

/* Set by the shell or by us for one command; carrying them would be noise or a trap. */
static bool is_carried(const char *entry) {
    static const char *const names[] = {"_=", "SHLVL=", "BASH_ENV="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(entry, names[i], strlen(names[i]))) return false;
    return strchr(entry, '=') != NULL;
}

static void add_environ(struct buf *env) {
    for (char **e = environ; *e; e++)
        if (is_carried(*e)) buf_add(env, *e, strlen(*e) + 1);
}

static char *current_dir(void) {
    char path[PATH_MAX];
    return getcwd(path, sizeof path) && path[0] == '/' ? xstrndup(path, strlen(path)) : NULL;
}

void state_init(struct state *s) {
    s->cwd = current_dir();
    if (!s->cwd) s->cwd = xstrndup("/", 1);
    s->env = (struct buf){0};
    add_environ(&s->env);
    /* With no terminal, a program that would open an editor or a pager must fail at once, not wait. */
    if (!getenv("TERM")) buf_add(&s->env, "TERM=dumb", 10);
    if (!getenv("PATH")) {
        static const char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        buf_add(&s->env, path, sizeof path);
    }
}

bool state_write(const struct state *s, int fd) {
    struct buf out = {0};
    struct state_head head = {STATE_MAGIC, (u32)strlen(s->cwd), (u32)s->env.n};
    buf_add(&out, &head, sizeof head);
    buf_add(&out, s->cwd, head.cwd_n);
    buf_add(&out, s->env.p, s->env.n);
    /* The body first, the head last: a reader sees all of it or nothing. */
    bool ok = out.n < STATE_MAX && ftruncate(fd, 0) == 0 &&
              pwrite(fd, out.p + sizeof head, out.n - sizeof head, sizeof head) == (ssize_t)(out.n - sizeof head) &&
              pwrite(fd, out.p, sizeof head, 0) == (ssize_t)sizeof head;
    buf_free(&out);
    return ok;
}

/* Whatever is in the memfd was written by the agent's side: nothing in it is trusted but its own future. */
bool state_read(struct state *s, int fd) {
    struct state_head head;
    struct stat st;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != STATE_MAGIC) return false;
    if (head.cwd_n == 0 || head.cwd_n >= PATH_MAX || head.env_n > STATE_MAX) return false;
    size_t size = (size_t)head.cwd_n + head.env_n;
    if (fstat(fd, &st) || (u64)st.st_size < sizeof head + size) return false;
    u8 *body = xmalloc(size);
    bool ok = pread(fd, body, size, sizeof head) == (ssize_t)size && body[0] == '/' &&
              !memchr(body, 0, head.cwd_n) && (head.env_n == 0 || body[size - 1] == 0);
    if (ok) {
        free(s->cwd);
        s->cwd = xstrndup(body, head.cwd_n);
        s->env.n = 0;
        buf_add(&s->env, body + head.cwd_n, head.env_n);
    }
    free(body);
    return ok;
}

static const char *variable(const struct buf *env, const char *name, size_t name_n) {
    for (size_t at = 0; at < env->n; at += strlen((char *)env->p + at) + 1)
        if (!strncmp((char *)env->p + at, name, name_n)) return (char *)env->p + at;
    return NULL;
}

/* A directory or variable given with one request is that request's own, unless its script changed it. */
bool state_take(int fd, struct bytes request) {
    struct state left = {NULL, {0}};
    struct buf merged = {0};
    struct bytes given = field(request, T_ENV);
    struct buf own = {0};
    if (!state_read(&left, fd)) return false;
    buf_add(&own, given.p, given.n);
    if (own.n) buf_add(&own, "", 1);
    for (size_t at = 0; at < left.env.n;) {
        const char *entry = (char *)left.env.p + at;
        size_t name_n = strcspn(entry, "=") + 1;
        const char *ours = variable(&own, entry, name_n), *before = variable(&carried.env, entry, name_n);
        const char *kept = ours && !strcmp(ours, entry) ? before : entry;
        if (kept) buf_add(&merged, kept, strlen(kept) + 1);
        at += strlen(entry) + 1;
    }
    char *cwd = field_text(request, T_CWD);
    if (!cwd || strcmp(cwd, left.cwd)) {
        free(carried.cwd);
        carried.cwd = left.cwd;
    } else {
        free(left.cwd);
    }
    free(cwd);
    buf_free(&own);
    buf_free(&left.env);
    buf_free(&carried.env);
    carried.env = merged;
    return true;
}

int state_dump_main(void) {
    const char *logical = getenv("PWD");
    struct state s = {current_dir(), {0}};
    if (!s.cwd) s.cwd = xstrndup(logical && *logical == '/' ? logical : "/", logical && *logical == '/' ? strlen(logical) : 1);
    add_environ(&s.env);
    return state_write(&s, FD_STATE) ? 0 : 1;
}

int rc_fd = -1, runner_fd = -1;

void shared_open(void) {
    static const char text[] = "unset BASH_ENV\n" STATE_TRAP "\n";
    rc_fd = memfd_with("rc", text, sizeof text - 1, true);
    runner_fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
}
