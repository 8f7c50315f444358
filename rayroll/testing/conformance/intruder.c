/* What a hostile program in a sandbox tries, one attack per word. It prints what worked, and nothing else.
 *
 * Static, so that it runs in any image. Built and uploaded by the conformance suite; docs/conformance.md. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char payload[1 << 16];
static size_t payload_n;

static void read_payload(void) {
    ssize_t n;
    while (payload_n < sizeof payload && (n = read(0, payload + payload_n, sizeof payload - payload_n)) > 0)
        payload_n += (size_t)n;
}

static void worked(const char *what, const char *detail) {
    printf("%s%s%s\n", what, *detail ? " " : "", detail);
    fflush(stdout);
}

/* Opens a path both ways; what opens for writing gets the payload. */
static void try_open(const char *path) {
    char some[16];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        worked("opened", path);
        if (read(fd, some, sizeof some) > 0) worked("read", path);
        close(fd);
    }
    fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        worked("opened-for-writing", path);
        if (payload_n && write(fd, payload, payload_n) > 0) worked("wrote", path);
        close(fd);
    }
}

/* reach PID: every way to another process's memory, descriptors and secrets. */
static int reach(pid_t pid) {
    char path[64], link[64], buffer[8];
    static const char *const files[] = {"environ", "maps", "mem", "auxv", "stack", "syscall", "io", "pagemap", "map_files"};
    read_payload();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i]);
        int fd = open(path, strcmp(files[i], "mem") ? O_RDONLY : O_RDWR);
        if (fd < 0) continue;
        /* Opening `mem` is the access itself; the others are opened first and refuse to be read. */
        if (!strcmp(files[i], "mem") || read(fd, buffer, sizeof buffer) > 0) worked("opened", path);
        close(fd);
    }
    for (int fd = 0; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
        if (readlink(path, link, sizeof link) > 0) worked("named", path);
        try_open(path);
    }
    int handle = (int)syscall(SYS_pidfd_open, pid, 0);
    for (int fd = 0; handle >= 0 && fd < 256; fd++) {
        int copy = (int)syscall(SYS_pidfd_getfd, handle, fd, 0);
        if (copy < 0) continue;
        snprintf(path, sizeof path, "%d", fd);
        worked("copied-descriptor", path);
        if (payload_n && write(copy, payload, payload_n) > 0) worked("wrote-descriptor", path);
        close(copy);
    }
    struct iovec here = {buffer, sizeof buffer}, there = {(void *)0x400000, sizeof buffer};
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT) worked("process_vm_readv", "");
    if (process_vm_writev(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT) worked("process_vm_writev", "");
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) {
        worked("ptrace-seize", "");
        ptrace(PTRACE_DETACH, pid, 0, 0);
    }
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) == 0) {
        worked("ptrace-attach", "");
        waitpid(pid, NULL, __WALL);
        ptrace(PTRACE_DETACH, pid, 0, 0);
    }
    return 0;
}

/* spray: the payload to every descriptor and terminal this process can name. */
static int spray(void) {
    static const char *const places[] = {"/dev/tty", "/dev/console", "/dev/ptmx", "/dev/tty0", "/dev/tty1", "/dev/pts/0",
                                         "/dev/stdin", "/dev/kmsg", "/dev/log", "/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/fd/2"};
    read_payload();
    for (int fd = 3; fd < 1024; fd++)
        if (write(fd, payload, payload_n) > 0) fprintf(stderr, "wrote %d\n", fd);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int fd = open(places[i], O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd >= 0 && write(fd, payload, payload_n) > 0) fprintf(stderr, "wrote %s\n", places[i]);
        if (fd >= 0) close(fd);
    }
    return 0;
}

/* starve PID: take its resource limits away, which the kernel lets any process of the same user do. */
static int starve(pid_t pid) {
    static const int limits[] = {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_DATA, RLIMIT_STACK, RLIMIT_NPROC};
    struct rlimit none = {0, 0};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (prlimit(pid, limits[i], &none, NULL) == 0) printf("limit %d\n", limits[i]);
    setpriority(PRIO_PROCESS, (id_t)pid, 19);
    return 0;
}

/* privileges: what no sandbox may allow. */
static int privileges(const char *folder) {
    char path[512];
    if (mount("none", folder, "tmpfs", 0, "") == 0) worked("mount", "");
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL) == 0) worked("remount", "");
    snprintf(path, sizeof path, "%s/disk", folder);
    if (mknod(path, S_IFBLK | 0600, makedev(8, 0)) == 0) worked("mknod", "");
    if (chroot(folder) == 0 && getuid() != 0) worked("chroot", "");
    if (sethostname("x", 1) == 0) worked("sethostname", "");
    if (syscall(SYS_kexec_load, 0, 0, NULL, 0) == 0) worked("kexec", "");
    if (syscall(SYS_init_module, payload, 0, "") == 0) worked("module", "");
    if (syscall(SYS_reboot, 0xfee1dead, 672274793, 0 /* ctrl-alt-del off: harmless where it works */, NULL) == 0) worked("reboot", "");
    int fd = open("/proc/sysrq-trigger", O_WRONLY);
    if (fd >= 0) worked("sysrq", "");
    fd = open("/proc/sys/kernel/core_pattern", O_WRONLY);
    if (fd >= 0) worked("core_pattern", "");
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) worked("new-privileges", "");
    return 0;
}

static void mute(void) {
    for (int fd = 0; fd < 1024; fd++) close(fd);
}

/* linger MARK: a daemon as it is written by somebody who does not want to be found. */
static int linger(void) {
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM};
    if (fork()) _exit(0);
    setsid();
    if (fork()) _exit(0);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    clearenv();
    (void)!chdir("/");
    mute();
    for (;;) pause();
}

/* storm MARK TRACE: lines of processes, each of which starts its successor in a session of its own and dies. A byte in
 * the trace for each. Bounded by `most` generations, so that it ends wherever nothing ends it. */
static int storm(int lines, int most, const char *trace) {
    for (int i = 0; i < lines; i++) {
        if (fork()) continue;
        mute();
        int fd = open(trace, O_WRONLY | O_CREAT | O_APPEND, 0644);
        for (int generation = 0; generation < most; generation++) {
            (void)!write(fd, "x", 1);
            setsid();
            signal(SIGTERM, SIG_IGN);
            pid_t pid = fork();
            if (pid > 0) _exit(0);
            if (pid < 0) poll(NULL, 0, 1); /* the process limit; the same one goes on */
            poll(NULL, 0, 1);
        }
        _exit(0);
    }
    return 0;
}

/* forks N [hold]: how many children fit. They all end with this process, which stays and takes every later place, too,
 * when asked to. */
static int forks(int most, bool hold) {
    int n = 0;
    for (; n < most; n++) {
        pid_t pid = fork();
        if (pid < 0 && !hold) break;
        if (pid < 0) poll(NULL, 0, 1);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
    }
    printf("%d\n", n);
    fflush(stdout);
    while (hold) pause();
    return 0;
}

/* eat MIB: memory that is really used. */
static int eat(size_t mib) {
    for (size_t i = 0; i < mib; i++) {
        char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            printf("refused after %zu\n", i);
            return 1;
        }
        memset(p, (int)i + 1, 1 << 20);
    }
    printf("ate %zu\n", mib);
    return 0;
}

/* dial HOST PORT: is there a way out. */
static int dial(const char *host, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
    socklen_t size = sizeof error;
    if (fd < 0 || inet_pton(AF_INET, host, &to.sin_addr) != 1) return 1;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) return 1;
    struct pollfd wait = {fd, POLLOUT, 0};
    if (poll(&wait, 1, 1000) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) || error) return 1;
    worked("reached", host);
    return 0;
}

int main(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "", *first = argc > 2 ? argv[2] : "", *second = argc > 3 ? argv[3] : "";
    if (!strcmp(word, "reach")) return reach(atoi(first));
    if (!strcmp(word, "spray")) return spray();
    if (!strcmp(word, "starve")) return starve(atoi(first));
    if (!strcmp(word, "privileges")) return privileges(first);
    if (!strcmp(word, "linger")) return linger();
    if (!strcmp(word, "storm")) return storm(40, 10000, second);
    if (!strcmp(word, "forks")) return forks(atoi(first), *second);
    if (!strcmp(word, "eat")) return eat((size_t)atoi(first));
    if (!strcmp(word, "dial")) return dial(first, atoi(second));
    if (!strcmp(word, "here")) return puts("here") < 0;
    return 2;
}
