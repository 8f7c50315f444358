#include "crew.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch.h"
#include "loop.h"
#include "system.h"
#include "wire.h"

enum { FREE_MOST = 2 }; /* more than one for those who run several commands at a time; each costs some 100 kB */

struct member {
    pid_t pid;
    int control;
    int out; /* of a command that left background jobs: read and thrown away, for a job must not die of a closed pipe */
    u32 serial;
    struct request *request; /* NULL: free, or left with jobs */
    bool is_free;
    struct member *next;
};

static struct member *all;
static int free_count;

static void remove_member(struct member *m) {
    for (struct member **at = &all; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    free_count -= m->is_free;
    close_watched(&m->control);
    close_watched(&m->out);
    free(m);
}

static void discard(void *owner, short events) {
    static u8 chunk[WIRE_CHUNK];
    struct member *m = owner;
    (void)events;
    for (int i = 0; i < 16; i++) {
        ssize_t n = read(m->out, chunk, sizeof chunk);
        if (n < 0) return;
        if (n == 0) {
            close_watched(&m->out);
            return;
        }
    }
}

static void on_note(void *owner, short events) {
    static u8 message[sizeof(struct note) + INLINE_MOST];
    struct member *m = owner;
    struct note note;
    int fds[MESSAGE_FDS];
    (void)events;
    ssize_t n = message_recv(m->control, message, sizeof message, fds);
    if (n < 0 && errno == EAGAIN) return;
    if (n < (ssize_t)sizeof note) { /* it was killed, or left with its jobs and is done */
        struct request *r = m->request;
        bool left_unread = n < 0 && errno == ECONNRESET; /* something of ours; the first was the command itself */
        remove_member(m);
        if (r && left_unread && r->command.limit == LIMIT_NONE) command_not_taken(r);
        else if (r) command_keeper_lost(r);
        return;
    }
    memcpy(&note, message, sizeof note);
    struct buf from_file = {0};
    int text_fd = note.has_text ? fds[note.in_file ? 1 : 0] : -1;
    if (note.in_file && fds[0] >= 0) {
        u8 *all_of_it = xmalloc(note.changes_n);
        if (pread(fds[0], all_of_it, note.changes_n, 0) == (ssize_t)note.changes_n) buf_add(&from_file, all_of_it, note.changes_n);
        else note.state = STATE_LOST;
        free(all_of_it);
    }
    struct bytes changes = note.in_file ? bytes_of(&from_file) : (struct bytes){message + sizeof note, (size_t)n - sizeof note};
    if (m->request && note.serial == m->serial) command_noted(m->request, &note, changes, text_fd);
    else if (!m->is_free && note.kind == NOTE_GONE) remove_member(m); /* the last background job has ended */
    for (int i = 0; i < MESSAGE_FDS; i++) close_fd(&fds[i]);
    buf_free(&from_file);
}

static struct member *fork_member(void) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return NULL;
    pid_t pid = fork();
    if (pid == 0) {
        /* Only what it needs stays open: another command's pipe held here would never end, and the channel is not the
         * keeper's. Out of the way first, then to low numbers, then everything above is closed at once. */
        int *const wanted[] = {&pair[1], &shared.rc_fd, &shared.runner_fd};
        enum { COUNT = sizeof wanted / sizeof *wanted, FIRST = 3 };
        for (int i = 0; i < COUNT; i++)
            if (*wanted[i] >= 0) *wanted[i] = fcntl(*wanted[i], F_DUPFD_CLOEXEC, FIRST + COUNT);
        null_stdio();
        for (int i = 0; i < COUNT; i++) {
            if (*wanted[i] >= 0) *wanted[i] = dup3(*wanted[i], FIRST + i, O_CLOEXEC);
            else close(FIRST + i);
        }
        close_from(FIRST + COUNT);
        keeper_main(pair[1]);
    }
    close(pair[1]);
    if (pid < 0) {
        int error = errno;
        close(pair[0]);
        errno = error;
        return NULL;
    }
    struct member *m = xmalloc(sizeof *m);
    *m = (struct member){.pid = pid, .control = pair[0], .out = -1, .next = all};
    all = m;
    watch(m->control, POLLIN, on_note, m);
    return m;
}

struct member *crew_hire(void) {
    for (struct member *m = all; m; m = m->next)
        if (m->is_free) {
            m->is_free = false;
            free_count--;
            return m;
        }
    return fork_member();
}

bool crew_run(struct member *m, struct request *r, const struct order *given, struct bytes cwd, struct bytes env, int out_fd,
              int text_fd) {
    struct order order = *given;
    struct buf body = {0};
    int fds[MESSAGE_FDS] = {out_fd, text_fd, -1}, fd_count = text_fd < 0 ? 1 : 2;
    order.kind = ORDER_RUN;
    order.has_text = text_fd >= 0;
    order.serial = ++m->serial;
    order.cwd_n = (u32)cwd.n;
    order.env_n = (u32)env.n;
    order.request_n = (u32)r->payload.n;
    buf_add(&body, cwd.p, cwd.n);
    buf_add(&body, env.p, env.n);
    buf_add(&body, r->payload.p, r->payload.n);
    struct bytes head = {(u8 *)&order, sizeof order};
    bool sent = body.n <= INLINE_MOST && message_send(m->control, head, bytes_of(&body), fds, fd_count);
    if (!sent) {
        order.in_file = true;
        int file = fds[fd_count] = memory_file("request", body.p, body.n, UNSEALED);
        sent = file >= 0 && message_send(m->control, head, (struct bytes){NULL, 0}, fds, fd_count + 1);
        close_fd(&file);
    }
    buf_free(&body);
    if (sent) m->request = r;
    return sent;
}

void crew_end(struct member *m, u64 grace_ns) {
    struct order order = {.kind = ORDER_END, .serial = m->serial, .grace_ns = grace_ns};
    message_send(m->control, (struct bytes){(u8 *)&order, sizeof order}, (struct bytes){NULL, 0}, NULL, 0);
}

void crew_leave(struct member *m, int out_fd) {
    m->request = NULL;
    m->out = out_fd;
    if (out_fd >= 0) watch(out_fd, POLLIN, discard, m);
}

void crew_free(struct member *m) {
    m->request = NULL;
    if (free_count >= FREE_MOST) {
        remove_member(m);
        return;
    }
    m->is_free = true;
    free_count++;
}

void crew_dismiss(struct member *m) { remove_member(m); }

void crew_kill(struct member *m) {
    if (m->pid > 0) kill(m->pid, SIGKILL);
    remove_member(m);
}

void crew_disband(void) {
    for (struct member *m = all, *next; m; m = next) {
        next = m->next;
        if (!m->request) remove_member(m); /* the others go with their commands */
    }
}

void crew_part(void) {
    struct order order = {.kind = ORDER_LEAVE};
    while (all) {
        struct bytes head = {(u8 *)&order, sizeof order}, nothing = {NULL, 0};
        if (!all->is_free) message_send(all->control, head, nothing, &all->out, all->out >= 0);
        remove_member(all);
    }
}

/* A command can see its keeper, and may stop it. */
void crew_child_stopped(pid_t pid) {
    for (struct member *m = all; m; m = m->next)
        if (m->pid == pid) kill(pid, SIGCONT);
}

void crew_child_died(pid_t pid) {
    for (struct member *m = all; m; m = m->next)
        if (m->pid == pid) m->pid = -1; /* its end of the socket tells the rest */
}
