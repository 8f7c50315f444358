/* PID 1 of a virtual machine: makes it ready, waits on its serial port for what it shall be, starts the runner in it as
 * PID 1 of namespaces of its own, and switches the machine off when the runner ends.
 *
 * A machine may be saved while it waits, and be started again from there any number of times. So whatever must differ
 * between machines comes after the wait: random numbers, the clock, the name, and the runner with its instance. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/random.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "main.h"
#include "system.h"

#define READY "rayroll: ready\n"
#define GO "rayroll: go\n" /* the orders were understood; what follows is the runner */
#define ROOT "/root"
#define BOX "/sys/fs/cgroup/box"
#define RUNNER "/.rayroll/runner"

enum {
    WAIT_S = 120,       /* for the orders: whoever started this machine may be gone */
    ORDERS_MOST = 1 << 20,
    WORDS_MOST = 4096,
    SEED_MOST = 256,
};

static void off(void) {
    sync();
    reboot(RB_POWER_OFF);
    for (;;) pause();
}

/* The console is the host's to read: what is said there is why the machine ended. */
static void need(bool done, const char *what) {
    if (done) return;
    dprintf(2, "rayroll: cannot %s: %s\n", what, strerror(errno));
    off();
}

static bool put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write_all(fd, text, strlen(text));
    if (fd >= 0) close(fd);
    return done;
}

static void nap_ms(int ms) { poll(NULL, 0, ms); }

/* --- before the wait --- */

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void load_modules(void) {
    struct dirent **names;
    int n = scandir("/modules", &names, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char path[512];
        if (names[i]->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/modules/%s", names[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        need(fd >= 0 && (syscall(SYS_finit_module, fd, "", 0) == 0 || errno == EEXIST), path);
        close(fd);
    }
}

static int open_port(void) {
    for (int tries = 0; tries < 5000; tries++) { /* it is announced a moment after its driver is there */
        for (int i = 0; i < 8; i++) {
            char path[32];
            snprintf(path, sizeof path, "/dev/vport%dp1", i);
            int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
            if (fd >= 0) return fd;
        }
        nap_ms(1);
    }
    return -1;
}

static void make_devices(void) {
    static const struct { const char *name; int minor; } nodes[] = {
        {"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9},
    };
    static const struct { const char *to, *name; } links[] = {
        {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
        {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"},
    };
    char path[64];
    umask(0);
    need(!mount("dev", ROOT "/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k"), "mount /dev");
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        snprintf(path, sizeof path, ROOT "/dev/%s", nodes[i].name);
        need(!mknod(path, S_IFCHR | 0666, makedev(1, (unsigned)nodes[i].minor)), path);
    }
    need(!mknod(ROOT "/dev/tty", S_IFCHR | 0666, makedev(5, 0)), "make /dev/tty");
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(path, sizeof path, ROOT "/dev/%s", links[i].name);
        need(!symlink(links[i].to, path), path);
    }
    mkdir(ROOT "/dev/pts", 0755);
    mkdir(ROOT "/dev/shm", 01777);
    need(!mount("devpts", ROOT "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"),
         "mount /dev/pts");
    need(!mount("shm", ROOT "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=64m"), "mount /dev/shm");
    umask(022);
}

/* The image's files, read-only and the same for every machine, under a disk of this machine's own. */
static void mount_root(void) {
    static const char *const folders[] = {"/proc", "/sys", "/dev", "/run", "/tmp", "/var", "/var/tmp", "/.rayroll"};
    char path[64];
    mkdir("/lower", 0755);
    mkdir("/scratch", 0755);
    mkdir(ROOT, 0755);
    need(!mount("/dev/vda", "/lower", "ext4", MS_RDONLY, NULL), "mount the image's disk");
    need(!mount("/dev/vdb", "/scratch", "ext4", MS_NOATIME, NULL), "mount the machine's own disk");
    mkdir("/scratch/upper", 0755);
    mkdir("/scratch/work", 0755);
    need(!mount("overlay", ROOT, "overlay", 0, "lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work"),
         "mount the root");
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, ROOT "%s", folders[i]);
        mkdir(path, 0755);
    }
    rmdir(ROOT "/lost+found"); /* no image has it */
    chmod(ROOT "/tmp", 01777);
    chmod(ROOT "/var/tmp", 01777);
    int fd = open(ROOT RUNNER, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    need(fd >= 0 && !close(fd), "make the runner's place");
    need(!mount("/runner", ROOT RUNNER, NULL, MS_BIND, NULL) &&
             !mount(NULL, ROOT RUNNER, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL),
         "mount the runner");
    make_devices();
    need(!mount("sys", ROOT "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /sys");
}

static void prepare_machine(void) {
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mkdir("/dev", 0755);
    need(!mount("proc", "/proc", "proc", 0, NULL), "mount /proc");
    need(!mount("sys", "/sys", "sysfs", 0, NULL), "mount /sys");
    if (mount("dev", "/dev", "devtmpfs", 0, NULL) && errno != EBUSY) need(false, "mount /dev");
    load_modules();
    need(!mount("cgroup", "/sys/fs/cgroup", "cgroup2", 0, NULL), "mount cgroups");
    need(put("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids +cpu"), "enable limits");
    need(!mkdir(BOX, 0755), "make a cgroup");
    put("/proc/sys/user/max_user_namespaces", "0"); /* in one of their own commands would be privileged */
}

static void raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    ioctl(fd, SIOCSIFFLAGS, &request);
    close(fd);
}

/* --- the wait --- */

/* While nobody is at the other side the port reads as ended. */
static bool read_port(int port, void *to, size_t n, u64 deadline_ns) {
    u8 *p = to;
    while (n) {
        struct pollfd ready = {port, POLLIN, 0};
        ssize_t got = read(port, p, n);
        if (got > 0) {
            p += got;
            n -= (size_t)got;
        } else if (now_ns() > deadline_ns) {
            return false;
        } else if (got == 0) {
            nap_ms(5);
        } else {
            poll(&ready, 1, 1000);
        }
    }
    return true;
}

static void say(int port, const char *words) {
    for (u64 deadline_ns = now_ns() + WAIT_S * 1000000000ull; *words && now_ns() < deadline_ns;) {
        ssize_t done = write(port, words, strlen(words));
        if (done > 0) words += done;
        else nap_ms(2);
    }
}

static char *take_orders(int port, size_t *size) {
    u64 deadline_ns = now_ns() + WAIT_S * 1000000000ull;
    u8 head[4];
    need(read_port(port, head, sizeof head, deadline_ns), "go on: nobody said what this machine shall be");
    *size = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    need(*size && *size <= ORDERS_MOST, "read orders of that size");
    char *orders = xmalloc(*size + 1);
    need(read_port(port, orders, *size, deadline_ns), "read the orders to their end");
    orders[*size] = 0;
    return orders;
}

/* --- what this machine shall be --- */

static void reseed(const char *hex) {
    static u64 space[(sizeof(struct rand_pool_info) + SEED_MOST) / sizeof(u64) + 1];
    struct rand_pool_info *seed = (struct rand_pool_info *)space;
    size_t n = strlen(hex) / 2 < SEED_MOST ? strlen(hex) / 2 : SEED_MOST;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
        ((u8 *)seed->buf)[i] = (u8)strtoul(pair, NULL, 16);
    }
    seed->buf_size = (int)n;
    seed->entropy_count = (int)n * 8;
    int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    need(fd >= 0 && !ioctl(fd, RNDADDENTROPY, seed) && !ioctl(fd, RNDRESEEDCRNG), "take fresh random numbers");
    close(fd);
}

static void set_clock(u64 unix_ns) {
    struct timespec t = {(time_t)(unix_ns / 1000000000), (long)(unix_ns % 1000000000)};
    need(!clock_settime(CLOCK_REALTIME, &t), "set the clock");
}

struct life {
    char *env[WORDS_MOST + 1], *arg[WORDS_MOST + 1];
    char *cwd;
    unsigned uid, gid;
};

static bool is(const char *key, const char *name, size_t n) { return strlen(name) == n && !strncmp(key, name, n); }

static void obey(char *orders, size_t size, struct life *life) {
    size_t envs = 0, args = 0;
    for (char *word = orders; word < orders + size; word += strlen(word) + 1) {
        char *value = strchr(word, '=');
        need(value != NULL, "understand the orders");
        size_t n = (size_t)(value++ - word);
        if (is(word, "seed", n)) reseed(value);
        else if (is(word, "time", n)) set_clock(strtoull(value, NULL, 10));
        else if (is(word, "host", n)) need(!sethostname(value, strlen(value)), "set the name");
        else if (is(word, "memory", n)) need(put(BOX "/memory.max", value), "limit memory");
        else if (is(word, "pids", n)) need(put(BOX "/pids.max", value), "limit processes");
        else if (is(word, "cpu", n)) need(put(BOX "/cpu.max", value), "limit the CPU");
        else if (is(word, "uid", n)) life->uid = (unsigned)strtoul(value, NULL, 10);
        else if (is(word, "gid", n)) life->gid = (unsigned)strtoul(value, NULL, 10);
        else if (is(word, "cwd", n)) life->cwd = value;
        else if (is(word, "env", n) && envs < WORDS_MOST) life->env[envs++] = value;
        else if (is(word, "arg", n) && args < WORDS_MOST) life->arg[args++] = value;
        else need(false, "understand the orders");
    }
}

/* --- the runner --- */

/* What Docker lets root in a container have, of that what its own files and other users take. */
static void bound_capabilities(void) {
    enum { KEPT = 1 << CAP_CHOWN | 1 << CAP_DAC_OVERRIDE | 1 << CAP_FOWNER | 1 << CAP_SETUID | 1 << CAP_SETGID | 1 << CAP_KILL };
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {{KEPT, KEPT, 0}, {0, 0, 0}};
    for (int cap = 0; cap <= CAP_LAST_CAP; cap++)
        if (cap > 31 || !(KEPT & 1 << cap)) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    need(!syscall(SYS_capset, &header, sets), "give up privileges");
}

static void hide(void) {
    static const char *const read_only[] = {"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"};
    static const char *const hidden[] = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kallsyms"};
    for (size_t i = 0; i < sizeof read_only / sizeof *read_only; i++)
        if (!mount(read_only[i], read_only[i], NULL, MS_BIND | MS_REC, NULL))
            need(!mount(NULL, read_only[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL), read_only[i]);
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) mount("/dev/null", hidden[i], NULL, MS_BIND, NULL);
}

/* As an engine does with a directory that the image lacks. What is new belongs to whom everything belongs. */
static void make_folders(char *path, unsigned uid, unsigned gid) {
    for (char *end = path; *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char next = *end;
        *end = 0;
        if (!mkdir(path, 0755)) need(!chown(path, uid, gid), "make the working directory");
        *end = next;
    }
}

static void become_runner(int port, struct life *life) {
    struct rlimit files = {1024, 1 << 19}, all = {RLIM_INFINITY, RLIM_INFINITY};
    need(put(BOX "/cgroup.procs", "0"), "enter the cgroup");
    need(!unshare(CLONE_NEWCGROUP), "leave the other cgroups");
    need(!mount("proc", ROOT "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /proc");
    need(!mount("cgroup", ROOT "/sys/fs/cgroup", "cgroup2", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL),
         "mount its cgroup");
    need(!chdir(ROOT) && !mount(".", "/", NULL, MS_MOVE, NULL) && !chroot(".") && !chdir("/"), "enter the root");
    hide();
    setrlimit(RLIMIT_NOFILE, &files);
    setrlimit(RLIMIT_NPROC, &all);
    setsid();
    need(dup2(port, 0) == 0 && dup2(port, 1) == 1, "give the runner its port");
    close_from(3);
    if (life->cwd) make_folders(life->cwd, life->uid, life->gid);
    bound_capabilities();
    need(!syscall(SYS_setgroups, 0, NULL) && !setgid(life->gid) && !setuid(life->uid), "become the image's user");
    if (!life->cwd || chdir(life->cwd)) need(!chdir("/"), "enter /");
    execve(RUNNER, life->arg, life->env);
    need(false, "start the runner");
}

int boot_main(void) {
    static struct life life;
    size_t size;
    int status;
    prepare_machine();
    int port = open_port();
    need(port >= 0, "find the serial port");
    if (access("/dev/vda", F_OK) == 0) mount_root(); /* a machine without disks is to show that one can be started */
    say(port, READY);
    char *orders = take_orders(port, &size);
    need(!unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS), "make namespaces");
    raise_loopback();
    obey(orders, size, &life);
    say(port, GO);
    pid_t runner = fork();
    need(runner >= 0, "start the runner");
    if (runner == 0) become_runner(port, &life);
    close(port);
    while (waitpid(runner, &status, 0) < 0 && errno == EINTR) {
    }
    off();
    return 1;
}
