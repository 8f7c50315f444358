/* Joins standard streams with the socket of a runner: for carriers that start a new process for each stream. Neither
 * direction waits for the other: a host that does not read can still renew its lease. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "main.h"
#include "system.h"
#include "wire.h"

struct relay { int from, to; u8 bytes[WIRE_CHUNK]; size_t begin, end; bool ended; };

/* False when this direction is over: its source has ended and all of it was passed on, or nobody takes it. */
static bool move(struct relay *r) {
    if (r->begin == r->end && !r->ended) {
        ssize_t n = read(r->from, r->bytes, sizeof r->bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
        r->begin = 0;
        r->end = n > 0 ? (size_t)n : 0;
        r->ended = n <= 0;
    }
    while (r->begin < r->end) {
        ssize_t n = write(r->to, r->bytes + r->begin, r->end - r->begin);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return true;
        if (n <= 0) return false;
        r->begin += (size_t)n;
    }
    return !r->ended;
}

int connect_main(const char *path) {
    static struct relay up, down;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return 1;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2; i++) set_nonblocking(i);
    set_nonblocking(fd);
    up = (struct relay){.from = 0, .to = fd};
    down = (struct relay){.from = fd, .to = 1};
    for (;;) {
        /* A direction with bytes in hand waits to write, the others to read. */
        struct pollfd fds[] = {{up.begin < up.end ? up.to : up.from, up.begin < up.end ? POLLOUT : POLLIN, 0},
                               {down.begin < down.end ? down.to : down.from, down.begin < down.end ? POLLOUT : POLLIN, 0}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return 1;
        if ((fds[0].revents && !move(&up)) || (fds[1].revents && !move(&down))) return 0;
    }
}
