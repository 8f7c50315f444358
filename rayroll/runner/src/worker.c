#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "baseline.h"
#include "files.h"
#include "system.h"
#include "wire.h"

enum { PIPE_BYTES = 1 << 20 };

bool fault_at(struct fault *f, int error, const char *where) {
    f->error = error ? error : EIO;
    snprintf(f->where, sizeof f->where, "%s", where);
    return false;
}

static void stopped(int sig) {
    (void)sig;
    put_abandon();
    _exit(1);
}

static bool become(struct bytes request, const struct user *who, struct worker_status *status) {
    struct user found;
    char *name = field_text(request, T_USER);
    const char *problem = who || !name ? NULL : user_find(name, &found);
    if (!problem && name && !user_become(who ? who : &found)) problem = "cannot become that user";
    free(name);
    if (!problem) return true;
    status->error = EPERM;
    status->is_user = true;
    snprintf(status->where, sizeof status->where, "%s", problem);
    return false;
}

static _Noreturn void work(u8 type, struct bytes request, const struct user *who, int data, int table, int status_fd) {
    struct worker_status status = {0};
    struct fault f = {0};
    char *path = field_text(request, T_PATH);
    u64 flags = field_num(request, T_FLAGS, 0);
    if (!become(request, who, &status)) {
        (void)!write(status_fd, &status, sizeof status);
        _exit(0);
    }
    umask(0);
    if (type == F_BASELINE || type == F_RESET) {
        struct baseline b = {.fd = table, .keep = field(request, T_KEEP), .most_bytes = field_num(request, T_MAX_BYTES, 0)};
        if (type == F_BASELINE) baseline_take(&b, &f);
        else baseline_restore(&b, &f);
        status.count = b.count;
        status.repaired = b.repaired;
        memcpy(status.sha256, b.sha256, sizeof status.sha256);
    } else if (!path || !*path) {
        fault_at(&f, EINVAL, "no path");
    } else if (type == F_PUT) {
        put_stream(data, path, &status.count, &f);
    } else {
        bool is_digest = type == F_DIGEST;
        struct walk w = {.to = is_digest ? -1 : data, .content = is_digest || !(flags & FLAG_NO_CONTENT),
                         .children = is_digest || (flags & FLAG_TREE), .exclude = field(request, T_EXCLUDE),
                         .max_bytes = field_num(request, T_MAX_BYTES, UINT64_MAX)};
        walk_tree(&w, path, &f);
        status.count = w.count;
        memcpy(status.sha256, w.sha256, sizeof status.sha256);
    }
    status.error = f.error;
    memcpy(status.where, f.where, sizeof status.where);
    (void)!write(status_fd, &status, sizeof status);
    _exit(0);
}

/* The table of BASELINE: the runner's and its workers', never a command's. */
static int table_fd = -1;

pid_t worker_start(u8 type, struct bytes request, const struct user *who, int *data_fd, int *status_fd) {
    int data[2] = {-1, -1}, status[2];
    bool has_data = type == F_PUT || type == F_GET, to_worker = type == F_PUT;
    bool has_table = type == F_BASELINE || type == F_RESET;
    if (has_table && table_fd < 0 && (table_fd = memory_file("baseline", NULL, 0, UNSEALED)) < 0) return -1;
    if (pipe2(status, O_CLOEXEC)) return -1;
    if (has_data && pipe2(data, O_CLOEXEC)) {
        int error = errno;
        close(status[0]);
        close(status[1]);
        errno = error;
        return -1;
    }
    if (has_data) fcntl(data[0], F_SETPIPE_SZ, PIPE_BYTES);
    int mine = to_worker ? data[1] : data[0], theirs = to_worker ? data[0] : data[1];
    pid_t pid = fork();
    if (pid == 0) {
        enum { FIRST = 3 };
        sigset_t none;
        int out = fcntl(status[1], F_DUPFD_CLOEXEC, 16);
        if (has_data) theirs = fcntl(theirs, F_DUPFD_CLOEXEC, 16);
        if (has_table) theirs = fcntl(table_fd, F_DUPFD_CLOEXEC, 16);
        null_stdio();
        out = dup3(out, FIRST, O_CLOEXEC);
        if (has_data || has_table) theirs = dup3(theirs, FIRST + 1, O_CLOEXEC);
        close_from(FIRST + 1 + (has_data || has_table));
        prctl(PR_SET_NAME, "rayroll-files", 0, 0, 0);
        signal(SIGTERM, stopped);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        work(type, request, who, has_data ? theirs : -1, has_table ? theirs : -1, out);
    }
    int error = errno;
    close(status[1]);
    close_fd(&theirs);
    if (pid < 0) {
        close(status[0]);
        close_fd(&mine);
        errno = error;
        return -1;
    }
    *status_fd = status[0];
    *data_fd = mine;
    set_nonblocking(status[0]);
    if (has_data) set_nonblocking(mine);
    return pid;
}
