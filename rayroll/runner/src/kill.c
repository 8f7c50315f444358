#include "kill.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper.h"
#include "main.h"
#include "request.h"
#include "system.h"

struct process { pid_t pid, parent; bool is_keeper; signed char below; /* 1 yes, 0 no, -1 not known yet */ };

/* A /proc of another pid namespace numbers other processes. */
static bool proc_is_ours(void) {
    char link[32];
    ssize_t n = readlink("/proc/self", link, sizeof link - 1);
    if (n <= 0) return false;
    link[n] = 0;
    return atoi(link) == getpid();
}

static pid_t parent_of(pid_t pid, bool *is_keeper) {
    char path[32], text[512], state;
    int parent;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    char *after = strrchr(text, ')'), *name = strchr(text, '('); /* the name in parentheses may hold anything */
    if (!after || sscanf(after + 1, " %c %d", &state, &parent) != 2 || state == 'Z') return -1;
    if (is_keeper) *is_keeper = name && !strncmp(name, "(" KEEPER_NAME ")", sizeof "(" KEEPER_NAME ")" - 1);
    return parent;
}

static int by_pid(const void *a, const void *b) {
    pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
    return (x > y) - (x < y);
}

static bool is_below(struct process *all, size_t n, struct process *p) {
    if (p->below >= 0) return p->below;
    p->below = 0; /* also what ends a circle, where a pid was used again while we read */
    struct process key = {.pid = p->parent}, *parent = n ? bsearch(&key, all, n, sizeof *all, by_pid) : NULL;
    if (parent && is_below(all, n, parent)) p->below = 1;
    return p->below;
}

/* By a handle, and only while it still has the parent it was found with: the number may have become another process's. */
static bool kill_one(const struct process *p, int sig) {
    int handle = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (handle < 0 && errno == ESRCH) return false;
    bool killed = parent_of(p->pid, NULL) == p->parent && (handle < 0 /* before Linux 5.3, or no descriptor is left */
                                                         ? kill(p->pid, sig)
                                                         : syscall(SYS_pidfd_send_signal, handle, sig, NULL, 0)) == 0;
    close_fd(&handle);
    return killed;
}

/* Of `root`; where that is 0, of every keeper, and with `keepers` these themselves. */
static int kill_below(pid_t root, bool keepers, int sig) {
    struct process *all = NULL;
    size_t n = 0, cap = 0;
    int killed = 0;
    DIR *proc = proc_is_ours() ? opendir("/proc") : NULL;
    if (!proc) return -1;
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        bool is_keeper = false;
        pid_t pid = atoi(entry->d_name), parent = parent_of(pid, &is_keeper);
        if (parent < 0 || pid == root) continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 256;
            all = xrealloc(all, cap * sizeof *all);
        }
        all[n++] = (struct process){pid, parent, is_keeper, (root ? parent == root : is_keeper) ? 1 : -1};
    }
    closedir(proc);
    if (n) qsort(all, n, sizeof *all, by_pid);
    for (size_t i = 0; i < n; i++)
        if (is_below(all, n, &all[i]) && (root || keepers || !all[i].is_keeper) && kill_one(&all[i], sig)) killed++;
    free(all);
    return killed;
}

int kill_descendants(pid_t root, int sig) { return kill_below(root, false, sig); }

bool kill_kept(void) {
    struct pollfd none = {.fd = -1};
    for (u64 start = now_ns(); now_ns() - start < KILL_PATIENCE_S * 1000000000ull; poll(&none, 1, 1))
        /* The keepers last: as long as one lives, it adopts what it looks after, and that is found below it. */
        if (kill_below(0, false, SIGKILL) <= 0 && kill_below(0, true, SIGKILL) <= 0) return true;
    return false;
}

bool kill_everything(void) {
    struct pollfd none = {.fd = -1};
    for (u64 start = now_ns(); now_ns() - start < KILL_PATIENCE_S * 1000000000ull;) {
        int status;
        pid_t pid;
        /* Everybody in this pid namespace but ourselves. Where we are not its init this would kill the machine. */
        if (is_init) kill(-1, SIGKILL);
        else {
            kill_descendants(getpid(), SIGSTOP); /* one by one: a shell would go on when its child is killed before it */
            kill_descendants(getpid(), SIGKILL);
        }
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) request_child_died(pid);
        if (pid < 0 && errno == ECHILD) return true;
        poll(&none, 1, 1);
    }
    return false;
}
