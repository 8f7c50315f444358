#include "request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "kill.h"
#include "launch.h"
#include "link.h"
#include "main.h"
#include "system.h"
#include "wire.h"

enum {
    MOST_RUNNING = 64,           /* commands, and as many transfers; the rest is queued */
    MOST_KNOWN = 512,            /* requests, from received to acknowledged */
    PAYLOADS_MOST = 64 << 20,    /* bytes of requests that have not begun to reply */
    KEPT_OUTPUT_MOST = 32 << 20, /* bytes of output in replies that are not acknowledged */
};

static struct request *oldest, *newest;
static int known_count, running_count[2]; /* running: transfers, commands */
static size_t payload_bytes, kept_bytes;
static bool any_seen;

static struct request *find(u32 id) {
    for (struct request *r = oldest; r; r = r->newer)
        if (r->id == id) return r;
    return NULL;
}

static void drop_payload(struct request *r) {
    payload_bytes -= r->payload.n;
    buf_free(&r->payload);
}

static void drop_output(struct request *r) {
    kept_bytes -= r->reply.output.n;
    buf_free(&r->reply.output);
}

static void forget(struct request *r) {
    *(r->older ? &r->older->newer : &oldest) = r->newer;
    *(r->newer ? &r->newer->older : &newest) = r->older;
    drop_payload(r);
    drop_output(r);
    buf_free(&r->reply.fields);
    command_free(&r->command);
    transfer_free(&r->transfer);
    known_count--;
    free(r);
}

/* --- beginning and ending --- */

static void start_queued(void) {
    static bool starting;
    if (starting) return; /* a start that fails at once ends here again */
    starting = true;
    for (struct request *r = oldest, *next; r; r = next) {
        next = r->newer;
        if (r->phase != QUEUED || running_count[r->type == F_EXEC] >= MOST_RUNNING) continue;
        running_count[r->type == F_EXEC]++;
        r->phase = RUNNING;
        r->started_ns = now_ns();
        if (r->type == F_EXEC) command_start(r);
        else transfer_start(r);
        next = oldest; /* a start that failed may have freed its neighbours */
    }
    starting = false;
}

/* A host that never takes its results costs so much memory and no more: the oldest lose their text and keep their facts. */
static void bound_kept_output(const struct request *but) {
    for (struct request *r = oldest; r && kept_bytes > KEPT_OUTPUT_MOST; r = r->newer) {
        if (r == but || r->phase < SENDING) continue;
        if (r->reply.head_kept > r->reply.sent) r->reply.head_kept = r->reply.sent;
        drop_output(r);
        r->reply.sent = 0;
    }
}

void request_finish(struct request *r, u8 reply_type) {
    if (r->phase == RUNNING) running_count[r->type == F_EXEC]--;
    r->reply.type = reply_type;
    r->phase = SENDING;
    drop_payload(r);
    kept_bytes += r->reply.output.n;
    bound_kept_output(r);
    if (r->forgotten) forget(r);
    start_queued();
}

void request_fail(struct request *r, const char *code, int error, const char *reason) {
    r->reply.fields.n = 0;
    put_text(&r->reply.fields, T_CODE, code);
    put_num(&r->reply.fields, T_ERRNO, (u64)error);
    put_text(&r->reply.fields, T_REASON, reason);
    request_finish(r, F_ERROR);
}

void request_start(u8 type, u32 id, struct bytes payload) {
    if (find(id)) return; /* sent again after a broken stream */
    if (known_count >= MOST_KNOWN || payload_bytes + payload.n > PAYLOADS_MOST) {
        link_error(id, "busy", EBUSY, "too many requests at once");
        return;
    }
    struct request *r = xmalloc(sizeof *r);
    *r = (struct request){.id = id, .type = type, .received_ns = now_ns(), .older = newest};
    r->command.out = r->transfer.data = r->transfer.status = r->transfer.worker = -1;
    *(newest ? &newest->newer : &oldest) = r;
    newest = r;
    known_count++;
    buf_add(&r->payload, payload.p, payload.n);
    payload_bytes += payload.n;
    any_seen = true;
    start_queued();
}

void request_cancel(u32 id) {
    struct request *r = find(id);
    if (!r || r->phase > RUNNING) return;
    if (r->phase == QUEUED) request_fail(r, "cancelled", ECANCELED, "cancelled before it started");
    else if (r->type == F_EXEC) command_end(r, LIMIT_CANCELLED);
    else transfer_stop(r);
}

void request_ack(u32 id) {
    struct request *r = find(id);
    if (r && r->phase >= SENDING) forget(r);
}

void request_data(u32 id, struct bytes data) {
    struct request *r = find(id);
    if (r && r->type == F_PUT && r->phase <= RUNNING) transfer_data(r, data, false);
}

void request_data_end(u32 id) {
    struct request *r = find(id);
    if (r && r->type == F_PUT && r->phase <= RUNNING) transfer_data(r, (struct bytes){NULL, 0}, true);
}

void request_child_died(pid_t pid) {
    crew_child_died(pid);
    for (struct request *r = oldest; r; r = r->newer)
        if (r->transfer.worker == pid) r->transfer.worker = -1; /* its pipes tell the rest */
}

/* False: something could not be killed, and the request was answered. */
static bool end_all(u32 id, u64 *ended) {
    for (struct request *r = oldest, *next; r; r = next) {
        next = r->newer;
        if (r->phase == QUEUED) request_cancel(r->id); /* before anything ends, or it would start then */
    }
    bool all_dead = kill_everything() && (!one_shot || kill_kept());
    crew_disband();
    for (struct request *r = oldest, *next; r; r = next) {
        next = r->newer;
        if (r->phase != RUNNING) continue;
        ++*ended;
        if (r->type == F_EXEC) command_killed(r);
        else transfer_killed(r);
    }
    if (!all_dead) {
        link_error(id, "unkillable", EBUSY, "a process in the sandbox cannot be killed");
        return false;
    }
    return true;
}

void requests_kill_all(u32 id) {
    u64 ended = 0;
    if (!end_all(id, &ended)) return;
    struct buf reply = {0};
    put_num(&reply, T_COUNT, ended);
    link_send(F_RESULT, id, bytes_of(&reply));
    buf_free(&reply);
}

void requests_reset(u32 id, struct bytes payload) {
    u64 ended = 0;
    struct request *r = find(id);
    if (r && r->phase >= SENDING) return; /* asked for again, and done */
    if (!is_init) {
        link_error(id, "unkillable", EBUSY, "only as PID 1 of its own namespace the runner knows that nothing is left");
        return;
    }
    if (!end_all(id, &ended)) return;
    if ((r = find(id))) forget(r); /* its worker has just been killed */
    for (r = oldest; r; r = r->newer) r->command.state = NULL;
    states_forget();
    request_start(F_RESET, id, payload);
}

/* --- a host comes back --- */

static bool is_among(struct bytes ids, u32 id) {
    for (size_t at = 0; at + 4 <= ids.n; at += 4)
        if (!memcmp(ids.p + at, &id, 4)) return true;
    return false;
}

void requests_rewind(struct bytes pending, struct buf *known) {
    for (struct request *r = oldest, *next; r; r = next) {
        next = r->newer;
        if (r->type == F_EXEC && is_among(pending, r->id)) {
            buf_add(known, &r->id, 4);
            r->reply.sent = 0;
            if (r->phase == SENT) r->phase = SENDING;
        } else if (r->type == F_EXEC && r->phase == RUNNING) {
            r->forgotten = true;
            command_end(r, LIMIT_CANCELLED);
        } else {
            if (r->phase == RUNNING) {
                transfer_stop(r);
                running_count[0]--;
            }
            forget(r);
        }
    }
    start_queued();
}

/* --- the loop --- */

u64 requests_tick(u64 now) {
    u64 next_ns = 0;
    for (struct request *r = oldest, *next; r; r = next) {
        next = r->newer;
        if (r->type != F_EXEC || r->phase != RUNNING) continue;
        u64 at_ns = command_tick(r, now);
        if (at_ns == UINT64_MAX) return now; /* the list may have changed under us */
        next_ns = sooner(next_ns, at_ns);
    }
    return next_ns;
}

static bool send_reply(struct request *r) {
    struct reply *reply = &r->reply;
    while (reply->sent < reply->output.n) {
        size_t part = reply->output.n - reply->sent;
        if (part > WIRE_CHUNK) part = WIRE_CHUNK;
        if (!link_may_send(part)) return false;
        link_send(F_OUTPUT, r->id, (struct bytes){reply->output.p + reply->sent, part});
        link_sent(part);
        reply->sent += part;
    }
    if (!link_active()) return false;
    if (r->type == F_EXEC && reply->type == F_RESULT) { /* known only now: text that is kept too long is dropped */
        struct buf fields = {0};
        buf_add(&fields, reply->fields.p, reply->fields.n);
        put_num(&fields, T_HEAD_KEPT, reply->head_kept);
        link_send(reply->type, r->id, bytes_of(&fields));
        buf_free(&fields);
    } else {
        link_send(reply->type, r->id, bytes_of(&reply->fields));
    }
    r->phase = SENT;
    return true;
}

bool requests_pump(void) {
    for (struct request *r = oldest; r; r = r->newer) {
        if (r->phase == RUNNING && r->type == F_GET) transfer_pump(r);
        if (r->phase == SENDING && !send_reply(r)) return true;
    }
    return false;
}

bool requests_idle(void) {
    for (struct request *r = oldest; r; r = r->newer)
        if (r->phase != SENT) return false;
    return true;
}

bool requests_seen(void) { return any_seen; }
