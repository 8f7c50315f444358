/* The first hello brings a key of 16 random bytes. A later host, which may join in the middle of an older one's frame
 * (an attach stream has no beginning), sends the key again and is heard from there on; nobody else knows it, so no
 * contents of a frame can be mistaken for it. Frames of an older epoch are refused. */
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "launch.h"
#include "loop.h"
#include "main.h"
#include "request.h"
#include "state.h"
#include "system.h"

enum {
    LINKS = 6,         /* one host, one coming, and strangers that found the socket */
    TX_MOST = 1 << 20, /* with more queued than this the host must read before it may ask for more */
    LOOK_AGAIN_MS = 100,
};

struct link {
    int in, out;
    bool used, open, is_socket, synced;
    enum trust trust;
    struct buf rx, tx;
    size_t scanned; /* bytes of rx known not to begin a key */
    u64 opened_ns, look_again_ns;
};

static struct link links[LINKS];
static struct link *host; /* the one whose hello was accepted last */
static u16 epoch;
static u8 key[WIRE_KEY];
static bool key_known, first_ended;
static size_t window_used;

static void on_readable(void *owner, short events);
static void on_writable(void *owner, short events);

bool link_active(void) { return host != NULL; }
bool link_flushed(void) { return !host || !host->tx.n; }
bool link_ended(void) { return first_ended; }

/* --- out --- */

static void frame(struct link *l, u8 type, u16 of_epoch, u32 id, struct bytes payload) {
    u8 header[WIRE_HEADER] = {0};
    u32 size = (u32)payload.n;
    memcpy(header, &size, 4);
    header[4] = type;
    memcpy(header + 6, &of_epoch, 2);
    memcpy(header + 8, &id, 4);
    buf_add(&l->tx, header, sizeof header);
    buf_add(&l->tx, payload.p, payload.n);
}

void link_send(u8 type, u32 id, struct bytes payload) {
    if (host) frame(host, type, epoch, id, payload);
}

void link_error(u32 id, const char *code, int error, const char *reason) {
    struct buf b = {0};
    put_text(&b, T_CODE, code);
    put_num(&b, T_ERRNO, (u64)error);
    put_text(&b, T_REASON, reason);
    link_send(F_ERROR, id, bytes_of(&b));
    buf_free(&b);
}

bool link_may_send(size_t n) {
    if (!host || host->tx.n >= TX_MOST) return false;
    return host->trust == TRUSTED || window_used + n <= WIRE_WINDOW; /* whoever pipes to `once` gives no credit */
}

void link_sent(size_t n) { window_used += n; }

static void refuse(struct link *l, u16 to_epoch, u32 id, const char *code, const char *reason) {
    struct buf b = {0};
    put_text(&b, T_CODE, code);
    put_text(&b, T_REASON, reason);
    put_num(&b, T_EPOCH, epoch);
    put_num(&b, T_VERSION_MIN, WIRE_VERSION);
    put_num(&b, T_VERSION_MAX, WIRE_VERSION);
    frame(l, F_REFUSED, to_epoch, id, bytes_of(&b));
    buf_free(&b);
    if (l->trust == TRUSTED) stopping = true; /* `once` cannot be told more */
}

/* A host that says hello skips to its nonce, so the refusal must be found behind it; in a frame of its own, for another
 * host may be listening to the same stream. */
static void refuse_hello(struct link *l, u16 to_epoch, struct bytes nonce, const char *code, const char *reason) {
    struct buf b = {0};
    put_bytes(&b, T_NONCE, nonce.p, nonce.n);
    frame(l, F_REFUSED, to_epoch, 0, bytes_of(&b));
    buf_free(&b);
    refuse(l, to_epoch, 0, code, reason);
}

static void link_close(struct link *l) {
    unwatch(l->in);
    unwatch(l->out);
    if (l == host) host = NULL;
    buf_free(&l->rx);
    buf_free(&l->tx);
    l->open = l->synced = false;
    l->scanned = 0;
    l->look_again_ns = 0;
    if (!l->is_socket) return;
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
    /* A port that nobody is at is hung up all the time, which epoll would tell without a pause. */
    bool away = l->look_again_ns != 0;
    short reading = l->open && !away && l->tx.n < TX_MOST ? POLLIN : 0, writing = l->tx.n && !away ? POLLOUT : 0;
    if (l->in == l->out) {
        watch(l->in, reading | writing, on_readable, l);
    } else {
        if (l->open) watch(l->in, reading, on_readable, l);
        if (writing || l->open) watch(l->out, writing, on_writable, l);
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

/* --- in --- */

static void hello(struct link *l, u16 of_epoch, struct bytes payload) {
    struct bytes nonce = field(payload, T_NONCE);
    u64 low = field_num(payload, T_VERSION_MIN, 0), high = field_num(payload, T_VERSION_MAX, 0);
    if (nonce.n != WIRE_KEY) return refuse(l, of_epoch, 0, "malformed", "hello without a nonce of 16 bytes");
    if (low > WIRE_VERSION || high < WIRE_VERSION)
        return refuse_hello(l, of_epoch, nonce, "version", "this runner does not speak the host's version of the protocol");
    if (of_epoch <= epoch) return refuse_hello(l, of_epoch, nonce, "epoch", "a later host has said hello already");
    if (host && host != l) link_close(host);
    host = l;
    epoch = of_epoch;
    window_used = 0;
    l->tx.n = 0; /* what was queued for an earlier hello is sent again, or is nobody's */
    lease_set(field_ns(payload, T_LEASE_MS, 0));

    struct buf known = {0}, b = {0};
    struct utsname system = {0};
    requests_rewind(field(payload, T_IDS), &known);
    uname(&system);
    const char *shell = find_shell();
    put_num(&b, T_VERSION_MAX, WIRE_VERSION);
    put_text(&b, T_BUILD, RR_BUILD);
    put_bytes(&b, T_INSTANCE, instance, sizeof instance);
    put_num(&b, T_PID, (u64)getpid());
    put_num(&b, T_UID, (u64)getuid());
    put_num(&b, T_IS_INIT, is_init);
    put_text(&b, T_SHELL, shell ? shell : "");
    put_text(&b, T_MACHINE, system.machine);
    put_text(&b, T_KERNEL, system.release);
    put_text(&b, T_CWD, state_of(NULL)->cwd);
    put_bytes(&b, T_ENV, born.env.p, born.env.n); /* for the grader: what no command has touched */
    put_bytes(&b, T_IDS, known.p, known.n);
    buf_add(&l->tx, nonce.p, nonce.n); /* raw: the host skips to it, past whatever an older stream left */
    frame(l, F_HELLO_OK, epoch, 0, bytes_of(&b));
    buf_free(&b);
    buf_free(&known);
}

static void handle(struct link *l, u8 type, u16 of_epoch, u32 id, struct bytes payload) {
    if (type != F_DATA && !fields_valid(payload))
        return refuse(l, of_epoch, id, "malformed", "the payload is not a list of fields, or one of them cannot be read");
    if (type == F_HELLO) return hello(l, of_epoch, payload);
    if (l != host) return refuse(l, of_epoch, id, "hello", "say hello first");
    if (of_epoch != epoch) return refuse(l, of_epoch, id, "epoch", "a later host has said hello");
    lease_renew();
    switch (type) {
    case F_LEASE:
        lease_set(field_ns(payload, T_LEASE_MS, 0));
        link_send(F_LEASE_OK, id, (struct bytes){NULL, 0});
        break;
    case F_EXEC:
    case F_PUT:
    case F_GET:
    case F_DIGEST:
    case F_BASELINE: request_start(type, id, payload); break;
    case F_DATA: request_data(id, payload); break;
    case F_END: request_data_end(id); break;
    case F_KILL_ALL: requests_kill_all(id); break;
    case F_RESET: requests_reset(id, payload); break;
    case F_CANCEL: request_cancel(id); break;
    case F_ACK: request_ack(id); break;
    case F_CREDIT: {
        u64 n = field_num(payload, T_BYTES, 0);
        window_used = n > window_used ? 0 : window_used - (size_t)n;
        break;
    }
    case F_SHUTDOWN: stopping = true; break;
    default: refuse(l, of_epoch, id, "malformed", "no such type of frame");
    }
}

static void drop(struct link *l, size_t n) {
    buf_drop(&l->rx, n);
    l->scanned = l->scanned > n ? l->scanned - n : 0;
}

/* Steps past the next key in what arrived; false: there is none yet. */
static bool find_key(struct link *l) {
    size_t from = l->scanned > WIRE_KEY - 1 ? l->scanned - (WIRE_KEY - 1) : 0;
    u8 *at = l->rx.n - from >= WIRE_KEY ? memmem(l->rx.p + from, l->rx.n - from, key, WIRE_KEY) : NULL;
    l->scanned = l->rx.n;
    if (!at) return false;
    drop(l, (size_t)(at - l->rx.p) + WIRE_KEY);
    l->scanned = 0;
    return true;
}

/* Deaf until the next key, which may have begun in the last bytes. */
static void lose_sync(struct link *l) {
    l->synced = false;
    if (l->rx.n >= WIRE_KEY) drop(l, l->rx.n - (WIRE_KEY - 1));
    l->scanned = 0;
}

static void take(struct link *l) {
    if (l->trust == NEEDS_KEY) {
        if (!key_known) {
            if (l->is_socket) return lose_sync(l); /* only the stream we were started with may set it */
            if (l->rx.n < WIRE_KEY) return;
            link_key(l->rx.p);
        }
        while (find_key(l)) l->synced = true;
        if (!l->synced) return lose_sync(l);
    }
    size_t at = 0;
    /* `handle` adds to tx and may close other links, so rx stays where it is; a frame may end the whole runner. */
    while (l->rx.n - at >= WIRE_HEADER && !stopping) {
        const u8 *h = l->rx.p + at;
        u32 size, id;
        u16 of_epoch;
        memcpy(&size, h, 4);
        memcpy(&of_epoch, h + 6, 2);
        memcpy(&id, h + 8, 4);
        bool whole = l->rx.n - at - WIRE_HEADER >= size;
        /* An attach stream has many writers: what an older connection had under way can land inside our host's frames. */
        bool stray = l == host && !whole && h[4] != F_HELLO && of_epoch != epoch;
        if (size > WIRE_MAX_PAYLOAD || h[5] || stray) {
            refuse(l, l == host ? epoch : of_epoch, 0, size > WIRE_MAX_PAYLOAD ? "too_large" : "malformed",
                   "not a frame; say hello again");
            drop(l, at);
            return lose_sync(l);
        }
        if (!whole) break;
        handle(l, h[4], of_epoch, id, (struct bytes){h + WIRE_HEADER, size});
        at += WIRE_HEADER + size;
    }
    drop(l, at);
}

/* The other side of a serial port comes and goes, and whoever is there reads as the end of the file meanwhile. The end of
 * a pipe is one, but not ours: only the lease is. */
static void input_ended(struct link *l) {
    struct stat st;
    if (l->is_socket) return link_close(l);
    unwatch(l->in);
    first_ended = true;
    bool is_port = fstat(l->in, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev != makedev(1, 3); /* /dev/null */
    if (is_port) l->look_again_ns = now_ns() + LOOK_AGAIN_MS * 1000000ull;
    else l->open = false;
}

static void hear(struct link *l, const u8 *p, size_t n) { /* the fuzzer's way in */
    buf_add(&l->rx, p, n);
    take(l);
}

static void on_readable(void *owner, short events) {
    static u8 chunk[WIRE_CHUNK];
    struct link *l = owner;
    if (events & POLLOUT) flush(l);
    if (!l->open || !(events & (POLLIN | POLLHUP | POLLERR))) return;
    ssize_t n = read(l->in, chunk, sizeof chunk);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) hear(l, chunk, (size_t)n);
    else input_ended(l);
}

u64 links_tick(u64 now) {
    u64 next = 0;
    for (int i = 0; i < LINKS; i++) {
        struct link *l = &links[i];
        if (!l->used || !l->look_again_ns) continue;
        if (now >= l->look_again_ns) {
            l->look_again_ns = 0;
            on_readable(l, POLLIN);
        }
        next = sooner(next, l->look_again_ns);
    }
    return next;
}

/* --- coming and going --- */

/* Where every place is taken, the stranger who has been silent for longest goes: nobody can lock the host out. */
static struct link *free_place(void) {
    struct link *oldest = NULL;
    for (int i = 0; i < LINKS; i++) {
        struct link *l = &links[i];
        if (!l->used) return l;
        if (l->is_socket && !l->synced && (!oldest || l->opened_ns < oldest->opened_ns)) oldest = l;
    }
    if (oldest) link_close(oldest);
    return oldest;
}

void link_open(int in, int out, enum trust trust) {
    struct link *l = free_place();
    if (!l) {
        close(in);
        return;
    }
    *l = (struct link){.in = in, .out = out, .used = true, .open = true, .is_socket = in > 2, .trust = trust,
                       .opened_ns = now_ns()};
    set_nonblocking(in);
    set_nonblocking(out);
    if (trust == TRUSTED) host = l;
    watch(in, POLLIN, on_readable, l);
}

void link_key(const u8 given[WIRE_KEY]) {
    memcpy(key, given, WIRE_KEY);
    key_known = true;
}
