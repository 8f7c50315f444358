/* The directory and the exported variables that one command leaves to the next.
 *
 * No long-lived shell: each command's shell, as it exits, runs `runner state` from an EXIT trap. That helper sees the
 * shell's directory as its own and the exported variables as its environment, and writes both, in binary, to a memory
 * file that the keeper reads afterwards. So no shell text is parsed, and `exit`, `set -e` or an open quote lose nothing.
 *
 * The helper costs the shell a fork, so it runs only where something changed: the trap first prints `export -p` into the
 * same file and compares it with what the command before printed. bash reads both; other shells cannot read to the end of
 * a file, and ask the keeper, which takes two more wake-ups. The keeper compares as well, as a hash. */
#ifndef RR_STATE_H
#define RR_STATE_H

#include "bytes.h"
#include "user.h"

/* Descriptors of a shell whose state is carried. 200 and above: scripts redirect low ones (`exec 3>&-`). */
enum {
    FD_START = 209,  /* the directory it started in */
    FD_STATE = 210,  /* the memory file: what was printed, then what the helper writes in its place */
    FD_RC = 211,     /* bash's start-up file */
    FD_SCRIPT = 212, /* a script too long for an argument */
    FD_RUNNER = 213, /* this program */
    FD_ASK = 214,    /* pipes to and from the keeper */
    FD_ANSWER = 215,
    FD_LAST = 216,   /* what the command before printed, sealed */
};
#define RC_PATH "/proc/self/fd/211"
#define SCRIPT_PATH "/proc/self/fd/212"

/* What a shell runs at its end, whatever ends it. It may not fail, print, hang or change the exit code:
 * - by /proc and not `>&210`, for dash takes one digit there; `>|` for `set -C`; on a group, where a descriptor that was
 *   closed is no fatal error; `|| :` for `set -e`, which covers all of it; into /dev/null for `set -x` and DEBUG traps;
 * - in POSIX mode and with a backslash, so that no function and no alias of the agent's own stands in for `export` and
 *   `times`; `times` because it always prints something, which is the question, or bash's mark that nothing changed;
 * - SIGXFSZ is ignored, for a shell under `ulimit -f` would die of the first byte;
 * - the helper is not `exec`ed: bash runs the trap also when it dies of a signal, and only a shell that is still there
 *   afterwards dies of it (143, not 0). */
#define STATE_TRAP(dump, is_same)                                                                                      \
    "trap '{ POSIXLY_CORRECT=${POSIXLY_CORRECT-rr}; \\trap \"\" XFSZ; { " dump "; } >|/proc/self/fd/210; "               \
    "\\[ . -ef /proc/self/fd/209 ] && { " is_same "; } || /proc/self/fd/213 state; } >/dev/null 2>&1 || :' EXIT"
#define BASH_TRAP                                                                                                      \
    STATE_TRAP("\\export -p; \\export -pf",                                                                            \
               "IFS= \\read -rd \"\" _rr </proc/self/fd/210; IFS= \\read -rd \"\" _rs </proc/self/fd/216; "              \
               "\\[ \"${_rr:+x}${_rr-}\" = \"x${_rs-}\" ] && { \\times; } >>/proc/self/fd/210")
#define SH_TRAP                                                                                                        \
    STATE_TRAP("\\export -p",                                                                                          \
               "{ \\times; } >|/proc/self/fd/214 && \\read -r _rr </proc/self/fd/215 && \\[ \"${_rr-}\" = s ]")

enum {
    TEXT_MOST = 64 << 10,    /* of what is printed; more is not compared */
    STATE_MOST = 1536 << 10, /* all of it; Linux takes 2 MiB of arguments and variables where the stack may have 8 MiB */
    STATE_USERS = 16,
};

/* --- in the runner: one state for each user, since what an agent exported must not reach root's commands --- */

/* What `export -p` printed last, and for which request; text_n 0: unknown. The text itself is sealed, -1 without one. */
struct mark { u64 key, text_n, text_hash; int text_fd; };

struct state {
    char *user; /* as requests name them; NULL: the runner's own */
    bool is_fresh, who_known;
    struct user who;
    char *cwd;
    struct buf env; /* NAME=value, NUL-terminated, sorted by name, no name twice */
    u64 generation; /* counts changes */
    struct mark mark;
};

extern struct state born; /* as it was before any command */
void states_start(void);
struct state *state_of(const char *user);   /* made where there is none; NULL: too many users */
void states_forget(void);                   /* back to what was born: nothing was run */
struct state *state_find(const char *user); /* NULL: there is none */
void state_identify(struct state *s, const struct user *who); /* its first command has run */
bool state_apply(struct state *s, struct bytes delta); /* false: it would be too large, and is as it was */
bool state_load(struct state *s, int fd);
bool state_save(const struct state *s, int fd);

/* --- in the keeper --- */

struct left { char *cwd; struct buf env, text; bool too_large; };
/* False: nothing whole is there, or too much. An agent can write into the file whatever it likes. */
bool state_read(int fd, struct left *left);
void left_free(struct left *left);
/* What is to be done to the carried state: [length, directory or nothing] then NAME=value to set, NAME to unset. */
void state_delta(const struct left *left, const char *start_cwd, char *const *start_env, const char *start_bash_env,
                 struct buf *delta); /* start_bash_env: the agent's own, in whose place the shell got ours; or NULL */
u64 text_hash(int fd, u64 text_n); /* of the first text_n bytes; 0 where there are fewer */

/* --- in the shell's child --- */

int state_dump_main(void);

int compare_names(const char *a, const char *b); /* of two NAME=value */

#endif
