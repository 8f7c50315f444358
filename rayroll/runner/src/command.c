/* One command from the runner's side: its limits, its output, its reply. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crew.h"
#include "kill.h"
#include "launch.h"
#include "loop.h"
#include "main.h"
#include "request.h"
#include "system.h"
#include "wire.h"

enum {
    CAP_DEFAULT = 32 << 10,
    CAP_MOST = 8 << 20,
    PIPE_MOST = 1 << 20,
    READ_MOST = 16 * WIRE_CHUNK, /* of one command before others have their turn */
    HIRES = 3,
};
static const u64 GRACE_DEFAULT_NS = 500000000;
/* A keeper gives up killing by itself after KILL_PATIENCE_S; one that says nothing for longer does not answer. */
static const u64 KEEPER_PATIENCE_NS = (KILL_PATIENCE_S + 2) * 1000000000ull;

void command_free(struct command *c) {
    close_watched(&c->out);
    if (c->keeper) crew_dismiss(c->keeper);
    c->keeper = NULL;
    buf_free(&c->head);
    buf_free(&c->tail);
}

/* --- output: the first bytes and the last ones; the true count always --- */

static void keep_output(struct command *c, const u8 *p, size_t n) {
    c->output_bytes += n;
    size_t room = c->head_cap - c->head.n;
    size_t first = n < room ? n : room;
    buf_add(&c->head, p, first);
    p += first;
    n -= first;
    if (!n || !c->tail_cap) return;
    if (n > c->tail_cap) {
        p += n - c->tail_cap;
        n = c->tail_cap;
    }
    buf_add(&c->tail, p, n);
    if (c->tail.n > 2 * c->tail_cap) buf_drop(&c->tail, c->tail.n - c->tail_cap); /* rarely, so it stays linear */
}

/* Reads what is there, at most `most` bytes; false at the end of the stream. */
static bool read_output(struct command *c, size_t most) {
    static u8 chunk[WIRE_CHUNK];
    size_t read_n = 0;
    while (read_n < most) {
        size_t part = most - read_n < sizeof chunk ? most - read_n : sizeof chunk;
        ssize_t n = read(c->out, chunk, part);
        if (n <= 0) {
            if (n < 0 && errno == EINTR) continue;
            return n < 0;
        }
        keep_output(c, chunk, (size_t)n);
        read_n += (size_t)n;
        /* Whoever fills a pipe gets a larger one: fewer turns for both sides. */
        if (n == (ssize_t)sizeof chunk && c->output_bytes == sizeof chunk) fcntl(c->out, F_SETPIPE_SZ, PIPE_MOST);
    }
    return true;
}

static void on_output(void *owner, short events) {
    struct request *r = owner;
    struct command *c = &r->command;
    (void)events;
    u64 before = c->output_bytes;
    if (!read_output(c, READ_MOST)) close_watched(&c->out);
    if (c->idle_ns && c->output_bytes != before) c->idle_at_ns = now_ns() + c->idle_ns;
}

/* --- the end --- */

static u64 since(u64 later, u64 earlier) { return later > earlier ? later - earlier : 0; }

static const char *notice(const struct command *c) {
    if (c->limit == LIMIT_KEEPER_LOST)
        return "a command killed the process that looks after it; everything it ran with was ended";
    if (c->note.survived) return "a process that this command started cannot be killed";
    if (c->note.fell_back) return "the working directory is gone; an existing parent was used";
    if (c->state_too_large) return "the exported variables are larger than 1.5 MiB and were not carried";
    return NULL;
}

static void put_reply(struct request *r, u64 now) {
    struct command *c = &r->command;
    const struct note *n = &c->note;
    struct pressure after = pressure_read();
    struct buf *b = &r->reply.fields;
    u64 started = n->started_ns ? n->started_ns : r->started_ns, exited = n->exited_ns ? n->exited_ns : now;
    if (c->limit_at_ns && c->limit_at_ns < exited) exited = c->limit_at_ns; /* the kill is not the command's time */
    /* Without a status, it is dead with its keeper: that is no 0. */
    int signal = !c->exited ? SIGKILL : WIFSIGNALED(n->status) ? WTERMSIG(n->status) : 0;
    put_num(b, T_EXIT_CODE, (u64)(signal ? 128 + signal : WEXITSTATUS(n->status)));
    put_num(b, T_SIGNAL, (u64)signal);
    put_num(b, T_LIMIT, c->limit);
    put_num(b, T_OUTPUT_BYTES, c->output_bytes);
    put_num(b, T_STATE_SAVED, c->state_saved);
    put_num(b, T_QUEUED_NS, since(r->started_ns, r->received_ns));
    put_num(b, T_SPAWN_NS, since(started, r->started_ns));
    put_num(b, T_RUN_NS, since(exited, started));
    put_num(b, T_DRAIN_NS, since(now, exited));
    put_num(b, T_USER_NS, n->user_ns);
    put_num(b, T_SYSTEM_NS, n->system_ns);
    put_num(b, T_THROTTLED_NS, since(after.throttled_ns, c->before.throttled_ns));
    put_num(b, T_MAX_RSS_BYTES, n->max_rss_bytes);
    put_num(b, T_MEMORY_HITS, since(after.memory_hits, c->before.memory_hits));
    if (notice(c)) put_text(b, T_NOTICE, notice(c));
}

static void finish(struct request *r) {
    struct command *c = &r->command;
    int in_pipe = 0;
    if (c->out >= 0 && ioctl(c->out, FIONREAD, &in_pipe) == 0 && in_pipe > 0) read_output(c, (size_t)in_pipe);
    unwatch(c->out);
    if (c->keeper && c->note.is_alone) {
        crew_free(c->keeper);
    } else if (c->keeper) {
        crew_leave(c->keeper, c->out);
        c->out = -1;
    }
    c->keeper = NULL;
    close_fd(&c->out);
    put_reply(r, now_ns());
    r->reply.head_kept = c->head.n;
    r->reply.output = c->head;
    c->head = (struct buf){0};
    if (c->tail.n > c->tail_cap) buf_drop(&c->tail, c->tail.n - c->tail_cap);
    buf_add(&r->reply.output, c->tail.p, c->tail.n);
    buf_free(&c->tail);
    request_finish(r, F_RESULT);
}

void command_keeper_lost(struct request *r) {
    struct command *c = &r->command;
    c->keeper = NULL;
    if (c->limit == LIMIT_NONE) c->limit = LIMIT_KEEPER_LOST;
    kill_everything(); /* what it looked after is now ours, and cannot be told apart */
    finish(r);
}

void command_killed(struct request *r) {
    struct command *c = &r->command;
    if (c->limit == LIMIT_NONE) c->limit = LIMIT_KILL_ALL;
    if (c->keeper) crew_dismiss(c->keeper);
    c->keeper = NULL;
    finish(r);
}

/* --- what the keeper says --- */

/* As a shell says it: 127 not found, 126 found and not executable; a full process table is the agent's doing, too. */
static void not_executed(struct request *r, int error) {
    struct command *c = &r->command;
    const char *text = strerror(error);
    keep_output(c, (const u8 *)text, strlen(text));
    keep_output(c, (const u8 *)"\n", 1);
    c->note.status = (error == ENOENT || error == ENOTDIR ? 127 : 126) << 8;
    if (!c->note.started_ns) c->note.started_ns = now_ns();
    c->note.exited_ns = c->note.started_ns;
    c->note.is_alone = c->exited = true;
    finish(r);
}

static void refuse(struct request *r, const char *code, int error, const char *reason) {
    struct command *c = &r->command;
    if (c->keeper) crew_free(c->keeper);
    c->keeper = NULL;
    close_watched(&c->out);
    request_fail(r, code, error, reason);
}

static void failed(struct request *r) {
    int error = r->command.note.error;
    bool is_script = field(bytes_of(&r->payload), T_SCRIPT).p != NULL;
    char reason[PATH_MAX + 64];
    switch (r->command.note.stage) {
    case STAGE_USER: return refuse(r, "user", error, "cannot become that user");
    case STAGE_DIRECTORY: {
        struct bytes cwd = field(bytes_of(&r->payload), T_CWD);
        snprintf(reason, sizeof reason, "working directory: %s: %.*s", strerror(error), (int)(cwd.n < PATH_MAX ? cwd.n : PATH_MAX),
                 (const char *)cwd.p);
        return refuse(r, "file", error, reason);
    }
    case STAGE_PROGRAM:
        if (error == E2BIG && !is_script)
            return refuse(r, "arguments", error, "arguments and environment are longer than the kernel allows");
    }
    not_executed(r, error);
}

static void refused(struct request *r) {
    const struct note *n = &r->command.note;
    /* A shell that was there and is not any more: the agent's doing, and its command's failure. */
    if (!strcmp(n->code, "shell") && had_shell) return not_executed(r, ENOENT);
    refuse(r, n->code, EINVAL, n->reason);
}

static void take_state(struct command *c, struct bytes changes, int text_fd) {
    struct state *s = c->state;
    if (!s || (c->note.state != STATE_SAME && c->note.state != STATE_CHANGED)) {
        c->state_too_large = c->note.state == STATE_TOO_LARGE;
        return;
    }
    bool undisturbed = s->generation == c->generation;
    if (s->is_fresh && s->user && c->note.who_known) state_identify(s, &c->note.who);
    s->is_fresh = false;
    c->state_saved = c->note.state == STATE_SAME || state_apply(s, changes);
    c->state_too_large = !c->state_saved;
    if (c->state_saved && c->note.state == STATE_CHANGED && undisturbed) {
        /* What was printed now is printed again by a command that changes nothing, if it is asked in the same way and
         * starts from the state that this one leaves. */
        close_fd(&s->mark.text_fd);
        s->mark = (struct mark){hash_bytes(s->generation, &c->mark_key, sizeof c->mark_key), c->note.text_n, c->note.text_hash,
                                text_fd < 0 ? -1 : fcntl(text_fd, F_DUPFD_CLOEXEC, 0)};
    }
}

void command_noted(struct request *r, const struct note *note, struct bytes changes, int text_fd) {
    struct command *c = &r->command;
    c->note = *note;
    if (note->who_known && c->state && !c->state->who_known) {
        c->state->who = note->who;
        c->state->who_known = true;
    }
    switch (note->kind) {
    case NOTE_REFUSED: refused(r); return;
    case NOTE_FAILED: failed(r); return;
    case NOTE_EXITED:
        c->exited = true;
        take_state(c, changes, text_fd);
        /* With a limit reached, whatever else it started must be dead, too, before that is said. */
        if (c->limit == LIMIT_NONE || note->is_alone) finish(r);
        return;
    case NOTE_GONE: finish(r); return;
    }
}

/* --- limits --- */

void command_end(struct request *r, u8 limit) {
    struct command *c = &r->command;
    if (c->limit != LIMIT_NONE || !c->keeper) return;
    c->limit = limit;
    c->limit_at_ns = now_ns();
    c->lost_at_ns = c->limit_at_ns + c->grace_ns + KEEPER_PATIENCE_NS;
    crew_end(c->keeper, c->grace_ns);
}

u64 command_tick(struct request *r, u64 now) {
    struct command *c = &r->command;
    if (c->total_at_ns && now >= c->total_at_ns) command_end(r, LIMIT_TOTAL);
    else if (c->idle_at_ns && now >= c->idle_at_ns) command_end(r, LIMIT_IDLE);
    if (c->limit == LIMIT_NONE) return sooner(c->total_at_ns, c->idle_at_ns);
    if (now < c->lost_at_ns) return c->lost_at_ns;
    crew_kill(c->keeper);
    command_keeper_lost(r);
    return UINT64_MAX;
}

/* --- the beginning --- */

static bool hand_over(struct request *r, int out_fd) {
    struct command *c = &r->command;
    struct bytes request = bytes_of(&r->payload), user = field(request, T_USER);
    struct order order = {.has_user = user.p != NULL};
    char *name = field_text(request, T_USER);
    bool carry = field_num(request, T_FLAGS, 0) & FLAG_CARRY;
    struct state *s = state_of(name), *from = s ? s : &born;
    int text_fd = -1;
    free(name);
    c->state = s;
    if (s) {
        struct bytes env = field(request, T_ENV), cwd = field(request, T_CWD);
        c->mark_key = hash_bytes(hash_bytes(cwd.p != NULL, env.p, env.n), cwd.p, cwd.n);
        c->generation = s->generation;
        order.who_known = s->who_known;
        order.who = s->who;
        order.identify = s->is_fresh;
        if (carry && s->mark.key == hash_bytes(s->generation, &c->mark_key, sizeof c->mark_key)) {
            order.text_n = s->mark.text_n;
            order.text_hash = s->mark.text_hash;
            text_fd = s->mark.text_fd;
        }
    }
    for (int i = 0; i < HIRES && (c->keeper = crew_hire()); i++) {
        if (crew_run(c->keeper, r, &order, (struct bytes){(u8 *)from->cwd, strlen(from->cwd)}, bytes_of(&from->env), out_fd,
                     text_fd))
            return true;
        crew_dismiss(c->keeper); /* it was killed while it was free */
        c->keeper = NULL;
        errno = EAGAIN;
    }
    return false;
}

static size_t cap_of(struct bytes request, u8 tag) {
    u64 cap = field_num(request, tag, CAP_DEFAULT);
    return cap < CAP_MOST ? (size_t)cap : CAP_MOST;
}

void command_start(struct request *r) {
    struct command *c = &r->command;
    struct bytes request = bytes_of(&r->payload);
    int out[2];
    c->head_cap = cap_of(request, T_HEAD_BYTES);
    c->tail_cap = cap_of(request, T_TAIL_BYTES);
    c->idle_ns = field_ns(request, T_IDLE_MS, 0);
    c->grace_ns = field_ns(request, T_GRACE_MS, GRACE_DEFAULT_NS);
    c->before = pressure_read();
    if (pipe2(out, O_CLOEXEC)) return not_executed(r, errno);
    c->out = out[0];
    set_nonblocking(c->out);
    bool started = hand_over(r, out[1]);
    int error = errno;
    close(out[1]);
    if (!started) return not_executed(r, error); /* the process table is full, or memory is */
    u64 now = now_ns(), total_ns = field_ns(request, T_TIMEOUT_MS, 0);
    if (total_ns) c->total_at_ns = now + total_ns;
    if (c->idle_ns) c->idle_at_ns = now + c->idle_ns;
    watch(c->out, POLLIN, on_output, r);
}

void command_not_taken(struct request *r) {
    r->command.keeper = NULL;
    close_watched(&r->command.out);
    command_start(r);
}
