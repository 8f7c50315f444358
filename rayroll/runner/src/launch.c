#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "state.h"
#include "system.h"
#include "wire.h"

enum {
    ARG_MOST = 128 << 10, /* MAX_ARG_STRLEN: Linux refuses one argument or one NAME=value of this size, its NUL included */
    RLIMITS = 8,
};

struct shared shared = {-1, -1};
const int ignored_signals[IGNORED_COUNT] = {SIGPIPE, SIGHUP, SIGXFSZ, SIGXCPU};

static struct { int resource; rlim_t value; } rlimits[RLIMITS];
static int rlimit_count;

void shared_open(void) {
    static const char text[] = "unset BASH_ENV\n" BASH_TRAP "\n";
    shared.rc_fd = memory_file("rc", text, sizeof text - 1, SEALED);
    shared.runner_fd = open("/proc/self/exe", O_PATH | O_CLOEXEC); /* it may be executable and not readable */
}

bool rlimit_add(const char *rule) {
    static const struct { const char *name; int resource; } names[] = {
        {"nproc", RLIMIT_NPROC}, {"as", RLIMIT_AS},     {"fsize", RLIMIT_FSIZE}, {"nofile", RLIMIT_NOFILE},
        {"core", RLIMIT_CORE},   {"cpu", RLIMIT_CPU},   {"data", RLIMIT_DATA},   {"stack", RLIMIT_STACK},
    };
    const char *equals = strchr(rule, '=');
    char *end;
    if (!equals || rlimit_count == RLIMITS) return false;
    errno = 0;
    unsigned long long value = strtoull(equals + 1, &end, 10);
    if (equals[1] < '0' || equals[1] > '9' || *end || errno) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].name) == (size_t)(equals - rule) && !strncmp(rule, names[i].name, (size_t)(equals - rule))) {
            rlimits[rlimit_count].resource = names[i].resource;
            rlimits[rlimit_count++].value = value;
            return true;
        }
    return false;
}

/* By absolute path only: PATH belongs to the agent. */
const char *find_shell(void) {
    static const char *const shells[] = {"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh",
                                         "/usr/bin/sh", "/busybox/sh"};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (access(shells[i], X_OK) == 0) return shells[i];
    return NULL;
}

/* --- lists --- */

struct list { char **items; size_t n; }; /* NULL-terminated once something is in it */

static void list_add(struct list *l, const char *item) {
    if ((l->n & (l->n + 1)) == 0) l->items = xrealloc(l->items, 2 * (l->n + 1) * sizeof *l->items);
    l->items[l->n++] = xstrdup(item);
    l->items[l->n] = NULL;
}

static void set_variable(struct list *l, const char *entry) {
    for (size_t i = 0; i < l->n; i++)
        if (!compare_names(l->items[i], entry)) {
            free(l->items[i]);
            l->items[i] = xstrdup(entry);
            return;
        }
    list_add(l, entry);
}

static void set_pair(struct list *l, const char *name, const char *value) {
    struct buf entry = {0};
    buf_add(&entry, name, strlen(name));
    buf_add(&entry, "=", 1);
    buf_add(&entry, value, strlen(value) + 1);
    set_variable(l, (char *)entry.p);
    buf_free(&entry);
}

/* Calls `add` for every NUL-terminated (or last, unterminated) item. */
static void each_item(struct bytes items, struct list *l, void (*add)(struct list *, const char *)) {
    for (size_t at = 0; at < items.n;) {
        size_t n = strnlen((const char *)items.p + at, items.n - at);
        char *item = xstrndup(items.p + at, n);
        add(l, item);
        free(item);
        at += n + 1;
    }
}

static const char *value_of(const struct list *env, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < env->n; i++)
        if (!strncmp(env->items[i], name, n) && env->items[i][n] == '=') return env->items[i] + n + 1;
    return NULL;
}

static void free_items(char **items) {
    for (char **i = items; i && *i; i++) free(*i);
    free(items);
}

/* --- preparing --- */

static void prepare_carrying(struct launch *l, bool compares) {
    l->carry = l->carry && shared.rc_fd >= 0 && shared.runner_fd >= 0 &&
               (l->state_fd = memory_file("state", NULL, 0, UNSEALED)) >= 0;
    if (!l->carry || compares) return;
    l->carry = pipe2(l->ask, O_CLOEXEC | O_NONBLOCK) == 0 && pipe2(l->answer, O_CLOEXEC | O_NONBLOCK) == 0;
    /* The shell opens its ends again by name (so that they block there and not here), as who it is by then. Where it may
     * not, the question fails and the helper runs every time. */
    if (l->carry && l->user && !user_is_us(l->user))
        (void)!(fchown(l->ask[0], l->user->uid, (gid_t)-1) || fchown(l->answer[0], l->user->uid, (gid_t)-1));
}

/* A BASH_ENV of the agent's own acts in the shells that its command starts, as in a session that goes on; not in the
 * command's own shell, whose exit code it could change. */
static int rc_with(const char *bash_env, bool carry) {
    struct buf text = {0};
    buf_add(&text, "export BASH_ENV='", 17);
    for (const char *c = bash_env; *c; c++) buf_add(&text, *c == '\'' ? "'\\''" : c, *c == '\'' ? 4 : 1);
    buf_add(&text, "'\n", 2);
    if (carry) buf_add(&text, BASH_TRAP "\n", sizeof BASH_TRAP);
    int fd = memory_file("rc", text.p, text.n, SEALED);
    buf_free(&text);
    return fd;
}

/* The script is one argument where it fits, so that bash prints just what `bash -c` prints; a descriptor where not. */
static const char *shell_args(struct launch *l, struct bytes script, struct list *args, struct list *env, const char **code) {
    const char *shell = find_shell(), *bash_env = value_of(env, "BASH_ENV");
    if (!shell) {
        *code = "shell";
        return "there is no shell (looked for bash and sh in /bin, /usr/bin, /usr/local/bin, /busybox)";
    }
    bool fits = script.n < ARG_MOST - 32, is_bash = strstr(shell, "/bash") != NULL;
    prepare_carrying(l, is_bash);
    l->program = xstrdup(shell);
    if (!fits && (l->script_fd = memory_file("script", script.p, script.n, UNSEALED)) < 0) return "no memory for the script";
    /* In POSIX mode bash reads no BASH_ENV, and is handed its script as any other shell. */
    l->by_rc = (l->carry || bash_env) && is_bash && !value_of(env, "POSIXLY_CORRECT");
    if (l->by_rc && bash_env && (l->rc_fd = rc_with(bash_env, l->carry)) < 0) return "no memory for the start-up file";
    if (l->by_rc && bash_env) l->bash_env = xstrdup(bash_env - strlen("BASH_ENV=")); /* the whole entry */
    if (l->by_rc) set_pair(env, "BASH_ENV", RC_PATH);
    const char *name = is_bash ? "bash" : "sh"; /* what its messages begin with */
    list_add(args, name);
    char *text = xstrndup(script.p, script.n);
    if (!l->carry || l->by_rc) {
        if (fits) list_add(args, "-c");
        list_add(args, fits ? text : SCRIPT_PATH);
    } else {
        list_add(args, "-c"); /* one `eval`, and `shift` first: the script does not see itself as $1 */
        const char *const traps[2][2] = {{SH_TRAP "; . " SCRIPT_PATH, SH_TRAP "; eval \"shift; $1\""},
                                         {BASH_TRAP "; . " SCRIPT_PATH, BASH_TRAP "; eval \"shift; $1\""}};
        list_add(args, traps[is_bash][fits]);
        list_add(args, name);
        if (fits) list_add(args, text);
    }
    free(text);
    return NULL;
}

bool launch_prepare(struct launch *l, const char **code, const char **reason) {
    struct list env = {0}, args = {0};
    struct bytes script = field(l->request, T_SCRIPT), argv = field(l->request, T_ARGV), given = field(l->request, T_STDIN);
    u64 flags = field_num(l->request, T_FLAGS, 0);
    bool is_clean = flags & FLAG_CLEAN_ENV;
    char *cwd = field_text(l->request, T_CWD);

    l->cwd_given = cwd != NULL;
    l->start_cwd = cwd ? cwd : xstrdup(l->cwd);
    l->carry = (flags & FLAG_CARRY) && !is_clean && script.p;

    if (!is_clean) each_item(l->env, &env, list_add);
    if (l->cwd_given) set_pair(&env, "PWD", l->start_cwd);
    if (l->user && (l->identify || is_clean)) {
        set_pair(&env, "HOME", l->user->home);
        set_pair(&env, "USER", l->user->name);
        set_pair(&env, "LOGNAME", l->user->name);
    }
    each_item(field(l->request, T_ENV), &env, set_variable);

    *code = "arguments";
    *reason = NULL;
    if (script.p && argv.p) *reason = "both a script and arguments";
    else if (script.p) *reason = shell_args(l, script, &args, &env, code);
    else if (argv.n) each_item(argv, &args, list_add);
    else *reason = "neither a script nor arguments";
    for (size_t i = 0; i < env.n && !*reason; i++)
        if (strlen(env.items[i]) >= ARG_MOST) *reason = "a variable is longer than 131071 bytes";
    /* A memory file and not a pipe: it needs no feeding, and its end is the end of file. */
    if (!*reason && given.n && (l->in_fd = memory_file("stdin", given.p, given.n, UNSEALED)) < 0)
        *reason = "no memory for standard input";
    if (!env.items) {
        env.items = xmalloc(sizeof *env.items);
        *env.items = NULL;
    }
    l->envp = env.items;
    l->args = args.items;
    return !*reason;
}

void launch_free(struct launch *l) {
    int *const fds[] = {&l->out_fd, &l->in_fd, &l->script_fd, &l->rc_fd, &l->last_fd, &l->state_fd, &l->ask[0], &l->ask[1],
                        &l->answer[0], &l->answer[1]};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close_fd(fds[i]);
    free_items(l->envp);
    free_items(l->args);
    free(l->program);
    free(l->start_cwd);
    free(l->bash_env);
    l->envp = l->args = NULL;
    l->program = l->start_cwd = l->bash_env = NULL;
}

/* --- in the child: its memory is the keeper's until the exec --- */

static bool enter_directory(struct launch *l) {
    if (chdir(l->start_cwd) == 0) return true;
    if (l->cwd_given) return false;
    l->fell_back = true;
    for (char *slash; (slash = strrchr(l->start_cwd, '/')) && slash != l->start_cwd;) {
        *slash = 0;
        if (chdir(l->start_cwd) == 0) return true;
    }
    l->start_cwd[1] = 0; /* "/" */
    return chdir("/") == 0;
}

static void hand_over_descriptors(const struct launch *l) {
    if (l->in_fd >= 0) dup2(l->in_fd, 0);
    dup2(l->out_fd, 1);
    dup2(l->out_fd, 2);
    if (l->script_fd >= 0) dup2(l->script_fd, FD_SCRIPT);
    if (l->by_rc) dup2(l->rc_fd >= 0 ? l->rc_fd : shared.rc_fd, FD_RC);
    if (!l->carry) return;
    int start = open(".", O_PATH | O_CLOEXEC);
    if (start >= 0) dup2(start, FD_START);
    dup2(l->state_fd, FD_STATE);
    dup2(shared.runner_fd, FD_RUNNER);
    if (l->last_fd >= 0) dup2(l->last_fd, FD_LAST);
    if (l->ask[1] >= 0) dup2(l->ask[1], FD_ASK);
    if (l->answer[0] >= 0) dup2(l->answer[0], FD_ANSWER);
}

static void reset_signals(void) {
    sigset_t none;
    for (int i = 0; i < IGNORED_COUNT; i++) signal(ignored_signals[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* A name without a slash is looked for in the PATH it will run with. */
static void execute(struct launch *l) {
    if (l->program || strchr(l->args[0], '/')) {
        execve(l->program ? l->program : l->args[0], l->args, l->envp);
        return;
    }
    const char *path = "/usr/local/bin:/usr/bin:/bin";
    char full[PATH_MAX];
    int error = ENOENT;
    for (char **e = l->envp; *e; e++)
        if (!strncmp(*e, "PATH=", 5)) path = *e + 5;
    while (*path) {
        size_t n = strcspn(path, ":");
        if (n && snprintf(full, sizeof full, "%.*s/%s", (int)n, path, l->args[0]) < (int)sizeof full) {
            execve(full, l->args, l->envp);
            if (errno != ENOENT && errno != ENOTDIR) error = errno;
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) break;
        }
        path += n + (path[n] == ':');
    }
    errno = error;
}

/* The number of processes before we become the user who is counted; the number of descriptors after ours, which are high,
 * are in their places. */
static void limit_resources(bool descriptors) {
    for (int i = 0; i < rlimit_count; i++) {
        struct rlimit limit = {rlimits[i].value, rlimits[i].value};
        if ((rlimits[i].resource == RLIMIT_NOFILE) == descriptors) setrlimit(rlimits[i].resource, &limit);
    }
}

static void become_command(struct launch *l) {
    setsid();
    limit_resources(false);
    l->stage = STAGE_USER;
    if (l->user && !user_become(l->user)) return;
    l->stage = STAGE_DIRECTORY;
    if (!enter_directory(l)) return;
    l->stage = STAGE_PROGRAM;
    hand_over_descriptors(l);
    limit_resources(true);
    reset_signals();
    execute(l);
}

pid_t launch_start(struct launch *l) {
    l->error = 0;
    l->fell_back = false;
    pid_t pid = vfork();
    if (pid == 0) {
        become_command(l);
        l->error = errno ? errno : EIO;
        _exit(127);
    }
    if (pid < 0) {
        l->stage = STAGE_FORK;
        l->error = errno;
        return -1;
    }
    if (!l->error) return pid;
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
    return -1;
}
