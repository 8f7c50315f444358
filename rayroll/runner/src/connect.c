/* Joins standard streams with the socket of a runner: for carriers that start a new process for each stream. */
#include "rr.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Moves what is there; false at the end of either side. */
static bool relay(int from, int to) {
    static u8 chunk[RR_CHUNK];
    ssize_t n = read(from, chunk, sizeof chunk);
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    return n > 0 && write_all(to, chunk, (size_t)n);
}

int connect_main(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return 1;
    struct pollfd fds[] = {{.fd = 0, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return 1;
        if (fds[0].revents && !relay(0, fd)) return 0;
        if (fds[1].revents && !relay(fd, 1)) return 0;
    }
}
