/* Streams to hosts: who may speak, cutting bytes into frames, the window, and being found again.
 *
 * The first hello brings a key of 16 random bytes. A later host, which may join in the middle of an older one's frame
 * (an attach stream has no beginning), sends the key again and is heard from there on; nobody else knows it, so no
 * contents of a frame can be mistaken for it. Frames of an older epoch are refused. */
#include "rr.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { TX_MOST = 1 << 20, LINKS = 6 };

struct link {
    int in, out;
    bool used, open, is_socket, synced, trusted;
    struct buf rx, tx;
    size_t scanned; /* bytes of rx known not to begin a key */
};

static struct link links[LINKS];
static struct link *host; /* the one whose hello was accepted last */
static u16 epoch;
static u8 key[RR_KEY];
static bool key_known;
static size_t window_used;

static void on_readable(void *owner, short events);
static void on_writable(void *owner, short events);

bool link_active(void) { return host != NULL; }

static void frame(struct link *l, u8 type, u16 of_epoch, u32 id, const void *p, size_t n) {
    u8 header[RR_HEADER] = {0};
    u32 size = (u32)n;
    memcpy(header, &size, 4);
    header[4] = type;
    memcpy(header + 6, &of_epoch, 2);
    memcpy(header + 8, &id, 4);
    buf_add(&l->tx, header, sizeof header);
    buf_add(&l->tx, p, n);
}

void link_send(u8 type, u32 id, const void *p, size_t n) {
    if (host) frame(host, type, epoch, id, p, n);
}

bool link_may_send(size_t n) { return host && window_used + n <= RR_WINDOW && host->tx.n < TX_MOST; }
void link_sent(size_t n) { window_used += n; }

static void refuse(struct link *l, u16 to_epoch, const char *code, const char *reason) {
    struct buf b = {0};
    put_text(&b, T_CODE, code);
    put_text(&b, T_REASON, reason);
    put_num(&b, T_EPOCH, epoch);
    put_num(&b, T_VERSION_MIN, RR_VERSION);
    put_num(&b, T_VERSION_MAX, RR_VERSION);
    frame(l, F_REFUSED, to_epoch, 0, b.p, b.n);
    buf_free(&b);
}

void link_error(u32 id, const char *code, int error, const char *reason) {
    struct buf b = {0};
    put_text(&b, T_CODE, code);
    put_num(&b, T_ERRNO, (u64)error);
    put_text(&b, T_REASON, reason);
    link_send(F_ERROR, id, b.p, b.n);
    buf_free(&b);
}

static void link_close(struct link *l) {
    if (l->open) unwatch(l->in);
    if (l->out != l->in) unwatch(l->out);
    if (l == host) host = NULL;
    buf_free(&l->rx);
    buf_free(&l->tx);
    l->open = false;
    if (!l->is_socket) return; /* standard streams stay: another host may attach to them */
    close(l->in);
    l->used = false;
}

static void flush(struct link *l) {
    while (l->tx.n) {
        ssize_t n = write(l->out, l->tx.p, l->tx.n);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            link_close(l);
            return;
        }
        buf_drop(&l->tx, (size_t)n);
    }
    /* With more queued than a window and its replies take, the host must read before it may ask for more. */
    short reading = l->open && l->tx.n < TX_MOST ? POLLIN : 0, writing = l->tx.n ? POLLOUT : 0;
    if (l->in == l->out) {
        watch(l->in, reading | writing, on_readable, l);
    } else {
        if (l->open) watch(l->in, reading, on_readable, l);
        watch(l->out, writing, on_writable, l);
    }
}

static void on_writable(void *owner, short events) {
    (void)events;
    flush(owner);
}

void links_flush(void) {
    for (int i = 0; i < LINKS; i++)
        if (links[i].used) flush(&links[i]);
}

bool link_flushed(void) { return !host || !host->tx.n; }

static void hello(struct link *l, u16 of_epoch, struct bytes payload) {
    struct bytes nonce = field(payload, T_NONCE), pending = field(payload, T_IDS);
    u64 low = field_num(payload, T_VERSION_MIN, 0), high = field_num(payload, T_VERSION_MAX, 0);
    if (nonce.n != RR_KEY) return refuse(l, of_epoch, "malformed", "hello without a nonce of 16 bytes");
    if (low > RR_VERSION || high < RR_VERSION)
        return refuse(l, of_epoch, "version", "this runner speaks version 1 of the protocol only");
    if (of_epoch <= epoch) return refuse(l, of_epoch, "epoch", "a later host has said hello already");
    if (host && host != l) link_close(host);
    host = l;
    epoch = of_epoch;
    window_used = 0;
    l->tx.n = 0; /* what was queued for an earlier hello is sent again, or is nobody's */
    lease_ns = field_num(payload, T_LEASE_MS, lease_ns / 1000000) * 1000000;
    lease_deadline_ns = now_ns() + lease_ns;

    struct buf known = {0}, b = {0};
    struct utsname system;
    requests_rewind(pending, &known);
    uname(&system);
    const char *shell = find_shell();
    put_num(&b, T_VERSION_MAX, RR_VERSION);
    put_text(&b, T_BUILD, RR_BUILD);
    put_num(&b, T_PID, (u64)getpid());
    put_num(&b, T_UID, (u64)getuid());
    put_num(&b, T_IS_INIT, is_init);
    put_text(&b, T_SHELL, shell ? shell : "");
    put_text(&b, T_MACHINE, system.machine);
    put_text(&b, T_KERNEL, system.release);
    put_text(&b, T_CWD, carried.cwd);
    put_bytes(&b, T_ENV, born.env.p, born.env.n); /* for the grader: what no command has touched */
    put_bytes(&b, T_IDS, known.p, known.n);
    buf_add(&l->tx, nonce.p, nonce.n); /* raw: the host skips to it, past whatever an older stream left */
    frame(l, F_HELLO_OK, epoch, 0, b.p, b.n);
    buf_free(&b);
    buf_free(&known);
}

static void handle(struct link *l, u8 type, u16 of_epoch, u32 id, struct bytes payload) {
    bool raw = type == F_DATA;
    if (!raw && !fields_valid(payload)) return refuse(l, of_epoch, "malformed", "a payload is not a list of fields");
    if (type == F_HELLO) return hello(l, of_epoch, payload);
    if (l != host) return refuse(l, of_epoch, "hello", "say hello first");
    if (of_epoch != epoch) return refuse(l, of_epoch, "epoch", "a later host has said hello");
    lease_deadline_ns = now_ns() + lease_ns;
    switch (type) {
    case F_LEASE: link_send(F_LEASE_OK, id, NULL, 0); break;
    case F_EXEC:
    case F_PUT:
    case F_GET:
    case F_DIGEST: request_start(type, id, payload); break;
    case F_DATA: request_data(id, payload, false); break;
    case F_END: request_data(id, (struct bytes){NULL, 0}, true); break;
    case F_KILL_ALL: requests_kill_all(id); break;
    case F_CANCEL: request_cancel(id); break;
    case F_ACK: request_ack(id); break;
    case F_CREDIT: {
        u64 n = field_num(payload, T_BYTES, 0);
        window_used = n > window_used ? 0 : window_used - (size_t)n;
        break;
    }
    case F_SHUTDOWN: stopping = true; break;
    default: link_error(id, "malformed", EINVAL, "unknown frame type");
    }
}

static void drop(struct link *l, size_t n) {
    buf_drop(&l->rx, n);
    l->scanned = l->scanned > n ? l->scanned - n : 0;
}

/* Steps past the next key in what arrived; false: not there yet. */
static bool find_key(struct link *l) {
    size_t from = l->scanned > RR_KEY - 1 ? l->scanned - (RR_KEY - 1) : 0;
    u8 *at = l->rx.n - from >= RR_KEY ? memmem(l->rx.p + from, l->rx.n - from, key, RR_KEY) : NULL;
    l->scanned = l->rx.n;
    if (!at) return false;
    drop(l, (size_t)(at - l->rx.p) + RR_KEY);
    l->scanned = 0;
    return true;
}

static void lose_sync(struct link *l) {
    l->synced = false;
    if (l->rx.n >= RR_KEY) drop(l, l->rx.n - (RR_KEY - 1)); /* a key may have begun in the last bytes */
    l->scanned = 0;
}

static void take(struct link *l) {
    if (!l->trusted) {
        if (!key_known) {
            if (l->is_socket || l->rx.n < RR_KEY) return; /* only the stream we were started with may set it */
            memcpy(key, l->rx.p, RR_KEY);
            key_known = true;
        }
        while (find_key(l)) l->synced = true;
        if (!l->synced) return lose_sync(l);
    }
    size_t at = 0;
    while (l->used && l->open && l->rx.n - at >= RR_HEADER) {
        const u8 *h = l->rx.p + at;
        u32 size, id;
        u16 of_epoch;
        memcpy(&size, h, 4);
        memcpy(&of_epoch, h + 6, 2);
        memcpy(&id, h + 8, 4);
        bool whole = l->rx.n - at - RR_HEADER >= size;
        /* An attach stream has many writers: what an older connection had under way can land inside our host's frames. */
        bool stray = l == host && !whole && h[4] != F_HELLO && of_epoch != epoch;
        if (size > RR_MAX_PAYLOAD || h[5] || stray) {
            refuse(l, l == host ? epoch : of_epoch, size > RR_MAX_PAYLOAD ? "too_large" : "malformed",
                   "not a frame; say hello again");
            drop(l, at);
            return lose_sync(l);
        }
        if (!whole) break;
        handle(l, h[4], of_epoch, id, (struct bytes){h + RR_HEADER, size});
        if (!l->used || !l->open) return;
        at += RR_HEADER + size;
    }
    drop(l, at);
}

static void on_readable(void *owner, short events) {
    static u8 chunk[RR_CHUNK];
    struct link *l = owner;
    if (events & POLLOUT) flush(l);
    if (!l->open || !(events & (POLLIN | POLLHUP | POLLERR))) return;
    ssize_t n = read(l->in, chunk, sizeof chunk);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) {
        buf_add(&l->rx, chunk, (size_t)n);
        take(l);
        return;
    }
    /* The end of standard input is not the end: only the lease is. */
    if (l->is_socket || l->in == l->out) {
        link_close(l);
    } else {
        unwatch(l->in);
        l->open = false;
    }
}

void link_open(int in, int out, bool trusted) {
    for (int i = 0; i < LINKS; i++) {
        struct link *l = &links[i];
        if (l->used) continue;
        *l = (struct link){.in = in, .out = out, .used = true, .open = true, .is_socket = in > 2, .trusted = trusted};
        fcntl(in, F_SETFL, fcntl(in, F_GETFL) | O_NONBLOCK);
        fcntl(out, F_SETFL, fcntl(out, F_GETFL) | O_NONBLOCK);
        if (trusted) host = l;
        watch(in, POLLIN, on_readable, l);
        return;
    }
    close(in); /* more strangers than we talk to at once */
}

void link_key(const u8 given[RR_KEY]) {
    memcpy(key, given, RR_KEY);
    key_known = true;
}
