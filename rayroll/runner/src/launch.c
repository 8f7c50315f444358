/* From a request to a running shell: which program, with which arguments, variables, directory, user and limits. */
#include "rr.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

struct rlimit_rule rlimit_rules[8];
int rlimit_count;

/* Linux refuses one argument or one NAME=value of this many bytes (MAX_ARG_STRLEN), end byte included. */
enum { ARG_MAX_BYTES = 128 << 10, ARGS_MAX = 64 << 10 };

static bool is_bash(const char *shell) { return strstr(shell, "/bash") != NULL; }

/* By absolute path only: PATH belongs to the agent. */
const char *find_shell(void) {
    static const char *const shells[] = {"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh",
                                         "/usr/bin/sh", "/busybox/sh"};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (access(shells[i], X_OK) == 0) return shells[i];
    return NULL;
}

static bool as_number(const char *text, unsigned long *value) {
    char *end;
    errno = 0;
    *value = strtoul(text, &end, 10);
    return *text && !*end && !errno && *value < 0xffffffffu;
}

/* "name", "uid", "uid:gid", "name:group", as Docker's USER. */
bool find_user(const char *text, uid_t *uid, gid_t *gid, char home[256], char name[64]) {
    char user[128];
    unsigned long number;
    if (snprintf(user, sizeof user, "%s", text) >= (int)sizeof user) return false;
    char *group = strchr(user, ':');
    if (group) *group++ = 0;
    bool numeric = as_number(user, &number);
    struct passwd *entry = numeric ? getpwuid((uid_t)number) : getpwnam(user);
    if (!entry && !numeric) return false;
    *uid = entry ? entry->pw_uid : (uid_t)number;
    *gid = entry ? entry->pw_gid : (gid_t)number;
    snprintf(home, 256, "%s", entry ? entry->pw_dir : "/");
    snprintf(name, 64, "%.63s", entry ? entry->pw_name : user);
    if (!group) return true;
    if (as_number(group, &number)) {
        *gid = (gid_t)number;
        return true;
    }
    struct group *found = getgrnam(group);
    if (found) *gid = found->gr_gid;
    return found != NULL;
}

/* --- variables --- */

struct list { char **items; size_t n; };

static void list_add(struct list *l, const char *entry) {
    char **grown = realloc(l->items, (l->n + 2) * sizeof *grown);
    if (!grown) _exit(70);
    l->items = grown;
    l->items[l->n++] = xstrndup(entry, strlen(entry));
    l->items[l->n] = NULL;
}

static void set_variable(struct list *l, const char *entry) {
    size_t name = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < l->n; i++)
        if (!strncmp(l->items[i], entry, name)) {
            free(l->items[i]);
            l->items[i] = xstrndup(entry, strlen(entry));
            return;
        }
    list_add(l, entry);
}

static void set_pair(struct list *l, const char *name, const char *value) {
    char entry[512];
    snprintf(entry, sizeof entry, "%s=%s", name, value);
    set_variable(l, entry);
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

/* A program named without a slash is looked up in the PATH it will run with. */
static char *resolved(const char *name, char *const *envp) {
    const char *path = "/usr/local/bin:/usr/bin:/bin";
    char full[PATH_MAX];
    if (strchr(name, '/')) return xstrndup(name, strlen(name));
    for (char *const *e = envp; e && *e; e++)
        if (!strncmp(*e, "PATH=", 5)) path = *e + 5;
    while (*path) {
        size_t n = strcspn(path, ":");
        if (n && snprintf(full, sizeof full, "%.*s/%s", (int)n, path, name) < (int)sizeof full && access(full, X_OK) == 0)
            return xstrndup(full, strlen(full));
        path += n + (path[n] == ':');
    }
    return xstrndup(name, strlen(name));
}

/* The script is one argument where it fits, so that bash prints just what `bash -c` prints; a descriptor where not. */
static const char *shell_args(struct launch *l, struct bytes script, struct list *args) {
    const char *shell = find_shell();
    if (!shell) return "shell: the image has no shell (looked for bash and sh in /bin, /usr/bin, /usr/local/bin, /busybox)";
    if (memchr(script.p, 0, script.n)) return "arguments: the script holds a NUL byte";
    bool bash = is_bash(shell), fits = script.n + 32 < ARG_MAX_BYTES;
    char file[40], trap[160];
    snprintf(file, sizeof file, "/proc/self/fd/%d", FD_SCRIPT);
    if (!fits && (l->script_fd = memfd_with("script", script.p, script.n, false)) < 0)
        return "arguments: no memory for the script";
    char *text = xstrndup(script.p, script.n);
    l->program = xstrndup(shell, strlen(shell));
    list_add(args, bash ? "bash" : "sh"); /* what its messages begin with */
    if (bash || !l->carry) {
        if (fits) list_add(args, "-c");
        list_add(args, fits ? text : file);
    } else {
        /* One eval: `shift` first, so that the script does not see itself as $1. */
        snprintf(trap, sizeof trap, STATE_TRAP "; %s %s", fits ? "eval" : ".", fits ? "\"shift; $1\"" : file);
        list_add(args, "-c");
        list_add(args, trap);
        list_add(args, "sh");
        if (fits) list_add(args, text);
    }
    free(text);
    return NULL;
}

const char *launch_prepare(struct launch *l, struct bytes request, int out_fd) {
    struct list env = {0}, args = {0};
    struct bytes script = field(request, T_SCRIPT), argv = field(request, T_ARGV), given = field(request, T_STDIN);
    u64 flags = field_num(request, T_FLAGS, 0);
    char home[256];

    *l = (struct launch){.out_fd = out_fd, .in_fd = -1, .state_fd = -1, .script_fd = -1};
    l->carry = (flags & FLAG_CARRY) && script.p;
    l->cwd = field_text(request, T_CWD);
    l->cwd_given = l->cwd != NULL;
    if (!l->cwd) l->cwd = xstrndup(carried.cwd, strlen(carried.cwd));

    if (!(flags & FLAG_CLEAN_ENV)) each_item((struct bytes){carried.env.p, carried.env.n}, &env, list_add);
    if (l->cwd_given) set_pair(&env, "PWD", l->cwd);
    char *user = field_text(request, T_USER);
    if (user) {
        bool found = find_user(user, &l->uid, &l->gid, home, l->user);
        free(user);
        if (!found) return "user: no such user in the sandbox";
        l->switch_user = l->uid != getuid() || l->gid != getgid();
        if (l->switch_user && geteuid() != 0) return "user: the runner is not root here and cannot become another user";
        set_pair(&env, "HOME", home);
        set_pair(&env, "USER", l->user);
        set_pair(&env, "LOGNAME", l->user);
    }
    each_item(field(request, T_ENV), &env, set_variable);

    const char *problem = NULL;
    if (script.p) problem = shell_args(l, script, &args);
    else if (argv.p && argv.n) each_item(argv, &args, list_add);
    else problem = "arguments: neither a script nor arguments";
    if (!problem && l->carry && is_bash(l->program)) {
        char entry[64];
        snprintf(entry, sizeof entry, "BASH_ENV=/proc/self/fd/%d", FD_RC);
        set_variable(&env, entry);
    }
    if (!env.items) env.items = calloc(1, sizeof *env.items);
    l->envp = env.items;
    l->args = args.items;
    if (args.n && !l->program) l->program = resolved(args.items[0], env.items);
    for (size_t i = 0; i < env.n && !problem; i++)
        if (strlen(env.items[i]) >= ARG_MAX_BYTES) problem = "arguments: a variable is longer than 131071 bytes";
    if (!problem && l->carry && (l->state_fd = memfd_with("state", "", 0, false)) < 0)
        problem = "arguments: no memory for the state";
    /* A memfd, not a pipe: it needs no feeding, and its end is the end of file. */
    if (!problem && given.p && given.n && (l->in_fd = memfd_with("stdin", given.p, given.n, false)) < 0)
        problem = "arguments: no memory for standard input";
    return problem;
}

static void free_list(char **items) {
    for (char **i = items; i && *i; i++) free(*i);
    free(items);
}

void launch_free(struct launch *l) {
    free_list(l->envp);
    free_list(l->args);
    free(l->program);
    free(l->cwd);
    if (l->in_fd >= 0) close(l->in_fd);
    if (l->script_fd >= 0) close(l->script_fd);
    if (l->out_fd >= 0) close(l->out_fd);
}

/* --- inside the child; memory is shared with the keeper until the exec --- */

void switch_user(const struct launch *l) {
    if (!l->switch_user) return;
    if (initgroups(l->user, l->gid)) setgroups(1, &l->gid);
    if (setgid(l->gid) || setuid(l->uid)) _exit(126);
}

static bool enter_directory(struct launch *l) {
    if (chdir(l->cwd) == 0) return true;
    if (l->cwd_given) return false;
    l->fell_back = true;
    for (char *slash; (slash = strrchr(l->cwd, '/')) && slash != l->cwd;) {
        *slash = 0;
        if (chdir(l->cwd) == 0) return true;
    }
    return chdir("/") == 0;
}

static void become_command(struct launch *l) {
    static const int dropped[] = {CAP_SYS_PTRACE, CAP_SYS_ADMIN}; /* with either, the runner could be read or traced */
    sigset_t none;
    setsid();
    if (l->in_fd >= 0) dup2(l->in_fd, 0);
    dup2(l->out_fd, 1);
    dup2(l->out_fd, 2);
    if (l->state_fd >= 0) {
        dup2(l->state_fd, FD_STATE);
        dup2(runner_fd, FD_RUNNER);
        if (is_bash(l->program)) dup2(rc_fd, FD_RC);
    }
    if (l->script_fd >= 0) dup2(l->script_fd, FD_SCRIPT);
    for (int i = 0; i < rlimit_count; i++) {
        struct rlimit limit = {rlimit_rules[i].value, rlimit_rules[i].value};
        setrlimit(rlimit_rules[i].resource, &limit);
    }
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) prctl(PR_CAPBSET_DROP, dropped[i], 0, 0, 0);
    switch_user(l);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

pid_t launch_child(struct launch *l, int *error) {
    volatile int failed = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        become_command(l);
        if (enter_directory(l)) execve(l->program, l->args, l->envp);
        failed = errno;
        _exit(127);
    }
    *error = pid < 0 ? errno : failed;
    return pid < 0 || failed ? -1 : pid;
}
