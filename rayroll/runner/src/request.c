/* What is under way: commands, file transfers and their replies, each by its request id.
 *
 * A command's reply is kept until the host says it has it (ACK): after a broken stream the next hello names what it
 * still waits for, and nothing is run twice. File transfers are simply asked for again. */
#include "rr.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RUNNING = 64, MOST_KNOWN = 512, CAP_MAX = 8 << 20 };
enum phase { QUEUED, RUNNING, SENDING, SENT };

struct request {
    u32 id;
    u8 type, limit, reply_type;
    enum phase phase;
    bool forgotten; /* nobody awaits the reply any more */
    struct buf payload;
    u64 received_ns, started_ns;
    /* a command */
    pid_t child;
    int control, out, state_fd;
    struct keeper_note note;
    bool exited;
    u64 total_at_ns, idle_ns, idle_at_ns, grace_ns, limit_at_ns, lost_at_ns;
    struct pressure before;
    struct buf head, tail;
    size_t head_cap, tail_cap;
    u64 output_bytes;
    /* a file transfer */
    int data, status;
    struct buf inbox;
    bool inbox_ended, data_ended;
    /* the reply */
    struct buf output, reply;
    size_t sent, head_kept;
    struct request *next;
};

/* The keeper and the output pipe of a finished command whose background jobs live on. Its output is read and thrown
 * away, for a job must not die of a closed pipe; closing `control` would make the keeper kill them. */
struct leftover { int control, out; struct leftover *next; };

static struct request *all;
static struct leftover *leftovers;
static int running_count, known_count;

static struct request *find(u32 id) {
    for (struct request *r = all; r; r = r->next)
        if (r->id == id) return r;
    return NULL;
}

static void close_watched(int *fd) {
    if (*fd < 0) return;
    unwatch(*fd);
    close(*fd);
    *fd = -1;
}

static void forget(struct request *gone) {
    for (struct request **at = &all; *at; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    close_watched(&gone->control);
    close_watched(&gone->out);
    close_watched(&gone->data);
    close_watched(&gone->status);
    if (gone->state_fd >= 0) close(gone->state_fd);
    buf_free(&gone->payload);
    buf_free(&gone->head);
    buf_free(&gone->tail);
    buf_free(&gone->inbox);
    buf_free(&gone->output);
    buf_free(&gone->reply);
    known_count--;
    free(gone);
}

static void start_next(void);

static void finished(struct request *r, u8 reply_type) {
    r->reply_type = reply_type;
    if (r->phase == RUNNING && r->type == F_EXEC) running_count--;
    r->phase = SENDING;
    buf_free(&r->payload);
    if (r->forgotten) forget(r);
    start_next();
}

static void finish_error(struct request *r, const char *code, int error, const char *reason) {
    put_text(&r->reply, T_CODE, code);
    put_num(&r->reply, T_ERRNO, (u64)error);
    put_text(&r->reply, T_REASON, reason);
    finished(r, F_ERROR);
}

/* --- output: the first bytes and the last ones; the true count always --- */

static void keep_output(struct request *r, const u8 *p, size_t n) {
    r->output_bytes += n;
    size_t room = r->head_cap - r->head.n;
    size_t first = n < room ? n : room;
    buf_add(&r->head, p, first);
    p += first;
    n -= first;
    if (!n || !r->tail_cap) return;
    if (n > r->tail_cap) {
        p += n - r->tail_cap;
        n = r->tail_cap;
    }
    buf_add(&r->tail, p, n);
    if (r->tail.n > 2 * r->tail_cap) buf_drop(&r->tail, r->tail.n - r->tail_cap); /* rarely, so it stays linear */
}

/* Reads what is there, at most `most` bytes; false at the end of the stream. */
static bool read_output(struct request *r, size_t most) {
    static u8 chunk[RR_CHUNK];
    while (most) {
        ssize_t n = read(r->out, chunk, most < sizeof chunk ? most : sizeof chunk);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        if (n == 0) return false;
        keep_output(r, chunk, (size_t)n);
        if (r->idle_ns) r->idle_at_ns = now_ns() + r->idle_ns;
        most -= (size_t)n;
    }
    return true;
}

static void on_output(void *owner, short events) {
    struct request *r = owner;
    (void)events;
    if (!read_output(r, 16 * RR_CHUNK)) close_watched(&r->out);
}

static void discard(void *owner, short events) {
    static u8 chunk[RR_CHUNK];
    struct leftover *rest = owner;
    (void)events;
    for (int i = 0; i < 16; i++) {
        ssize_t n = read(rest->out, chunk, sizeof chunk);
        if (n < 0) return;
        if (n == 0) {
            close_watched(&rest->out);
            return;
        }
    }
}

static void on_leftover_gone(void *owner, short events) {
    struct leftover *rest = owner;
    struct keeper_note note;
    (void)events;
    if (recv(rest->control, &note, sizeof note, MSG_DONTWAIT) > 0) return;
    close_watched(&rest->control);
    close_watched(&rest->out);
    for (struct leftover **at = &leftovers; *at; at = &(*at)->next)
        if (*at == rest) {
            *at = rest->next;
            break;
        }
    free(rest);
}

static void leave_behind(struct request *r) {
    struct leftover *rest = xmalloc(sizeof *rest);
    *rest = (struct leftover){r->control, r->out, leftovers};
    leftovers = rest;
    watch(rest->control, POLLIN, on_leftover_gone, rest);
    if (rest->out >= 0) watch(rest->out, POLLIN, discard, rest);
    r->control = r->out = -1;
}

/* --- the end of a command --- */

static u64 since(u64 later, u64 earlier) { return later > earlier ? later - earlier : 0; }

static void finish_command(struct request *r) {
    struct keeper_note *n = &r->note;
    struct pressure after = pressure_read();
    bool lost = !r->exited; /* no status ever came: it is dead with its keeper, and that is no 0 */
    int in_pipe = 0;
    if (r->out >= 0 && ioctl(r->out, FIONREAD, &in_pipe) == 0 && in_pipe > 0) read_output(r, (size_t)in_pipe);
    bool saved = r->state_fd >= 0 && state_take(r->state_fd, (struct bytes){r->payload.p, r->payload.n});
    u64 now = now_ns();
    u64 started = n->started_ns ? n->started_ns : r->started_ns, exited = n->exited_ns ? n->exited_ns : now;
    if (r->limit_at_ns && r->limit_at_ns < exited) exited = r->limit_at_ns; /* the kill is not the command's time */
    int signal = lost ? SIGKILL : WIFSIGNALED(n->status) ? WTERMSIG(n->status) : 0;

    r->head_kept = r->head.n;
    r->output = r->head;
    r->head = (struct buf){0};
    if (r->tail.n > r->tail_cap) buf_drop(&r->tail, r->tail.n - r->tail_cap);
    buf_add(&r->output, r->tail.p, r->tail.n);
    buf_free(&r->tail);

    put_num(&r->reply, T_EXIT_CODE, (u64)(signal ? 128 + signal : WEXITSTATUS(n->status)));
    put_num(&r->reply, T_SIGNAL, (u64)signal);
    put_num(&r->reply, T_LIMIT, r->limit);
    put_num(&r->reply, T_OUTPUT_BYTES, r->output_bytes);
    put_num(&r->reply, T_HEAD_KEPT, r->head_kept);
    put_num(&r->reply, T_STATE_SAVED, saved);
    put_num(&r->reply, T_QUEUED_NS, since(r->started_ns, r->received_ns));
    put_num(&r->reply, T_SPAWN_NS, since(started, r->started_ns));
    put_num(&r->reply, T_RUN_NS, since(exited, started));
    put_num(&r->reply, T_DRAIN_NS, since(now, exited));
    put_num(&r->reply, T_USER_NS, n->user_ns);
    put_num(&r->reply, T_SYSTEM_NS, n->system_ns);
    put_num(&r->reply, T_THROTTLED_NS, since(after.throttled_ns, r->before.throttled_ns));
    put_num(&r->reply, T_MAX_RSS_BYTES, n->max_rss_bytes);
    put_num(&r->reply, T_MEMORY_HITS, since(after.memory_hits, r->before.memory_hits));
    if (n->fell_back) put_text(&r->reply, T_NOTICE, "the working directory is gone; an existing parent was used");
    else if (r->limit == LIMIT_KEEPER_LOST)
        put_text(&r->reply, T_NOTICE, "a command killed the process that looks after it; everything it ran with was ended");

    if (r->control >= 0 && !lost && n->kind == K_EXITED) leave_behind(r);
    close_watched(&r->control);
    close_watched(&r->out);
    if (r->state_fd >= 0) close(r->state_fd);
    r->state_fd = -1;
    finished(r, F_RESULT);
}

static void keeper_lost(struct request *r) {
    if (r->limit == LIMIT_NONE) r->limit = LIMIT_KEEPER_LOST;
    kill_everything(5000000000u); /* what it looked after is now ours, and cannot be told apart */
    finish_command(r);
}

/* The program could not be executed at all. */
static void not_executed(struct request *r) {
    int error = r->note.error;
    bool script = field((struct bytes){r->payload.p, r->payload.n}, T_SCRIPT).p != NULL;
    if (script && (error == ENOENT || error == EACCES)) {
        finish_error(r, field((struct bytes){r->payload.p, r->payload.n}, T_CWD).p ? "arguments" : "shell", error,
                     strerror(error));
        return;
    }
    if (error == E2BIG) {
        finish_error(r, "arguments", error, "arguments and environment are longer than the kernel allows");
        return;
    }
    /* As a shell says it: 127 not found, 126 found and not executable. A full pid limit is the agent's doing: 126. */
    keep_output(r, (const u8 *)strerror(error), strlen(strerror(error)));
    keep_output(r, (const u8 *)"\n", 1);
    r->note.status = (error == ENOENT ? 127 : 126) << 8;
    r->note.exited_ns = r->note.started_ns;
    r->exited = true;
    finish_command(r);
}

static void on_control(void *owner, short events) {
    struct request *r = owner;
    struct keeper_note note;
    (void)events;
    ssize_t n = recv(r->control, &note, sizeof note, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n != (ssize_t)sizeof note) {
        keeper_lost(r);
        return;
    }
    if (note.kind == K_FAILED) {
        r->note = note;
        not_executed(r);
    } else if (note.kind == K_EXITED) {
        r->exited = true;
        r->note = note;
        if (r->limit == LIMIT_NONE) finish_command(r);
    } else { /* gone, and with it everything it looked after */
        r->note.kind = K_GONE;
        finish_command(r);
    }
}

static void end_command(struct request *r, u8 limit, u64 now) {
    if (r->type != F_EXEC || r->phase != RUNNING || r->limit != LIMIT_NONE) return;
    struct keeper_order order = {r->grace_ns};
    r->limit = limit;
    r->limit_at_ns = now;
    r->lost_at_ns = now + r->grace_ns + 7000000000u; /* the keeper itself gives up killing after 5 s */
    if (r->child > 0) kill(r->child, SIGCONT);       /* the command may have stopped it */
    send(r->control, &order, sizeof order, MSG_NOSIGNAL);
}

/* --- starting --- */

static void start_command(struct request *r) {
    struct bytes request = {r->payload.p, r->payload.n};
    struct launch launch;
    int out[2];
    r->started_ns = now_ns();
    r->phase = RUNNING;
    running_count++;
    if (pipe2(out, O_CLOEXEC)) {
        finish_error(r, "busy", errno, strerror(errno));
        return;
    }
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    r->out = out[0];
    r->head_cap = (size_t)field_num(request, T_HEAD_BYTES, 32 << 10);
    r->tail_cap = (size_t)field_num(request, T_TAIL_BYTES, 32 << 10);
    if (r->head_cap > CAP_MAX) r->head_cap = CAP_MAX;
    if (r->tail_cap > CAP_MAX) r->tail_cap = CAP_MAX;
    u64 total_ns = field_num(request, T_TIMEOUT_MS, 0) * 1000000;
    r->idle_ns = field_num(request, T_IDLE_MS, 0) * 1000000;
    r->grace_ns = field_num(request, T_GRACE_MS, 500) * 1000000;

    const char *problem = launch_prepare(&launch, request, out[1]);
    if (!problem) {
        r->before = pressure_read();
        r->child = keeper_start(&launch, &r->control);
        if (r->child < 0) {
            r->control = -1;
            r->note.error = errno; /* the pid limit is full, or memory is */
        }
        r->state_fd = launch.state_fd;
    } else if (launch.state_fd >= 0) {
        close(launch.state_fd);
    }
    launch_free(&launch);
    if (problem) {
        char code[16];
        snprintf(code, sizeof code, "%.*s", (int)strcspn(problem, ":"), problem);
        finish_error(r, code, EINVAL, strchr(problem, ':') + 2);
        return;
    }
    if (r->child < 0) {
        r->note.started_ns = now_ns();
        not_executed(r);
        return;
    }
    u64 now = now_ns();
    if (total_ns) r->total_at_ns = now + total_ns;
    if (r->idle_ns) r->idle_at_ns = now + r->idle_ns;
    watch(r->out, POLLIN, on_output, r);
    watch(r->control, POLLIN, on_control, r);
}

static void start_next(void) {
    static bool starting;
    if (starting) return; /* a start that fails at once ends here again */
    starting = true;
    for (bool more = true; more && running_count < MOST_RUNNING;) {
        struct request *oldest = NULL;
        for (struct request *r = all; r; r = r->next)
            if (r->phase == QUEUED) oldest = r; /* the list is newest first */
        more = oldest != NULL;
        if (oldest) start_command(oldest);
    }
    starting = false;
}

/* --- file transfers --- */

static void on_status(void *owner, short events) {
    struct request *r = owner;
    struct worker_status status;
    (void)events;
    ssize_t n = read(r->status, &status, sizeof status);
    if (n < 0 && errno == EAGAIN) return;
    if (n == (ssize_t)sizeof status && !status.error && r->type == F_GET && !r->data_ended) {
        unwatch(r->status); /* its last bytes are still in the pipe: they end it */
        put_num(&r->reply, T_COUNT, status.count);
        return;
    }
    close_watched(&r->status);
    close_watched(&r->data);
    r->reply.n = 0;
    if (n != (ssize_t)sizeof status) {
        finish_error(r, "file", EIO, "the file transfer was killed");
    } else if (status.error) {
        char reason[400];
        snprintf(reason, sizeof reason, "%s: %.256s", strerror(status.error), status.where);
        finish_error(r, "file", status.error, reason);
    } else {
        put_num(&r->reply, T_COUNT, status.count);
        if (r->type == F_DIGEST) put_bytes(&r->reply, T_SHA256, status.sha256, sizeof status.sha256);
        finished(r, F_RESULT);
    }
}

static void on_upload(void *owner, short events) {
    struct request *r = owner;
    (void)events;
    while (r->inbox.n) {
        ssize_t n = write(r->data, r->inbox.p, r->inbox.n);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) { /* the worker has failed; its status says why */
            r->inbox.n = 0;
            close_watched(&r->data);
            return;
        }
        buf_drop(&r->inbox, (size_t)n);
        struct buf want = {0};
        put_num(&want, T_BYTES, (u64)n);
        link_send(F_WANT, r->id, want.p, want.n);
        buf_free(&want);
    }
    if (r->inbox.n) watch(r->data, POLLOUT, on_upload, r);
    else if (r->inbox_ended) close_watched(&r->data);
    else watch(r->data, 0, on_upload, r);
}

static void on_download(void *owner, short events) {
    static u8 chunk[RR_CHUNK];
    struct request *r = owner;
    (void)events;
    while (link_may_send(sizeof chunk)) {
        ssize_t n = read(r->data, chunk, sizeof chunk);
        if (n < 0 && errno == EAGAIN) return;
        if (n > 0) {
            link_send(F_OUTPUT, r->id, chunk, (size_t)n);
            link_sent((size_t)n);
            continue;
        }
        r->data_ended = true;
        close_watched(&r->data);
        if (r->reply.n) {
            close_watched(&r->status);
            finished(r, F_RESULT);
        }
        return;
    }
    watch(r->data, 0, on_download, r); /* until the window opens */
}

static void start_transfer(struct request *r) {
    struct bytes request = {r->payload.p, r->payload.n};
    pid_t pid = r->type == F_PUT   ? put_start(request, &r->data, &r->status)
                : r->type == F_GET ? get_start(request, &r->data, &r->status)
                                   : digest_start(request, &r->status);
    r->phase = RUNNING;
    r->child = pid;
    if (pid < 0) {
        finish_error(r, errno == EPERM ? "user" : "file", errno, errno == EPERM ? "cannot become that user" : strerror(errno));
        return;
    }
    watch(r->status, POLLIN, on_status, r);
    if (r->type == F_GET) watch(r->data, POLLIN, on_download, r);
    if (r->type == F_PUT) watch(r->data, 0, on_upload, r);
}

/* --- what the link calls --- */

void request_start(u8 type, u32 id, struct bytes payload) {
    if (find(id)) return; /* sent again after a broken stream */
    if (known_count >= MOST_KNOWN) {
        link_error(id, "busy", EBUSY, "too many requests at once");
        return;
    }
    struct request *r = xmalloc(sizeof *r);
    *r = (struct request){.id = id, .type = type, .received_ns = now_ns(), .control = -1, .out = -1, .state_fd = -1,
                          .data = -1, .status = -1, .next = all};
    all = r;
    known_count++;
    buf_add(&r->payload, payload.p, payload.n);
    if (type == F_EXEC) start_next();
    else start_transfer(r);
}

void request_cancel(u32 id) {
    struct request *r = find(id);
    if (!r) return;
    if (r->phase == QUEUED) finish_error(r, "cancelled", ECANCELED, "cancelled before it started");
    else if (r->type == F_EXEC) end_command(r, LIMIT_CANCELLED, now_ns());
    else if (r->phase == RUNNING && r->child > 0) kill(r->child, SIGTERM);
}

void request_ack(u32 id) {
    struct request *r = find(id);
    if (r && r->phase >= SENDING) forget(r);
}

void request_data(u32 id, struct bytes data, bool end) {
    struct request *r = find(id);
    if (!r || r->type != F_PUT || r->phase != RUNNING || r->data < 0) return;
    if (r->inbox.n + data.n > 2 * RR_WINDOW) {
        kill(r->child, SIGTERM); /* a host that ignores the window */
        return;
    }
    buf_add(&r->inbox, data.p, data.n);
    if (end) r->inbox_ended = true;
    on_upload(r, POLLOUT);
}

void request_child_died(pid_t pid, int status) {
    (void)status;
    for (struct request *r = all; r; r = r->next)
        if (r->child == pid) r->child = -1; /* its pipes tell the rest */
}

void requests_kill_all(u32 id) {
    int ended = 0;
    for (struct request *r = all, *next; r; r = next) {
        next = r->next;
        if (r->type != F_EXEC) continue;
        if (r->phase == RUNNING && r->limit == LIMIT_NONE) r->limit = LIMIT_KILL_ALL;
        if (r->phase == QUEUED) request_cancel(r->id); /* before anything ends, or it would start then */
    }
    kill_everything(5000000000u);
    for (struct request *r = all, *next; r; r = next) {
        next = r->next;
        if (r->phase != RUNNING) continue;
        ended++;
        if (r->type == F_EXEC) {
            finish_command(r);
        } else {
            close_watched(&r->data);
            close_watched(&r->status);
            finish_error(r, "file", EIO, "the file transfer was killed");
        }
    }
    struct buf reply = {0};
    put_num(&reply, T_COUNT, (u64)ended);
    link_send(F_RESULT, id, reply.p, reply.n);
    buf_free(&reply);
}

static bool awaited(struct bytes ids, u32 id) {
    for (size_t at = 0; at + 4 <= ids.n; at += 4)
        if (!memcmp(ids.p + at, &id, 4)) return true;
    return false;
}

void requests_rewind(struct bytes pending, struct buf *known) {
    for (struct request *r = all, *next; r; r = next) {
        next = r->next;
        if (r->type != F_EXEC) {
            if (r->phase == RUNNING && r->child > 0) kill(r->child, SIGTERM);
            forget(r);
        } else if (awaited(pending, r->id)) {
            buf_add(known, &r->id, 4);
            r->sent = 0;
            if (r->phase == SENT) r->phase = SENDING;
        } else if (r->phase == RUNNING) {
            r->forgotten = true;
            end_command(r, LIMIT_CANCELLED, now_ns());
        } else {
            forget(r);
        }
    }
    start_next();
}

static u64 sooner(u64 a, u64 b) { return !a || (b && b < a) ? b : a; }

u64 requests_tick(u64 now) {
    u64 next_ns = 0;
    for (struct request *r = all, *next; r; r = next) {
        next = r->next;
        if (r->type != F_EXEC || r->phase != RUNNING) continue;
        if (r->limit == LIMIT_NONE && r->total_at_ns && now >= r->total_at_ns) end_command(r, LIMIT_TOTAL, now);
        if (r->limit == LIMIT_NONE && r->idle_at_ns && now >= r->idle_at_ns) end_command(r, LIMIT_IDLE, now);
        if (r->limit != LIMIT_NONE) {
            if (now >= r->lost_at_ns) { /* stopped, or killed in a way that did not reach us */
                if (r->child > 0) kill(r->child, SIGKILL);
                keeper_lost(r);
                return now; /* the list may have changed under us */
            }
            next_ns = sooner(next_ns, r->lost_at_ns);
        } else {
            next_ns = sooner(sooner(next_ns, r->total_at_ns), r->idle_at_ns);
        }
    }
    return next_ns;
}

void requests_pump(void) {
    for (struct request *r = all; r; r = r->next) {
        if (r->phase == RUNNING && r->type == F_GET && r->data >= 0 && link_may_send(RR_CHUNK))
            watch(r->data, POLLIN, on_download, r);
        if (r->phase != SENDING) continue;
        while (r->sent < r->output.n) {
            size_t part = r->output.n - r->sent;
            if (part > RR_CHUNK) part = RR_CHUNK;
            if (!link_may_send(part)) return;
            link_send(F_OUTPUT, r->id, r->output.p + r->sent, part);
            link_sent(part);
            r->sent += part;
        }
        if (!link_active()) return;
        link_send(r->reply_type, r->id, r->reply.p, r->reply.n);
        r->phase = SENT;
    }
}

int requests_idle(void) {
    for (struct request *r = all; r; r = r->next)
        if (r->phase != SENT) return 0;
    return all != NULL;
}
