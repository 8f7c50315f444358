/* The floor under every action, measured right here with nothing around it: what fork and exec of the same shell cost, and
 * what a shell costs that is held open and told the next command, its end marked by a second `echo`. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"
#include "main.h"
#include "system.h"

enum { DEFAULT_N = 200, MOST_N = 1000000 };

static int compare(const void *a, const void *b) {
    u64 x = *(const u64 *)a, y = *(const u64 *)b;
    return (x > y) - (x < y);
}

/* One `sh -c 'echo i'` with its output read to the end; 0 when the output is not what was asked for. */
static u64 forked(const char *shell, int i) {
    char script[32], expected[16], got[16];
    int out[2];
    snprintf(script, sizeof script, "echo %d", i);
    int n = snprintf(expected, sizeof expected, "%d\n", i);
    u64 start = now_ns();
    if (pipe2(out, O_CLOEXEC)) return 0;
    pid_t pid = fork();
    if (pid == 0) {
        char *args[] = {(char *)shell, "-c", script, NULL};
        dup2(out[1], 1);
        execv(shell, args);
        _exit(127);
    }
    close(out[1]);
    bool right = pid > 0 && read_all(out[0], got, (size_t)n) && !memcmp(got, expected, (size_t)n);
    right = read(out[0], got, 1) == 0 && right;
    close(out[0]);
    if (pid > 0) waitpid(pid, NULL, 0);
    return right ? now_ns() - start : 0;
}

static u64 held(int to, int from, int i) {
    char script[64], expected[32], got[32];
    int n = snprintf(script, sizeof script, "echo %d\necho END $?\n", i);
    int m = snprintf(expected, sizeof expected, "%d\nEND 0\n", i);
    u64 start = now_ns();
    bool right = write_all(to, script, (size_t)n) && read_all(from, got, (size_t)m) && !memcmp(got, expected, (size_t)m);
    return right ? now_ns() - start : 0;
}

static pid_t hold(const char *shell, int *to, int *from) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        char *args[] = {(char *)shell, NULL};
        dup2(in[0], 0);
        dup2(out[1], 1);
        execv(shell, args);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    *to = in[1];
    *from = out[0];
    return pid;
}

int bench_main(int argc, char **argv) {
    int n = argc == 4 && !strcmp(argv[2], "--n") ? atoi(argv[3]) : DEFAULT_N, to, from;
    const char *shell = find_shell();
    if (!shell || n < 1 || n > MOST_N || (argc != 2 && argc != 4)) return 2;
    u64 *floor = xmalloc((size_t)n * sizeof *floor), *open = xmalloc((size_t)n * sizeof *open);
    pid_t pid = hold(shell, &to, &from);
    if (pid < 0) return 1;
    for (int i = 0; i < n; i++)
        if (!(floor[i] = forked(shell, i)) || !(open[i] = held(to, from, i))) return 1;
    close(to);
    waitpid(pid, NULL, 0);
    qsort(floor, (size_t)n, sizeof *floor, compare);
    qsort(open, (size_t)n, sizeof *open, compare);
    printf("{\"shell\": \"%s\", \"n\": %d, \"p50_ns\": %llu, \"p95_ns\": %llu, \"held_p50_ns\": %llu}\n", shell, n,
           (unsigned long long)floor[n / 2], (unsigned long long)floor[(size_t)n * 95 / 100], (unsigned long long)open[n / 2]);
    return 0;
}
