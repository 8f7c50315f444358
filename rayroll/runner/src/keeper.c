/* One small process per command: it starts the command, adopts whatever the command leaves behind, and can kill it all.
 *
 * As a subreaper it becomes the parent of every orphan below it, so killing descendants by parent pid also reaches what
 * left its session, daemonised or cleared its environment. It outlives the command while a background job lives, and
 * serves the next one when none does (a fork less). It is forked, not executed: it stays as unreadable to the agent as
 * the runner is, and what an agent can make slow (user tables, directories, states) is slow here and not in the runner. */
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kill.h"
#include "launch.h"
#include "system.h"
#include "wire.h"

struct keeper {
    int control, children, left_output; /* left_output: of jobs that nobody reads any more; -1 */
    pid_t command;
    bool exited, killing, said_same; /* said_same: to a shell that asked */
    int text_fd;                     /* what its shell printed, for the runner to keep; -1 */
    u64 kill_at_ns;
    struct order order;
    struct note note;
    struct launch launch;
};

static void tell(struct keeper *k, u32 kind, const struct buf *changes) {
    struct bytes body = changes ? bytes_of(changes) : (struct bytes){NULL, 0};
    int file = -1, fds[MESSAGE_FDS], fd_count = 0;
    k->note.kind = kind;
    k->note.changes_n = (u32)body.n;
    k->note.in_file = body.n > INLINE_MOST;
    if (k->note.in_file) {
        file = memory_file("changes", body.p, body.n, UNSEALED);
        body.n = 0;
        if (file < 0) {
            k->note.state = STATE_LOST;
            k->note.in_file = false;
            k->note.changes_n = 0;
        }
    }
    k->note.has_text = k->text_fd >= 0;
    if (file >= 0) fds[fd_count++] = file;
    if (k->text_fd >= 0) fds[fd_count++] = k->text_fd;
    message_send(k->control, (struct bytes){(u8 *)&k->note, sizeof k->note}, body, fds, fd_count);
    close_fd(&file);
    close_fd(&k->text_fd);
}

/* --- what the shell says of its state --- */

static u64 state_size(const struct keeper *k) {
    struct stat st;
    return fstat(k->launch.state_fd, &st) == 0 ? (u64)st.st_size : 0;
}

static bool text_is_same(const struct keeper *k) {
    return k->order.text_n && !k->launch.fell_back && text_hash(k->launch.state_fd, k->order.text_n) == k->order.text_hash;
}

/* The trap has printed the exported variables into the file and asks whether they are as they were. "s" is yes.
 * Anybody may ask who has the descriptor; a wrong answer to them is lost on the state of their own command. */
static void answer(struct keeper *k) {
    struct launch *l = &k->launch;
    char asked[16];
    ssize_t n = read(l->ask[0], asked, sizeof asked);
    if (n == 0) close_fd(&l->ask[0]); /* everybody who could ask is gone */
    if (n <= 0) return;
    k->said_same = state_size(k) == k->order.text_n && text_is_same(k);
    (void)!write(l->answer[1], k->said_same ? "s\n" : "c\n", 2);
}

/* It compares by itself, and puts what `times` prints behind the text: a number, with which no text goes on. */
static bool bash_said_same(const struct keeper *k) {
    char mark = 0;
    return pread(k->launch.state_fd, &mark, 1, (off_t)k->order.text_n) == 1 && mark >= '0' && mark <= '9' && text_is_same(k);
}

static void look_at_state(struct keeper *k, struct buf *changes) {
    struct launch *l = &k->launch;
    struct left left;
    k->note.state = STATE_LOST;
    if (!l->carry) return;
    if (k->said_same || bash_said_same(k)) {
        k->note.state = STATE_SAME;
        return;
    }
    if (state_read(l->state_fd, &left)) {
        k->note.state = STATE_CHANGED;
        if (left.text.n) k->text_fd = memory_file("text", left.text.p, left.text.n, SEALED);
        if (k->text_fd >= 0) {
            k->note.text_n = left.text.n;
            k->note.text_hash = text_hash(k->text_fd, left.text.n);
        }
        /* After a fall back the directory counts as changed: the agent is told once, not each time. */
        state_delta(&left, l->fell_back ? "" : l->start_cwd, l->envp, l->bash_env, changes);
    } else if (left.too_large) {
        k->note.state = STATE_TOO_LARGE;
    }
    left_free(&left);
}

/* --- waiting for it --- */

static u64 micro(struct timeval t) { return ((u64)t.tv_sec * 1000000u + (u64)t.tv_usec) * 1000u; }

/* Collects the dead; false when no child is left. */
static bool reap(struct keeper *k) {
    for (;;) {
        int status;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid == 0) return true;
        if (pid < 0 && errno == EINTR) continue;
        if (pid < 0) return false;
        k->note.user_ns += micro(usage.ru_utime);
        k->note.system_ns += micro(usage.ru_stime);
        if ((u64)usage.ru_maxrss * 1024 > k->note.max_rss_bytes) k->note.max_rss_bytes = (u64)usage.ru_maxrss * 1024;
        if (pid != k->command || k->exited) continue;
        k->note.exited_ns = now_ns();
        k->note.status = status;
        k->exited = true;
    }
}

static void signal_command(struct keeper *k, int sig) {
    if (kill_descendants(getpid(), sig) < 0 && !k->exited) kill(-k->command, sig); /* no /proc: its session at least */
}

static void kill_tree(struct keeper *k) {
    struct pollfd none = {.fd = -1};
    u64 start = now_ns();
    /* A process can be born between the look and the kill; its parent is dead then, so it is ours in the next round. */
    for (;;) {
        k->note.survived = reap(k);
        if (!k->note.survived || now_ns() - start > KILL_PATIENCE_S * 1000000000ull) return;
        signal_command(k, SIGKILL);
        poll(&none, 1, 1);
    }
}

static void obey(struct keeper *k) {
    struct order order;
    int fds[MESSAGE_FDS];
    ssize_t n = message_recv(k->control, &order, sizeof order, fds);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) { /* the runner is gone */
        kill_tree(k);
        _exit(0);
    }
    if (order.kind == ORDER_LEAVE) {
        k->left_output = fds[0];
        close_fd(&k->control);
    }
    if (order.kind != ORDER_END || order.serial != k->order.serial || k->killing) return;
    signal_command(k, SIGTERM);
    k->killing = true;
    k->kill_at_ns = now_ns() + order.grace_ns;
}

/* A job must not die of a pipe that nobody reads. */
static void discard_output(struct keeper *k) {
    static u8 chunk[WIRE_CHUNK];
    ssize_t n = read(k->left_output, chunk, sizeof chunk);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) close_fd(&k->left_output);
}

/* Until nothing of the command is left. */
static void attend(struct keeper *k) {
    bool told = false;
    for (bool children_left = true; children_left;) {
        struct pollfd fds[] = {{.fd = k->control, .events = POLLIN}, {.fd = k->children, .events = POLLIN},
                               {.fd = k->launch.ask[0], .events = POLLIN}, {.fd = k->left_output, .events = POLLIN}};
        u64 now = now_ns();
        u64 left_ms = !k->killing ? 0 : k->kill_at_ns <= now ? 0 : (k->kill_at_ns - now) / 1000000 + 1;
        int ready = poll(fds, 4, !k->killing ? -1 : left_ms < 60000 ? (int)left_ms : 60000);
        if (ready > 0 && fds[2].revents) answer(k);
        if (ready > 0 && fds[0].revents) obey(k);
        if (ready > 0 && fds[3].revents) discard_output(k);
        struct signalfd_siginfo info;
        if (ready > 0 && fds[1].revents) (void)!read(k->children, &info, sizeof info); /* one stands for all: not queued */
        if (k->killing && now_ns() >= k->kill_at_ns) {
            kill_tree(k);
            children_left = false;
        } else {
            children_left = reap(k);
        }
        if (!k->exited || told) continue;
        struct buf changes = {0};
        look_at_state(k, &changes);
        k->note.is_alone = !children_left && !k->note.survived;
        tell(k, NOTE_EXITED, &changes);
        buf_free(&changes);
        close_fd(&k->launch.state_fd);
        close_fd(&k->launch.ask[0]);
        told = true;
    }
    if (k->note.is_alone) return; /* that was said already */
    k->note.is_alone = !k->note.survived;
    tell(k, NOTE_GONE, NULL);
    if (k->note.is_alone) return;
    while (reap(k)) { /* what would not die may yet; nobody else is served */
        struct pollfd fds[] = {{.fd = k->control, .events = POLLIN}};
        if (poll(fds, 1, 100) > 0) obey(k);
    }
    _exit(0);
}

/* --- a command --- */

/* The command goes before the runner. A moment after its exec: before that the file is not its own to write. */
static void prefer_as_oom_victim(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    (void)!write(fd, "1000", 4);
    close(fd);
}

static bool find_who(struct keeper *k) {
    if (!k->order.has_user) return true;
    char *text = field_text(k->launch.request, T_USER);
    const char *problem = k->order.who_known || !text ? NULL : user_find(text, &k->order.who);
    free(text);
    k->launch.user = &k->order.who;
    k->note.who = k->order.who;
    k->note.who_known = !problem;
    if (problem) snprintf(k->note.reason, sizeof k->note.reason, "%s", problem);
    return !problem;
}

static void start(struct keeper *k) {
    struct launch *l = &k->launch;
    const char *code = "user", *reason = k->note.reason;
    k->command = -1;
    k->note.is_alone = true;
    if (!find_who(k) || !launch_prepare(l, &code, &reason)) {
        snprintf(k->note.code, sizeof k->note.code, "%s", code);
        if (reason != k->note.reason) snprintf(k->note.reason, sizeof k->note.reason, "%s", reason);
        tell(k, NOTE_REFUSED, NULL);
        return;
    }
    k->command = launch_start(l);
    k->note.started_ns = now_ns();
    k->note.fell_back = l->fell_back;
    k->note.stage = (int)l->stage;
    k->note.error = l->error;
    if (k->command < 0) {
        tell(k, NOTE_FAILED, NULL);
        return;
    }
    prefer_as_oom_victim(k->command);
    int *const handed[] = {&l->out_fd, &l->in_fd, &l->script_fd, &l->rc_fd, &l->last_fd, &l->ask[1], &l->answer[0]};
    for (size_t i = 0; i < sizeof handed / sizeof *handed; i++) close_fd(handed[i]);
    k->note.is_alone = false;
    attend(k);
}

static void serve(struct keeper *k, const u8 *body, size_t body_n, int fds[MESSAGE_FDS]) {
    struct order *o = &k->order;
    size_t n = (size_t)o->cwd_n + o->env_n + o->request_n;
    u8 *from_file = NULL;
    if (o->in_file) {
        body = from_file = xmalloc(n);
        int *file = &fds[o->has_text ? 2 : 1];
        if (!read_all(*file, from_file, n)) _exit(74); /* EX_IOERR */
        close_fd(file);
    } else if (body_n != n) {
        _exit(76); /* EX_PROTOCOL */
    }
    k->exited = k->killing = k->said_same = false;
    k->note = (struct note){.serial = o->serial};
    char *cwd = xstrndup(body, o->cwd_n);
    k->launch = NOT_LAUNCHED;
    k->launch.request = (struct bytes){body + o->cwd_n + o->env_n, o->request_n};
    k->launch.env = (struct bytes){body + o->cwd_n, o->env_n};
    k->launch.cwd = cwd;
    k->launch.identify = o->identify;
    k->launch.out_fd = fds[0];
    k->launch.last_fd = o->has_text ? fds[1] : -1;
    start(k);
    launch_free(&k->launch);
    free(cwd);
    free(from_file);
}

/* The next order; below 0 when nobody is left to give one. It is waited for in poll, for a process killed while it waits
 * in recv can still take the message that comes before it has died: the runner could not tell that from an order begun. */
static ssize_t next_order(int control, u8 *message, size_t most, int fds[MESSAGE_FDS]) {
    for (;;) {
        struct pollfd asked = {.fd = control, .events = POLLIN};
        poll(&asked, 1, -1);
        ssize_t n = message_recv(control, message, most, fds);
        if (n >= 0 || errno != EAGAIN) return n;
    }
}

_Noreturn void keeper_main(int control) {
    static u8 message[sizeof(struct order) + INLINE_MOST];
    static struct keeper k;
    sigset_t signals;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prctl(PR_SET_NAME, KEEPER_NAME, 0, 0, 0);
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    k.control = control;
    k.left_output = k.text_fd = -1;
    k.children = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    while (k.control >= 0) {
        int fds[MESSAGE_FDS];
        ssize_t n = next_order(control, message, sizeof message, fds);
        if (n < (ssize_t)sizeof k.order) _exit(0); /* the runner is gone, or done with us */
        memcpy(&k.order, message, sizeof k.order);
        if (k.order.kind == ORDER_RUN) serve(&k, message + sizeof k.order, (size_t)n - sizeof k.order, fds);
    }
    _exit(0);
}
