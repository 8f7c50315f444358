#include "system.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

u64 sooner(u64 a_ns, u64 b_ns) { return !a_ns || (b_ns && b_ns < a_ns) ? b_ns : a_ns; }

bool write_all(int fd, const void *p, size_t n) {
    const u8 *at = p;
    while (n) {
        ssize_t done = write(fd, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        n -= (size_t)done;
    }
    return true;
}

bool read_all(int fd, void *p, size_t n) {
    u8 *at = p;
    while (n) {
        ssize_t done = read(fd, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        n -= (size_t)done;
    }
    return true;
}

void set_nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void close_from(int first) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0) return;
#endif
    DIR *dir = opendir("/proc/self/fd"); /* before Linux 5.9, or where a filter forbids the call */
    if (!dir) {
        long most = sysconf(_SC_OPEN_MAX);
        for (int fd = first; fd < (most > 0 && most < 65536 ? most : 65536); fd++) close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        int fd = atoi(entry->d_name);
        if (fd >= first && fd != dirfd(dir)) close(fd);
    }
    closedir(dir);
}

void null_stdio(void) {
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd < 0) fd = memory_file("null", NULL, 0, UNSEALED); /* an image without /dev: reads as empty, too */
    for (int i = 0; i < 3; i++) {
        if (fd >= 0) dup2(fd, i);
        else close(i);
    }
    if (fd > 2) close(fd);
}

int memory_file(const char *name, const void *p, size_t n, enum seal seal) {
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    bool ok = write_all(fd, p, n) && lseek(fd, 0, SEEK_SET) == 0;
    if (ok && seal == SEALED) ok = fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
    if (!ok) close_fd(&fd);
    return fd;
}

bool message_send(int socket, struct bytes head, struct bytes body, const int *fds, int fd_count) {
    struct iovec parts[] = {{(void *)head.p, head.n}, {(void *)body.p, body.n}};
    union { char space[CMSG_SPACE(MESSAGE_FDS * sizeof(int))]; struct cmsghdr align; } control;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = body.n ? 2 : 1};
    if (fd_count) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)fd_count * sizeof(int));
    }
    for (;;) {
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        return sent == (ssize_t)(head.n + body.n);
    }
}

ssize_t message_recv(int socket, void *p, size_t most, int fds[MESSAGE_FDS]) {
    struct iovec part = {p, most};
    union { char space[CMSG_SPACE(MESSAGE_FDS * sizeof(int))]; struct cmsghdr align; } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    for (int i = 0; i < MESSAGE_FDS; i++) fds[i] = -1;
    ssize_t n;
    do n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return n;
    struct cmsghdr *c = CMSG_FIRSTHDR(&message); /* the kernel puts all of them into one */
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(c), (count < MESSAGE_FDS ? count : MESSAGE_FDS) * sizeof(int));
    }
    return n;
}
