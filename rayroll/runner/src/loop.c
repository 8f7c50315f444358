/* epoll and not poll: poll refuses more descriptors than RLIMIT_NOFILE allows, and whoever shares our uid can lower that
 * limit for us (prlimit), after which the lease could not end anything any more. */
#include "loop.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "system.h"

enum { BATCH = 64 };

struct watched {
    ready_fn fn;
    void *owner;
    short events;
    bool plain; /* a file or /dev/null: always ready, and epoll does not take it */
    bool listed;
    u32 serial; /* of who watches: a number that was closed and opened again is somebody else */
};

static struct watched *by_fd; /* indexed by descriptor */
static int capacity, plain_count, queue = -1;
static u32 last_serial;

static void tell_kernel(int fd, struct watched *w) {
    struct epoll_event event = {.events = (u32)w->events, .data.u64 = (u64)w->serial << 32 | (u32)fd};
    if (queue < 0 && (queue = epoll_create1(EPOLL_CLOEXEC)) < 0) _exit(71); /* EX_OSERR */
    if (!w->events) { /* removed and not muted: a hang-up is told whatever was asked for */
        if (w->listed) epoll_ctl(queue, EPOLL_CTL_DEL, fd, NULL);
        w->listed = false;
    } else if (epoll_ctl(queue, w->listed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0) {
        w->listed = true;
    } else if (errno == EPERM && !w->plain) {
        w->plain = true;
        plain_count++;
    }
}

void watch(int fd, short events, ready_fn fn, void *owner) {
    if (fd >= capacity) {
        int grown = capacity ? capacity : 64;
        while (grown <= fd) grown *= 2;
        by_fd = xrealloc(by_fd, (size_t)grown * sizeof *by_fd);
        memset(by_fd + capacity, 0, (size_t)(grown - capacity) * sizeof *by_fd);
        capacity = grown;
    }
    struct watched *w = &by_fd[fd];
    bool same = w->fn == fn && w->owner == owner;
    if (same && w->events == events) return;
    if (!same) {
        w->fn = fn;
        w->owner = owner;
        w->serial = ++last_serial;
    }
    w->events = events;
    if (!w->plain) tell_kernel(fd, w);
}

void unwatch(int fd) {
    if (fd < 0 || fd >= capacity || !by_fd[fd].fn) return;
    if (by_fd[fd].listed) epoll_ctl(queue, EPOLL_CTL_DEL, fd, NULL);
    plain_count -= by_fd[fd].plain;
    by_fd[fd] = (struct watched){0};
}

void close_watched(int *fd) {
    unwatch(*fd);
    close_fd(fd);
}

static void call(int fd, u32 serial, short events) {
    if (fd < capacity && by_fd[fd].fn && by_fd[fd].serial == serial && by_fd[fd].events)
        by_fd[fd].fn(by_fd[fd].owner, events);
}

void loop_wait(int timeout_ms) {
    struct epoll_event ready[BATCH];
    bool plain_ready = false;
    for (int fd = 0; plain_count && fd < capacity; fd++) plain_ready |= by_fd[fd].plain && by_fd[fd].events;
    int n = queue < 0 ? 0 : epoll_wait(queue, ready, BATCH, plain_ready ? 0 : timeout_ms);
    /* A handler may close what a later event is about: `call` looks it up again. */
    for (int i = 0; i < n; i++) call((int)(u32)ready[i].data.u64, (u32)(ready[i].data.u64 >> 32), (short)ready[i].events);
    for (int fd = 0; plain_ready && fd < capacity; fd++)
        if (by_fd[fd].plain) call(fd, by_fd[fd].serial, by_fd[fd].events);
}
