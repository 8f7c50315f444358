/* One file transfer from the runner's side: bytes between the link and a worker, and what became of it. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "files.h"
#include "link.h"
#include "loop.h"
#include "request.h"
#include "state.h"
#include "system.h"
#include "wire.h"

void transfer_free(struct transfer *t) {
    close_watched(&t->data);
    close_watched(&t->status);
    buf_free(&t->inbox);
}

void transfer_stop(struct request *r) {
    if (r->transfer.worker > 0) kill(r->transfer.worker, SIGTERM);
}

void transfer_killed(struct request *r) { request_fail(r, "file", EIO, "the file transfer was killed"); }

static void close_ends(struct transfer *t) {
    close_watched(&t->data);
    close_watched(&t->status);
}

static void on_status(void *owner, short events) {
    struct request *r = owner;
    struct transfer *t = &r->transfer;
    struct worker_status status;
    (void)events;
    ssize_t n = read(t->status, &status, sizeof status);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    bool whole = n == (ssize_t)sizeof status;
    if (whole && !status.error) {
        put_num(&r->reply.fields, T_COUNT, status.count);
        if (r->type == F_BASELINE || r->type == F_RESET) put_num(&r->reply.fields, T_REPAIRED, status.repaired);
        if (r->type != F_PUT && r->type != F_GET) put_bytes(&r->reply.fields, T_SHA256, status.sha256, sizeof status.sha256);
        t->status_known = true;
        if (r->type == F_GET && !t->data_ended) { /* its last bytes are still in the pipe: they end it */
            close_watched(&t->status);
            return;
        }
        close_ends(t);
        return request_finish(r, F_RESULT);
    }
    close_ends(t);
    if (!whole) return transfer_killed(r);
    char reason[sizeof status.where + 100];
    snprintf(reason, sizeof reason, "%s: %.*s", status.error == EXDEV ? "it leads out of its folder" : status.error == EUCLEAN ? "not clean" : strerror(status.error),
             (int)sizeof status.where, status.where);
    request_fail(r, status.error == EPERM && status.is_user ? "user" : "file", status.error, status.is_user ? status.where : reason);
}

/* --- up --- */

static void on_upload(void *owner, short events) {
    struct request *r = owner;
    struct transfer *t = &r->transfer;
    (void)events;
    u64 taken = 0;
    while (t->inbox.n && t->data >= 0) {
        ssize_t n = write(t->data, t->inbox.p, t->inbox.n);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) { /* the worker has failed; its status says why */
            close_watched(&t->data);
            buf_free(&t->inbox);
            break;
        }
        taken += (u64)n;
        buf_drop(&t->inbox, (size_t)n);
    }
    if (taken) {
        struct buf want = {0};
        put_num(&want, T_BYTES, taken);
        link_send(F_WANT, r->id, bytes_of(&want));
        buf_free(&want);
    }
    if (t->data < 0) return;
    if (t->inbox.n) watch(t->data, POLLOUT, on_upload, r);
    else if (t->inbox_ended) close_watched(&t->data);
    else watch(t->data, 0, on_upload, r);
}

void transfer_data(struct request *r, struct bytes data, bool end) {
    struct transfer *t = &r->transfer;
    if (t->inbox_ended || (r->phase == RUNNING && t->data < 0)) return;
    if (t->inbox.n + data.n > 2 * WIRE_WINDOW) { /* a host that ignores the window */
        if (r->phase == RUNNING) transfer_stop(r);
        else request_fail(r, "busy", ENOBUFS, "more bytes than the window allows");
        return;
    }
    buf_add(&t->inbox, data.p, data.n);
    t->inbox_ended = end;
    if (r->phase == RUNNING) on_upload(r, POLLOUT);
}

/* --- down --- */

static void on_download(void *owner, short events) {
    static u8 chunk[WIRE_CHUNK];
    struct request *r = owner;
    struct transfer *t = &r->transfer;
    (void)events;
    while (link_may_send(sizeof chunk)) {
        ssize_t n = read(t->data, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n > 0) {
            link_send(F_OUTPUT, r->id, (struct bytes){chunk, (size_t)n});
            link_sent((size_t)n);
            continue;
        }
        t->data_ended = true;
        close_watched(&t->data);
        if (t->status_known) request_finish(r, F_RESULT);
        return;
    }
    watch(t->data, 0, on_download, r); /* until the window opens */
}

void transfer_pump(struct request *r) {
    if (r->transfer.data >= 0 && link_may_send(WIRE_CHUNK)) watch(r->transfer.data, POLLIN, on_download, r);
}

/* --- the beginning --- */

void transfer_start(struct request *r) {
    struct transfer *t = &r->transfer;
    struct bytes request = bytes_of(&r->payload);
    char *name = field_text(request, T_USER);
    const struct state *s = name ? state_find(name) : NULL;
    t->worker = worker_start(r->type, request, s && s->who_known ? &s->who : NULL, &t->data, &t->status);
    free(name);
    if (t->worker < 0) return request_fail(r, "file", errno, strerror(errno));
    watch(t->status, POLLIN, on_status, r);
    if (r->type == F_GET) watch(t->data, POLLIN, on_download, r);
    if (r->type == F_PUT) on_upload(r, POLLOUT);
}
