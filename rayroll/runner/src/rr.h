/* What the parts of the runner share: bytes, fields, the wire's numbers, and who offers what. */
#ifndef RR_H
#define RR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#ifndef RR_BUILD
#define RR_BUILD "unknown"
#endif

/* --- the wire (docs/runner-protocol.md; rayroll/runner/protocol.py is the other end) --- */

enum {
    RR_VERSION = 1,
    RR_HEADER = 12,
    RR_KEY = 16,
    RR_MAX_PAYLOAD = 16 << 20,
    RR_WINDOW = 256 << 10,
    RR_CHUNK = 64 << 10,
};

enum {
    F_HELLO = 1, F_LEASE, F_EXEC, F_PUT, F_GET, F_DIGEST, F_KILL_ALL, F_CANCEL, F_CREDIT, F_ACK, F_DATA, F_END,
    F_SHUTDOWN,
    F_HELLO_OK = 64, F_LEASE_OK, F_RESULT, F_OUTPUT, F_WANT, F_ERROR, F_REFUSED,
};

enum {
    T_KEY = 1, T_NONCE, T_VERSION_MIN, T_VERSION_MAX, T_LEASE_MS, T_IDS, T_BUILD, T_PID, T_UID, T_IS_INIT, T_SHELL,
    T_MACHINE, T_KERNEL, T_CWD, T_EPOCH,
    T_SCRIPT = 32, T_ARGV, T_ENV, T_USER, T_STDIN, T_TIMEOUT_MS, T_IDLE_MS, T_GRACE_MS, T_HEAD_BYTES, T_TAIL_BYTES,
    T_FLAGS,
    T_PATH = 64, T_MAX_BYTES, T_EXCLUDE,
    T_BYTES = 72,
    T_EXIT_CODE = 96, T_SIGNAL, T_LIMIT, T_OUTPUT_BYTES, T_HEAD_KEPT, T_STATE_SAVED, T_NOTICE, T_QUEUED_NS, T_SPAWN_NS,
    T_RUN_NS, T_DRAIN_NS, T_USER_NS, T_SYSTEM_NS, T_THROTTLED_NS, T_MAX_RSS_BYTES, T_MEMORY_HITS, T_SHA256, T_COUNT,
    T_ERRNO = 128, T_REASON, T_CODE,
};

enum { FLAG_CARRY = 1, FLAG_CLEAN_ENV = 2, FLAG_NO_CONTENT = 4, FLAG_TREE = 8 };

enum { LIMIT_NONE, LIMIT_TOTAL, LIMIT_IDLE, LIMIT_CANCELLED, LIMIT_KEEPER_LOST, LIMIT_KILL_ALL };

/* --- bytes.c --- */

struct bytes { const u8 *p; size_t n; };
struct buf { u8 *p; size_t n, cap; };

void buf_add(struct buf *b, const void *p, size_t n);
void buf_drop(struct buf *b, size_t n); /* from the front */
void buf_free(struct buf *b);
void put_num(struct buf *b, u8 tag, u64 value);
void put_bytes(struct buf *b, u8 tag, const void *p, size_t n);
void put_text(struct buf *b, u8 tag, const char *text);

bool fields_valid(struct bytes payload);
struct bytes field(struct bytes payload, u8 tag); /* .p is NULL where absent */
u64 field_num(struct bytes payload, u8 tag, u64 otherwise);
char *field_text(struct bytes payload, u8 tag); /* malloc'ed, NUL-terminated; NULL where absent or holding a NUL */

u64 now_ns(void);
void *xmalloc(size_t n);
char *xstrndup(const void *p, size_t n);
bool write_all(int fd, const void *p, size_t n);
bool read_all(int fd, void *p, size_t n);
void close_from(int first);                     /* every descriptor from `first` up */
int memfd_with(const char *name, const void *p, size_t n, bool seal); /* positioned at 0; -1 on failure */
void null_stdio(void);                          /* 0, 1 and 2 become /dev/null: the channel is not inherited */

/* --- sha256.c --- */

struct sha256 { u32 h[8]; u64 n; u8 block[64]; };
void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *p, size_t n);
void sha256_end(struct sha256 *s, u8 out[32]);

/* --- state.c: the directory and the exported variables that one command leaves to the next --- */

struct state { char *cwd; struct buf env; }; /* env: NUL-terminated NAME=value, one after the other */

/* 200 and above: scripts redirect low descriptors (`exec 3>&-`), and dash cannot name those above 9. */
enum { FD_STATE = 210, FD_RC = 211, FD_SCRIPT = 212, FD_RUNNER = 213 };

/* By descriptor: the agent may have deleted the file. What `set -x` would show of it goes nowhere. Not `exec`: bash runs
 * the trap also when it dies of a signal, and only a shell that is still there then dies of it (143, not 0). */
#define STATE_TRAP "trap '{ /proc/self/fd/213 state; } 2>/dev/null' EXIT"

void state_init(struct state *s);
bool state_read(struct state *s, int fd); /* what `runner state` wrote; false: nothing whole was there */
bool state_write(const struct state *s, int fd);
bool state_take(int fd, struct bytes request); /* into `carried`, without what was only this request's */
int state_dump_main(void);
/* What every shell may inherit: the bash start-up file (sealed) and the runner itself. A keeper has other numbers. */
extern int rc_fd, runner_fd;
void shared_open(void);

/* --- launch.c: from a request to a running shell --- */

struct launch {
    char **envp, *cwd;
    char user[64];
    uid_t uid;
    gid_t gid;
    bool switch_user;
    int out_fd, in_fd, state_fd, script_fd;
    char *program; /* by absolute path */
    char **args;
    bool carry, cwd_given;
    bool fell_back; /* the carried directory is gone; an existing parent was taken */
};

struct rlimit_rule { int resource; u64 value; };
extern struct rlimit_rule rlimit_rules[8];
extern int rlimit_count;

const char *find_shell(void); /* NULL: the image has none */
bool find_user(const char *text, uid_t *uid, gid_t *gid, char home[256], char name[64]);
const char *launch_prepare(struct launch *l, struct bytes request, int out_fd); /* NULL, or why not: "code: reason" */
pid_t launch_child(struct launch *l, int *error); /* vfork and exec; returns after the exec; -1 and *error if it failed */
void launch_free(struct launch *l); /* also the runner's copies of its descriptors, but not state_fd */
void switch_user(const struct launch *l);

/* --- keeper.c: one small process per command, the subreaper of everything the command starts --- */

enum { K_EXITED = 1, K_FAILED = 2, K_GONE = 3 };
struct keeper_note { int kind, status, error, fell_back; u64 started_ns, exited_ns, user_ns, system_ns, max_rss_bytes; };
struct keeper_order { u64 grace_ns; };

pid_t keeper_start(struct launch *l, int *control_fd);
int kill_descendants(pid_t root, int sig); /* how many were signalled; never forks */
void kill_everything(u64 patience_ns);     /* until nothing but the runner is left */

/* --- tree.c: files and trees, in a forked worker that may block --- */

pid_t put_start(struct bytes request, int *data_fd, int *status_fd);
pid_t get_start(struct bytes request, int *data_fd, int *status_fd);
pid_t digest_start(struct bytes request, int *status_fd);
struct worker_status { int error; u64 count; u8 sha256[32]; char where[256]; };

/* --- cgroup.c --- */

struct pressure { u64 throttled_ns, memory_hits; };
struct pressure pressure_read(void);

/* --- link.c: streams to hosts --- */

void link_open(int in, int out, bool trusted);
bool link_active(void);
void link_send(u8 type, u32 id, const void *p, size_t n);
bool link_may_send(size_t n); /* false: the window is full, or the stream has not taken what is queued */
void link_sent(size_t n);     /* n bytes of the window are in use */
void link_error(u32 id, const char *code, int error, const char *reason);
bool link_flushed(void);
void link_key(const u8 given[RR_KEY]);
void links_flush(void);

/* --- request.c: what is under way --- */

void request_start(u8 type, u32 id, struct bytes payload);
void request_cancel(u32 id);
void request_ack(u32 id);
void request_data(u32 id, struct bytes data, bool end);
void request_child_died(pid_t pid, int status);
void requests_kill_all(u32 id);
void requests_rewind(struct bytes pending, struct buf *known); /* a new hello: send again, forget what nobody awaits */
u64 requests_tick(u64 now); /* deadlines; returns when to be called again (0: no need) */
void requests_pump(void);   /* send what the window allows */
int requests_idle(void);    /* true when nothing runs and everything is sent */

/* --- main.c: one poll loop --- */

typedef void (*ready_fn)(void *owner, short events);
void watch(int fd, short events, ready_fn fn, void *owner); /* again with other events to change; 0 keeps it silent */
void unwatch(int fd);
extern struct state carried, born; /* born: as it was before any command */
extern u64 lease_ns, lease_deadline_ns;
extern bool is_init, stopping, one_shot;

int bench_main(int argc, char **argv);
int connect_main(const char *path);

#endif
