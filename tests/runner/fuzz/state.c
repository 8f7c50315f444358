/* Whatever an agent writes where its shell's state is expected: read, compared with the beginning, merged. What is carried
 * afterwards is sorted, has no name twice, and fits. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "main.h"
#include "state.h"
#include "system.h"

bool is_init, stopping, one_shot, had_shell;
u8 instance[16];
void lease_set(u64 duration_ns) { (void)duration_ns; }
void lease_renew(void) {}

static void check(const struct state *s) {
    const char *last = NULL;
    if (!s->cwd || s->cwd[0] != '/' || s->env.n > STATE_MOST || (s->env.n && s->env.p[s->env.n - 1])) abort();
    for (size_t at = 0; at < s->env.n; at += strlen((char *)s->env.p + at) + 1) {
        const char *entry = (char *)s->env.p + at;
        if (!strchr(entry, '=') || *entry == '=' || (last && compare_names(last, entry) >= 0)) abort();
        last = entry;
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    states_start();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char *const start[] = {"A=1", "BASH_ENV=/proc/self/fd/211", "B=2", "Z=", NULL};
    struct state *s = state_of(NULL);
    struct left left;
    struct buf delta = {0};
    int fd = memory_file("fuzz", data, size, UNSEALED);
    if (fd < 0) abort();
    if (state_read(fd, &left)) {
        state_delta(&left, size % 2 ? "/" : "", start, size % 3 ? NULL : "BASH_ENV=x", &delta);
        state_apply(s, bytes_of(&delta));
        check(s);
        state_apply(s, bytes_of(&delta)); /* the same again changes nothing */
        u64 before = hash_bytes(0, s->env.p, s->env.n);
        state_apply(s, bytes_of(&delta));
        if (hash_bytes(0, s->env.p, s->env.n) != before) abort();
    }
    left_free(&left);
    buf_free(&delta);
    state_apply(s, (struct bytes){data, size}); /* the keeper's words are trusted; they crash nothing all the same */
    struct state fresh = {.cwd = xstrdup("/"), .is_fresh = true};
    if (state_load(&fresh, fd)) {
        if (ftruncate(fd, 0) || !state_save(&fresh, fd)) abort();
        struct state again = {.cwd = xstrdup("/")};
        if (!state_load(&again, fd) || strcmp(again.cwd, fresh.cwd)) abort();
        free(again.cwd);
        buf_free(&again.env);
    }
    free(fresh.cwd);
    buf_free(&fresh.env);
    close(fd);
    /* The keeper trusts nobody with this either: back to the beginning, or it would only grow. */
    s->env.n = 0;
    free(s->cwd);
    s->cwd = xstrdup("/");
    return 0;
}
