/* The runner: `serve` is what lives in a sandbox; the other words are its helpers. One poll loop, no threads. */
#include "rr.h"

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
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct state carried, born;
u64 lease_ns = 60ull * 1000000000, lease_deadline_ns;
bool is_init, stopping, one_shot;
static int exit_code;

/* --- the poll loop --- */

struct watched { int fd; short events; ready_fn fn; void *owner; };
static struct watched *watches;
static size_t watch_count, watch_cap;

void watch(int fd, short events, ready_fn fn, void *owner) {
    size_t free_at = watch_count;
    for (size_t i = 0; i < watch_count; i++) {
        if (watches[i].fd == fd) {
            watches[i] = (struct watched){fd, events, fn, owner};
            return;
        }
        if (watches[i].fd < 0) free_at = i;
    }
    if (free_at == watch_cap) {
        watch_cap = watch_cap ? watch_cap * 2 : 64;
        struct watched *grown = realloc(watches, watch_cap * sizeof *watches);
        if (!grown) _exit(70);
        watches = grown;
    }
    if (free_at == watch_count) watch_count++;
    watches[free_at] = (struct watched){fd, events, fn, owner};
}

void unwatch(int fd) {
    for (size_t i = 0; i < watch_count; i++)
        if (watches[i].fd == fd) watches[i].fd = -1;
    while (watch_count && watches[watch_count - 1].fd < 0) watch_count--;
}

static void poll_once(int timeout_ms) {
    static struct pollfd *fds;
    static size_t cap;
    size_t n = 0;
    if (cap < watch_count) {
        cap = watch_cap;
        free(fds);
        fds = xmalloc(cap * sizeof *fds);
    }
    for (size_t i = 0; i < watch_count; i++)
        if (watches[i].fd >= 0 && watches[i].events) fds[n++] = (struct pollfd){watches[i].fd, watches[i].events, 0};
    int ready = poll(fds, n, timeout_ms);
    if (ready < 0 && errno == EINVAL) { /* somebody took our RLIMIT_NOFILE: an end, not a spin */
        stopping = true;
        exit_code = 70; /* as where memory ran out: what an agent can cause */
    }
    if (ready <= 0) return;
    for (size_t i = 0; i < n; i++) {
        if (!fds[i].revents) continue;
        for (size_t j = 0; j < watch_count; j++) /* looked up again: a handler may have closed it */
            if (watches[j].fd == fds[i].fd && watches[j].events) {
                watches[j].fn(watches[j].owner, fds[i].revents);
                break;
            }
    }
}

/* --- signals --- */

static void on_signal(void *owner, short events) {
    struct signalfd_siginfo info;
    int fd = *(int *)owner, status;
    pid_t pid;
    (void)events;
    while (read(fd, &info, sizeof info) > 0)
        /* Without a handler, `docker stop` takes 10 s on a PID 1. A sender with a number in our own pid namespace is the
         * agent, which must not be able to end its sandbox and have that taken for the machine's fault. */
        if (info.ssi_signo != SIGCHLD && !(is_init && info.ssi_pid)) stopping = true;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) request_child_died(pid, status);
}

static void take_signals(void) {
    static int fd;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    watch(fd, POLLIN, on_signal, &fd);
}

/* --- the socket that `runner connect` comes to --- */

static const char *socket_path;

static void on_stranger(void *owner, short events) {
    (void)events;
    int fd = accept4(*(int *)owner, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) link_open(fd, fd, false);
}

static bool listen_at(const char *path) {
    static int fd;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return false;
    strcpy(address.sun_path, path);
    unlink(path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || chmod(path, 0600) || listen(fd, 4)) return false;
    socket_path = path;
    watch(fd, POLLIN, on_stranger, &fd);
    return true;
}

/* --- words --- */

static int usage(void) {
    static const char text[] =
        "usage: runner serve [--lease-ms N] [--socket PATH] [--rlimit NAME=VALUE]...   live in a sandbox\n"
        "       runner once [--state PATH] [--rlimit NAME=VALUE]...                     one request from standard input\n"
        "       runner connect PATH                                                     join streams with a socket\n"
        "       runner bench [--n N]                                                    fork-and-exec floor, as JSON\n"
        "       runner version\n";
    (void)!write(2, text, sizeof text - 1);
    return 2;
}

static bool add_rlimit(const char *rule) {
    static const struct { const char *name; int resource; } names[] = {
        {"nproc", RLIMIT_NPROC}, {"as", RLIMIT_AS}, {"fsize", RLIMIT_FSIZE}, {"nofile", RLIMIT_NOFILE}, {"core", RLIMIT_CORE},
        {"cpu", RLIMIT_CPU}};
    const char *equals = strchr(rule, '=');
    if (!equals || rlimit_count == 8) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].name) == (size_t)(equals - rule) && !strncmp(rule, names[i].name, (size_t)(equals - rule))) {
            rlimit_rules[rlimit_count++] = (struct rlimit_rule){names[i].resource, strtoull(equals + 1, NULL, 10)};
            return true;
        }
    return false;
}

/* The key of hosts that come by socket, for carriers that cannot speak on our standard streams first. */
static bool take_key(void) {
    const char *hex = getenv("RAYROLL_KEY");
    u8 key[RR_KEY];
    if (!hex) return true;
    if (strlen(hex) != 2 * RR_KEY) return false;
    for (int i = 0; i < RR_KEY; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
        key[i] = (u8)strtoul(pair, NULL, 16);
    }
    link_key(key);
    memset(getenv("RAYROLL_KEY"), 'x', 2 * RR_KEY);
    unsetenv("RAYROLL_KEY");
    return true;
}

static int live(void) {
    while (!stopping) {
        u64 now = now_ns(), next = requests_tick(now);
        if (!one_shot) {
            if (now >= lease_deadline_ns) break;
            if (!next || lease_deadline_ns < next) next = lease_deadline_ns;
        }
        requests_pump();
        links_flush();
        if (one_shot && requests_idle() && link_flushed()) break;
        u64 left = next > now ? next - now : 0;
        poll_once(!next ? -1 : left > 3600ull * 1000000000 ? 3600000 : (int)(left / 1000000) + 1);
    }
    kill_everything(5000000000u);
    links_flush();
    if (socket_path) unlink(socket_path);
    return exit_code;
}

static int serve(int argc, char **argv) {
    const char *state_path = NULL, *listen_path = NULL;
    for (int i = 2; i < argc; i += 2) {
        if (i + 1 >= argc) return usage();
        if (!strcmp(argv[i], "--lease-ms") && !one_shot) lease_ns = strtoull(argv[i + 1], NULL, 10) * 1000000;
        else if (!strcmp(argv[i], "--socket") && !one_shot) listen_path = argv[i + 1];
        else if (!strcmp(argv[i], "--state") && one_shot) state_path = argv[i + 1];
        else if (strcmp(argv[i], "--rlimit") || !add_rlimit(argv[i + 1])) return usage();
    }
    is_init = getpid() == 1;
    /* Neither our descriptors nor our memory nor our environment can be opened from the sandbox, by any user there. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (!take_key()) return usage();
    state_init(&carried);
    state_init(&born);
    take_signals();
    shared_open();
    if (chdir("/")) return 1;
    lease_deadline_ns = now_ns() + lease_ns;
    if (listen_path && !listen_at(listen_path)) return 1;
    link_open(0, 1, one_shot);
    if (state_path) {
        int fd = open(state_path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            state_read(&carried, fd);
            close(fd);
        }
    }
    int code = live();
    if (state_path) {
        int fd = open(state_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || !state_write(&carried, fd)) code = 1;
    }
    return code;
}

int main(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "";
    if (!strcmp(word, "state")) return state_dump_main();
    if (!strcmp(word, "once")) one_shot = true;
    if (!strcmp(word, "serve") || one_shot) return serve(argc, argv);
    if (!strcmp(word, "connect") && argc == 3) return connect_main(argv[2]);
    if (!strcmp(word, "bench")) return bench_main(argc, argv);
    if (!strcmp(word, "version")) return puts(RR_BUILD) < 0;
    return usage();
}
