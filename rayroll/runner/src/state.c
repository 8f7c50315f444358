#include "state.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "main.h"
#include "system.h"

extern char **environ;

enum { STATE_MAGIC = 0x32535252 }; /* "RRS2" */
struct state_head { u32 magic, cwd_n, env_n, text_n; }; /* text: what was there before */

struct state born;
static struct state *states[STATE_USERS];
static int state_count;

/* --- lists of variables --- */

static size_t name_length(const char *entry) { return strcspn(entry, "="); }

int compare_names(const char *a, const char *b) {
    size_t n = name_length(a), m = name_length(b);
    int order = memcmp(a, b, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

static int by_name(const void *a, const void *b) { return compare_names(*(const char *const *)a, *(const char *const *)b); }

struct list { const char **items; size_t n; };

static void list_add(struct list *l, const char *item) {
    if ((l->n & (l->n - 1)) == 0) l->items = xrealloc(l->items, (l->n ? 2 * l->n : 1) * sizeof *l->items);
    l->items[l->n++] = item;
}

static void list_sort(struct list *l) {
    if (l->n) qsort(l->items, l->n, sizeof *l->items, by_name);
}

static struct list list_of(const struct buf *env) { /* the last item is NUL-terminated: state_read saw to it */
    struct list l = {0};
    for (size_t at = 0; at < env->n; at += strlen((const char *)env->p + at) + 1) list_add(&l, (const char *)env->p + at);
    return l;
}

static void add_entry(struct buf *env, const char *entry) { buf_add(env, entry, strlen(entry) + 1); }

static bool has_name(const char *entry, const char *name) { return !strncmp(entry, name, strlen(name)) && entry[strlen(name)] == '='; }

/* Set by the shell or by us for one command; carrying them would be noise. With SSH_CLIENT, Debian's bash reads ~/.bashrc
 * for every `bash -c` and not BASH_ENV. */
static bool is_carried(const char *entry) {
    static const char *const names[] = {"_", "_rr", "_rs", "SHLVL", "SSH_CLIENT", "SSH2_CLIENT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (has_name(entry, names[i])) return false;
    return name_length(entry) && strchr(entry, '=') && strcmp(entry, "BASH_ENV=" RC_PATH) && strcmp(entry, "POSIXLY_CORRECT=rr");
}

static void own_environment(struct buf *env) {
    struct list l = {0};
    for (char **e = environ; *e; e++)
        if (is_carried(*e)) list_add(&l, *e);
    list_sort(&l);
    for (size_t i = 0; i < l.n; i++)
        if (!i || compare_names(l.items[i - 1], l.items[i])) add_entry(env, l.items[i]);
    free(l.items);
}

static char *own_directory(void) {
    char path[PATH_MAX];
    return getcwd(path, sizeof path) && path[0] == '/' ? xstrdup(path) : NULL;
}

/* --- the file --- */

static bool state_write(int fd, const char *cwd, const struct buf *env, struct bytes text) {
    struct buf out = {0};
    struct state_head head = {STATE_MAGIC, (u32)strlen(cwd), (u32)env->n, (u32)text.n};
    buf_add(&out, cwd, head.cwd_n);
    buf_add(&out, env->p, env->n);
    buf_add(&out, text.p, text.n);
    /* The body first, the head last: a reader sees all of it or nothing. */
    bool ok = ftruncate(fd, 0) == 0 && pwrite(fd, out.p, out.n, sizeof head) == (ssize_t)out.n &&
              pwrite(fd, &head, sizeof head, 0) == (ssize_t)sizeof head;
    buf_free(&out);
    return ok;
}

bool state_read(int fd, struct left *left) {
    struct state_head head;
    *left = (struct left){0};
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != STATE_MAGIC) return false;
    left->too_large = head.env_n > STATE_MOST;
    if (head.cwd_n == 0 || head.cwd_n >= PATH_MAX || head.text_n > TEXT_MOST || left->too_large) return false;
    size_t size = (size_t)head.cwd_n + head.env_n, whole = size + head.text_n;
    u8 *body = xmalloc(whole);
    bool ok = pread(fd, body, whole, sizeof head) == (ssize_t)whole && body[0] == '/' &&
              !memchr(body, 0, head.cwd_n) && (head.env_n == 0 || body[size - 1] == 0);
    if (ok) {
        left->cwd = xstrndup(body, head.cwd_n);
        buf_add(&left->text, body + size, head.text_n);
        for (size_t i = head.cwd_n; i < size; i += strlen((char *)body + i) + 1)
            if (is_carried((char *)body + i)) add_entry(&left->env, (char *)body + i);
    }
    free(body);
    return ok;
}

void left_free(struct left *left) {
    free(left->cwd);
    buf_free(&left->env);
    buf_free(&left->text);
}

u64 text_hash(int fd, u64 text_n) {
    static u8 chunk[16 << 10];
    u64 hash = 0;
    for (u64 at = 0; at < text_n;) {
        size_t part = text_n - at < sizeof chunk ? (size_t)(text_n - at) : sizeof chunk;
        ssize_t n = pread(fd, chunk, part, (off_t)at);
        if (n <= 0) return 0;
        hash = hash_bytes(hash, chunk, (size_t)n);
        at += (u64)n;
    }
    return hash;
}

int state_dump_main(void) {
    struct stat st;
    struct buf env = {0};
    const char *logical = getenv("PWD");
    char *cwd = own_directory();
    if (!cwd) cwd = xstrdup(logical && *logical == '/' ? logical : "/"); /* deleted: the next command looks for a parent */
    own_environment(&env);
    static u8 text[TEXT_MOST];
    bool fits = fstat(FD_STATE, &st) == 0 && st.st_size <= TEXT_MOST;
    ssize_t text_n = fits ? pread(FD_STATE, text, sizeof text, 0) : 0;
    return state_write(FD_STATE, cwd, &env, (struct bytes){text, text_n > 0 ? (size_t)text_n : 0}) ? 0 : 1;
}

/* --- what a command changed --- */

void state_delta(const struct left *left, const char *start_cwd, char *const *start_env, const char *start_bash_env,
                 struct buf *delta) {
    struct list before = {0}, after = list_of(&left->env);
    u32 cwd_n = strcmp(left->cwd, start_cwd) ? (u32)strlen(left->cwd) : 0;
    buf_add(delta, &cwd_n, sizeof cwd_n);
    buf_add(delta, left->cwd, cwd_n);
    for (char *const *e = start_env; *e; e++)
        if (is_carried(*e)) list_add(&before, *e);
    if (start_bash_env) list_add(&before, start_bash_env);
    list_sort(&before);
    list_sort(&after);
    for (size_t i = 0, j = 0; i < before.n || j < after.n;) {
        int order = i == before.n ? 1 : j == after.n ? -1 : compare_names(before.items[i], after.items[j]);
        if (order < 0) {
            buf_add(delta, before.items[i], name_length(before.items[i]));
            buf_add(delta, "", 1);
        } else if (order > 0 || strcmp(before.items[i], after.items[j])) {
            if (!j || compare_names(after.items[j - 1], after.items[j])) add_entry(delta, after.items[j]);
        }
        i += order <= 0;
        j += order >= 0;
    }
    free(before.items);
    free(after.items);
}

bool state_apply(struct state *s, struct bytes delta) {
    u32 cwd_n;
    struct buf changes = {0}, env = {0};
    if (delta.n < sizeof cwd_n) return false;
    memcpy(&cwd_n, delta.p, sizeof cwd_n);
    if (cwd_n >= PATH_MAX || delta.n - sizeof cwd_n < cwd_n) return false;
    size_t at = sizeof cwd_n + cwd_n;
    buf_add(&changes, delta.p + at, delta.n - at);
    if (changes.n && changes.p[changes.n - 1]) buf_add(&changes, "", 1);
    struct list old = list_of(&s->env), new = list_of(&changes);
    for (size_t i = 0, j = 0; i < old.n || j < new.n;) { /* both are sorted */
        int order = i == old.n ? 1 : j == new.n ? -1 : compare_names(old.items[i], new.items[j]);
        if (order < 0) add_entry(&env, old.items[i]);
        else if (strchr(new.items[j], '=')) add_entry(&env, new.items[j]);
        i += order <= 0;
        j += order >= 0;
    }
    free(old.items);
    free(new.items);
    bool fits = env.n + cwd_n <= STATE_MOST;
    bool changed = fits && (cwd_n || changes.n);
    buf_free(&changes);
    if (!changed) {
        buf_free(&env);
        return fits;
    }
    buf_free(&s->env);
    s->env = env;
    if (cwd_n) {
        free(s->cwd);
        s->cwd = xstrndup(delta.p + sizeof cwd_n, cwd_n);
    }
    s->generation++;
    return true;
}

void state_identify(struct state *s, const struct user *who) {
    const char *const pairs[][2] = {{"HOME=", who->home}, {"LOGNAME=", who->name}, {"USER=", who->name}};
    struct buf delta = {0};
    u32 cwd_n = 0;
    buf_add(&delta, &cwd_n, sizeof cwd_n);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        buf_add(&delta, pairs[i][0], strlen(pairs[i][0]));
        add_entry(&delta, pairs[i][1]);
    }
    state_apply(s, bytes_of(&delta));
    buf_free(&delta);
    s->is_fresh = false;
}

/* --- everybody's state --- */

static struct state *state_new(const char *user) {
    struct state *s = xmalloc(sizeof *s);
    *s = (struct state){
        .user = user ? xstrdup(user) : NULL, .is_fresh = true, .cwd = xstrdup(born.cwd), .mark.text_fd = -1};
    buf_add(&s->env, born.env.p, born.env.n);
    states[state_count++] = s;
    return s;
}

void states_start(void) {
    static const char *const foreign[] = {"OLDPWD", "SSH_CONNECTION", "SSH_TTY", "SSH_ORIGINAL_COMMAND"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) unsetenv(foreign[i]);
    /* With no terminal, a program that would open an editor or a pager must fail at once, not wait. */
    setenv("TERM", "dumb", 0);
    setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 0);
    born.cwd = own_directory();
    if (!born.cwd) born.cwd = xstrdup("/");
    own_environment(&born.env);
    state_new(NULL);
}

void states_forget(void) {
    while (state_count) {
        struct state *s = states[--state_count];
        free(s->user);
        free(s->cwd);
        buf_free(&s->env);
        close_fd(&s->mark.text_fd);
        free(s);
    }
    state_new(NULL);
}

struct state *state_find(const char *user) {
    if (one_shot) user = NULL; /* one request, one file of state */
    for (int i = 0; i < state_count; i++)
        if (user && states[i]->user ? !strcmp(user, states[i]->user) : user == states[i]->user) return states[i];
    return NULL;
}

struct state *state_of(const char *user) {
    struct state *known = state_find(user);
    return known || state_count == STATE_USERS ? known : state_new(user);
}

bool state_load(struct state *s, int fd) {
    struct left left;
    if (!state_read(fd, &left)) return false;
    struct list l = list_of(&left.env);
    list_sort(&l);
    s->env.n = 0;
    for (size_t i = 0; i < l.n; i++) add_entry(&s->env, l.items[i]);
    free(l.items);
    free(s->cwd);
    s->cwd = xstrdup(left.cwd);
    s->is_fresh = false;
    left_free(&left);
    return true;
}

bool state_save(const struct state *s, int fd) { return state_write(fd, s->cwd, &s->env, (struct bytes){NULL, 0}); }
