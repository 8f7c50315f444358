/* One small process per command: it starts the command, adopts whatever the command leaves behind, and can kill it all.
 *
 * As a subreaper it becomes the parent of every orphan below it, so killing descendants by parent pid also reaches what
 * left its session, daemonised or cleared its environment. It outlives the command while a background job lives. It is
 * forked, not executed: it stays as unreadable to the agent as the runner is. */
#include "rr.h"

#include <ctype.h>
#include <dirent.h>
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
#include <sys/wait.h>
#include <unistd.h>

/* --- killing, without ever forking: the pid limit may be full --- */

struct process { pid_t pid, parent; bool below; };

static pid_t parent_of(const char *pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    char *after = strrchr(text, ')'); /* the name in parentheses may hold anything */
    int parent;
    char state;
    if (!after || sscanf(after + 1, " %c %d", &state, &parent) != 2 || state == 'Z') return -1;
    return parent;
}

int kill_descendants(pid_t root, int sig) {
    struct process *all = NULL;
    size_t n = 0, cap = 0;
    int killed = 0;
    DIR *proc = opendir("/proc");
    if (!proc) return 0;
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        pid_t parent = parent_of(entry->d_name);
        if (parent < 0) continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 256;
            struct process *grown = realloc(all, cap * sizeof *all);
            if (!grown) _exit(70);
            all = grown;
        }
        all[n++] = (struct process){atoi(entry->d_name), parent, parent == root};
    }
    closedir(proc);
    for (bool grew = true; grew;) {
        grew = false;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n && !all[i].below; j++)
                if (all[j].below && all[i].parent == all[j].pid) all[i].below = grew = true;
    }
    for (size_t i = 0; i < n; i++)
        if (all[i].below && kill(all[i].pid, sig) == 0) killed++;
    free(all);
    return killed;
}

/* --- the keeper --- */

struct keeper { pid_t command; int control; struct keeper_note note; bool reported; u64 kill_at_ns; bool killing; };

static void report(struct keeper *k, int kind) {
    struct rusage all;
    getrusage(RUSAGE_CHILDREN, &all);
    k->note.kind = kind;
    k->note.user_ns = (u64)all.ru_utime.tv_sec * 1000000000u + (u64)all.ru_utime.tv_usec * 1000u;
    k->note.system_ns = (u64)all.ru_stime.tv_sec * 1000000000u + (u64)all.ru_stime.tv_usec * 1000u;
    k->note.max_rss_bytes = (u64)all.ru_maxrss * 1024;
    send(k->control, &k->note, sizeof k->note, MSG_NOSIGNAL);
}

/* Collects the dead; false when no child is left. */
static bool reap(struct keeper *k) {
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid == 0) return true;
        if (pid < 0) return errno == EINTR;
        if (pid == k->command && !k->reported) {
            k->note.exited_ns = now_ns();
            k->note.status = status;
            k->reported = true;
            report(k, K_EXITED);
        }
    }
}

static void kill_tree(struct keeper *k) {
    struct pollfd none = {.fd = -1};
    /* A process can be born between the look and the kill; its parent is dead then, so it is ours in the next round. */
    for (u64 start = now_ns(); reap(k) && now_ns() - start < 5000000000u;) {
        kill_descendants(getpid(), SIGKILL);
        poll(&none, 1, 1);
    }
}

static void prefer_as_oom_victim(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    (void)!write(fd, "1000", 4); /* the command goes before the runner */
    close(fd);
}

static _Noreturn void keep(struct launch *l, int control) {
    struct keeper k = {.control = control};
    sigset_t signals;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prctl(PR_SET_NAME, "rayroll-keeper", 0, 0, 0);
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    int children = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);

    k.command = launch_child(l, &k.note.error);
    k.note.started_ns = now_ns();
    k.note.fell_back = l->fell_back;
    close(l->out_fd); /* or the runner would never see the end of the output */
    if (l->in_fd >= 0) close(l->in_fd);
    if (k.command < 0) {
        report(&k, K_FAILED);
        _exit(0);
    }
    if (l->state_fd >= 0) close(l->state_fd);
    prefer_as_oom_victim(k.command);

    while (reap(&k)) {
        struct pollfd fds[] = {{.fd = control, .events = POLLIN}, {.fd = children, .events = POLLIN}};
        u64 now = now_ns();
        int wait_ms = !k.killing ? -1 : k.kill_at_ns <= now ? 0 : (int)((k.kill_at_ns - now) / 1000000 + 1);
        poll(fds, 2, wait_ms);
        struct signalfd_siginfo info;
        while (read(children, &info, sizeof info) > 0) {}
        if (fds[0].revents) {
            struct keeper_order order;
            if (recv(control, &order, sizeof order, MSG_DONTWAIT) != (ssize_t)sizeof order) {
                kill_tree(&k); /* the runner is gone */
                break;
            }
            kill_descendants(getpid(), SIGTERM);
            k.killing = true;
            k.kill_at_ns = now_ns() + order.grace_ns;
        }
        if (k.killing && now_ns() >= k.kill_at_ns) {
            kill_tree(&k);
            break;
        }
    }
    report(&k, K_GONE);
    _exit(0);
}

pid_t keeper_start(struct launch *l, int *control_fd) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        /* Only what this command needs stays open: another request's pipe held here would never end, and the channel
         * is not the keeper's. Low numbers first, then everything above them is closed at once. */
        int *const wanted[] = {&pair[1], &l->out_fd, &l->in_fd, &l->state_fd, &l->script_fd, &rc_fd, &runner_fd};
        enum { COUNT = sizeof wanted / sizeof *wanted, FIRST = 10 };
        for (int i = 0; i < COUNT; i++)
            if (*wanted[i] >= 0) *wanted[i] = fcntl(*wanted[i], F_DUPFD_CLOEXEC, 100);
        null_stdio();
        for (int i = 0; i < COUNT; i++) {
            if (*wanted[i] >= 0) *wanted[i] = dup3(*wanted[i], FIRST + i, O_CLOEXEC);
            else close(FIRST + i);
        }
        for (int fd = 3; fd < FIRST; fd++) close(fd);
        close_from(FIRST + COUNT);
        if (chdir("/")) _exit(70); /* not to hold the agent's directory */
        keep(l, pair[1]);
    }
    close(pair[1]);
    if (pid < 0) close(pair[0]);
    else *control_fd = pair[0];
    return pid;
}

/* --- everything at once --- */

void kill_everything(u64 patience_ns) {
    struct pollfd none = {.fd = -1};
    u64 start = now_ns();
    while (now_ns() - start < patience_ns) {
        int status;
        /* Everybody in this pid namespace but ourselves. Where we are not its init this would kill the machine. */
        if (is_init) kill(-1, SIGKILL);
        else kill_descendants(getpid(), SIGKILL);
        pid_t pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) request_child_died(pid, status);
        if (pid < 0 && errno == ECHILD) return;
        poll(&none, 1, 1);
    }
}
