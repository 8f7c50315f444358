/* From a request to a running program: which one, with which arguments, variables, directory, user and limits. */
#ifndef RR_LAUNCH_H
#define RR_LAUNCH_H

#include <sys/types.h>

#include "bytes.h"
#include "user.h"

enum stage { STAGE_USER = 1, STAGE_DIRECTORY, STAGE_PROGRAM, STAGE_FORK };

struct launch {
    /* given */
    struct bytes request, env; /* env: what is carried */
    const char *cwd;           /* to start in; what is carried, unless the request has its own */
    const struct user *user;   /* NULL: the runner's own */
    bool identify;             /* set HOME, USER and LOGNAME: nothing is carried for this user yet */
    int out_fd, last_fd; /* last_fd: what the shell before printed, for bash to compare; -1 */
    /* prepared */
    bool carry, cwd_given, by_rc; /* by_rc: bash has a start-up file of ours */
    char *program, *start_cwd, *bash_env; /* bash_env: the agent's own entry, in whose place bash gets ours; or NULL */
    char **args, **envp;
    int in_fd, script_fd, rc_fd, state_fd; /* rc_fd: -1 where the usual one does */
    int ask[2], answer[2]; /* pipes for shells that cannot compare: they write ask[1] and read answer[0] */
    /* what became of it */
    bool fell_back; /* the carried directory is gone; a parent was taken */
    enum stage stage;
    int error;
};

#define NOT_LAUNCHED \
    ((struct launch){.out_fd = -1, .last_fd = -1, .in_fd = -1, .script_fd = -1, .rc_fd = -1, .state_fd = -1, .ask = {-1, -1}, .answer = {-1, -1}})

/* What shells may inherit, opened once: bash's usual start-up file (sealed), and the runner itself. */
struct shared { int rc_fd, runner_fd; };
extern struct shared shared;
void shared_open(void);

/* Ignored by the runner and its keepers, which live on when a pipe breaks, a terminal goes, or somebody of their own uid
 * lowers their limits; commands get them back. */
enum { IGNORED_COUNT = 4 };
extern const int ignored_signals[IGNORED_COUNT];

bool rlimit_add(const char *rule); /* NAME=VALUE, for every command */
const char *find_shell(void);      /* NULL: there is none */

bool launch_prepare(struct launch *l, const char **code, const char **reason); /* false: the request cannot work */
pid_t launch_start(struct launch *l); /* returns after the exec; -1 where it failed, with stage and error */
void launch_free(struct launch *l);

#endif
