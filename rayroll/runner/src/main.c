/* The runner: `serve` is what lives in a sandbox; the other words are its helpers. */
#include "main.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crew.h"
#include "kill.h"
#include "launch.h"
#include "link.h"
#include "loop.h"
#include "once.h"
#include "request.h"
#include "state.h"
#include "system.h"

enum { SIGNALS = 64 }; /* Linux, on both CPUs */

bool is_init, stopping, one_shot, had_shell;
u8 instance[16];

/* --- the lease --- */

static u64 lease_ns = 60ull * 1000000000, lease_deadline_ns;

void lease_set(u64 duration_ns) {
    if (duration_ns) lease_ns = duration_ns;
    lease_renew();
}

void lease_renew(void) { lease_deadline_ns = now_ns() + lease_ns; }

/* --- signals --- */

static void on_signal(void *owner, short events) {
    struct signalfd_siginfo info;
    int fd = *(int *)owner, status;
    pid_t pid;
    (void)events;
    while (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue;
        /* An init is ended from outside its namespace only, whose processes have no number in it. */
        if (!is_init || info.ssi_pid == 0) stopping = true;
    }
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
        if (WIFSTOPPED(status)) crew_child_stopped(pid);
        else request_child_died(pid);
    }
}

static void take_signals(void) {
    static int fd;
    sigset_t set;
    /* Whoever started us may have ignored or blocked anything; a command starts as from a login. Straight to the kernel,
     * for the C library keeps the first real-time signals to itself. All zero is the default action. */
    static const u64 action[4];
    for (int i = 1; i <= SIGNALS; i++) syscall(SYS_rt_sigaction, i, action, NULL, SIGNALS / 8);
    for (int i = 0; i < IGNORED_COUNT; i++) signal(ignored_signals[i], SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM); /* without a handler, `docker stop` takes 10 s on a PID 1 */
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_SETMASK, &set, NULL);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    watch(fd, POLLIN, on_signal, &fd);
}

/* --- privileges --- */

/* With any of these a command could read the runner's memory, trace it, or have the kernel do it. Root gets its
 * capabilities back at exec from what is bounding or inheritable, so they leave all three sets; we need none of them.
 * SETPCAP goes last, for dropping needs it, and so that a provider's daemon beside us, which holds our streams and has what
 * its container gave it, has more than a command: the kernel then keeps its descriptors and memory from commands as well. */
static void drop_capabilities(void) {
    static const int dropped[] = {CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_PERFMON, CAP_BPF, CAP_SETPCAP};
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    bool known = syscall(SYS_capget, &header, sets) == 0;
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) {
        int cap = dropped[i];
        prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
        if (!known) continue;
        u32 keep = ~(1u << (cap % 32));
        sets[cap / 32].effective &= keep;
        sets[cap / 32].permitted &= keep;
        sets[cap / 32].inheritable &= keep;
    }
    if (known) syscall(SYS_capset, &header, sets);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/* The kernel's keyrings outlive every process of a sandbox, and a key can be hidden from whoever looks for it: as Docker
 * does, nobody has any. All that is asked for is a number, so the kernel decides once per system call, not each time. */
static void refuse_keys(void) {
#if defined __x86_64__
    enum { FIRST = 248, OLDER = AUDIT_ARCH_I386, OLDER_FIRST = 286, X32 = 0x40000000 };
#else
    enum { FIRST = 217, OLDER = AUDIT_ARCH_ARM, OLDER_FIRST = 309, X32 = 0 };
#endif
    /* add_key, request_key and keyctl have numbers in a row, on each of them */
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OLDER, 4, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(u32)X32),
        BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, FIRST),
        BPF_JUMP(BPF_JMP | BPF_JA, 2, 0, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, OLDER_FIRST),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0); /* a reset sees whether it holds */
}

/* --- the sockets that a later host comes to: by itself, or through `runner connect` --- */

static const char *socket_path;

static void on_stranger(void *owner, short events) {
    (void)events;
    int fd = accept4(*(int *)owner, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) link_open(fd, fd, NEEDS_KEY);
}

static bool take_callers(int listening) {
    static int fds[3], n;
    int *fd = &fds[n++]; /* a path, a descriptor, a port */
    *fd = listening;
    if (fcntl(*fd, F_SETFD, FD_CLOEXEC)) return false;
    set_nonblocking(*fd);
    return watch(*fd, POLLIN, on_stranger, fd), true;
}

/* At every address, for whoever reaches them: a pod's own. */
static bool listen_at_port(unsigned long port) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((u16)port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((u16)port)};
    int on = 1, off = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_six = fd >= 0;
    if (is_six) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    else fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* whom we accept has it from here */
    struct sockaddr *address = is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    if (fd < 0 || bind(fd, address, is_six ? sizeof six : sizeof four) || listen(fd, 8)) return false;
    return take_callers(fd);
}

static bool listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return false;
    strcpy(address.sun_path, path);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t before = umask(0177);
    bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    umask(before);
    if (!bound || listen(fd, 8)) return false;
    socket_path = path;
    return take_callers(fd);
}

/* The key of hosts that come by socket, for carriers that cannot speak on our standard streams first. */
static bool take_key(void) {
    char *hex = getenv("RAYROLL_KEY");
    u8 key[WIRE_KEY];
    if (!hex) return true;
    if (strlen(hex) != 2 * WIRE_KEY || strspn(hex, "0123456789abcdefABCDEF") != 2 * WIRE_KEY) return false;
    for (int i = 0; i < WIRE_KEY; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
        key[i] = (u8)strtoul(pair, NULL, 16);
    }
    link_key(key);
    memset(hex, 'x', 2 * WIRE_KEY);
    unsetenv("RAYROLL_KEY");
    return true;
}

/* --- words --- */

static int complain(const char *text) {
    (void)!write(2, text, strlen(text));
    return 2;
}

static int usage(void) {
    return complain(
        "usage: runner serve [--lease-ms N] [--socket PATH | --socket-fd N] [--port N] [--rlimit NAME=VALUE]...\n"
        "                                                                               live in a sandbox\n"
        "       runner once [--request BASE64 | --request-file PATH] [--base64] [--state PATH] [--rlimit NAME=VALUE]...\n"
        "                                                                               one request, one reply\n"
        "       runner connect PATH                                                     join streams with a socket\n"
        "       runner boot                                                             be a virtual machine's init\n"
        "       runner bench [--n N]                                                    fork-and-exec floor, as JSON\n"
        "       runner version\n");
}

static void prepare(void) {
    is_init = getpid() == 1;
    had_shell = find_shell() != NULL;
    drop_capabilities();
    if (is_init) refuse_keys();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    take_signals();
    states_start();
    shared_open();
    if (getrandom(instance, sizeof instance, 0) != (ssize_t)sizeof instance) memcpy(instance, &(u64){now_ns()}, 8);
    if (chdir("/")) _exit(1);
}

/* Until the lease lapses or we are told to end; everything else in the sandbox ends with us. */
static void live(void) {
    lease_renew();
    while (!stopping) {
        u64 now = now_ns(), next = sooner(requests_tick(now), links_tick(now));
        if (!one_shot && now >= lease_deadline_ns) break;
        if (!one_shot) next = sooner(next, lease_deadline_ns);
        bool more = requests_pump();
        links_flush();
        if (more && link_may_send(WIRE_CHUNK)) continue; /* the stream took all that was queued */
        if (one_shot && (requests_seen() || link_ended()) && requests_idle() && link_flushed()) break;
        u64 left_ns = next > now ? next - now : 0;
        loop_wait(!next ? -1 : left_ns > 3600ull * 1000000000 ? 3600000 : (int)((left_ns + 999999) / 1000000));
    }
}

static int serve(int argc, char **argv) {
    const char *listen_path = NULL;
    int listening = -1;
    unsigned long port = 0;
    for (int i = 2; i < argc; i += 2) {
        char *end = "";
        if (i + 1 >= argc) return usage();
        if (!strcmp(argv[i], "--lease-ms")) lease_ns = strtoull(argv[i + 1], &end, 10) * 1000000;
        else if (!strcmp(argv[i], "--socket")) listen_path = argv[i + 1];
        else if (!strcmp(argv[i], "--socket-fd")) listening = (int)strtoul(argv[i + 1], &end, 10);
        else if (!strcmp(argv[i], "--port")) port = strtoul(argv[i + 1], &end, 10);
        else if (strcmp(argv[i], "--rlimit") || !rlimit_add(argv[i + 1])) return usage();
        if (*end || !lease_ns || port > 65535) return usage();
    }
    if (!take_key()) return complain("runner: RAYROLL_KEY is not 32 hexadecimal digits\n");
    prepare();
    prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0); /* of bwrap --die-with-parent: from here on our lease ends us, not our host's end */
    if (listen_path && !listen_at(listen_path)) return complain("runner: cannot listen at that path\n");
    if (listening >= 0 && !take_callers(listening)) return complain("runner: cannot listen on that descriptor\n");
    if (port && !listen_at_port(port)) return complain("runner: cannot listen at that port\n");
    link_open(0, 1, NEEDS_KEY);
    live();
    kill_everything();
    links_flush();
    if (socket_path) unlink(socket_path);
    return 0;
}

static int once(int argc, char **argv) {
    struct once_options options = {0};
    for (int i = 2; i < argc; i++) {
        const char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(word, "--base64")) options.base64 = true;
        else if (!value) return usage();
        else if (!strcmp(word, "--request")) options.request = value;
        else if (!strcmp(word, "--request-file")) options.request_path = value;
        else if (!strcmp(word, "--state")) options.state_path = value;
        else if (strcmp(word, "--rlimit") || !rlimit_add(value)) return usage();
        i += strcmp(word, "--base64") != 0;
    }
    one_shot = true;
    prepare();
    const char *problem = once_begin(&options);
    if (problem) return complain(problem);
    live();
    if (stopping) kill_everything();
    else crew_part();
    return once_end(&options) ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "";
    if (!strcmp(word, "state")) return state_dump_main(); /* in the agent's hands: nothing to hide, nothing to gain */
    if (!strcmp(word, "version")) return puts(RR_BUILD) < 0;
    if (!strcmp(word, "bench")) return bench_main(argc, argv);
    if (!strcmp(word, "boot") && getpid() == 1) return boot_main();
    /* Neither our descriptors nor our memory nor our environment can be opened from the sandbox, by any user there. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (!strcmp(word, "serve")) return serve(argc, argv);
    if (!strcmp(word, "once")) return once(argc, argv);
    if (!strcmp(word, "connect") && argc == 3) return connect_main(argv[2]);
    return usage();
}
