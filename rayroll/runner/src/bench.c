/* The floor under every action: what fork and exec of the same shell cost right here, with nothing around them. */
#include "rr.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int compare(const void *a, const void *b) {
    u64 x = *(const u64 *)a, y = *(const u64 *)b;
    return (x > y) - (x < y);
}

/* One `sh -c 'echo i'` with its output read to the end; 0 when the output is not what was asked for. */
static u64 one(const char *shell, int i) {
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
    waitpid(pid, NULL, 0);
    return right ? now_ns() - start : 0;
}

int bench_main(int argc, char **argv) {
    int n = argc == 4 && !strcmp(argv[2], "--n") ? atoi(argv[3]) : 200;
    const char *shell = find_shell();
    if (!shell || n < 1 || n > 1000000) return 2;
    u64 *took = xmalloc((size_t)n * sizeof *took);
    for (int i = 0; i < n; i++)
        if (!(took[i] = one(shell, i))) return 1;
    qsort(took, (size_t)n, sizeof *took, compare);
    printf("{\"shell\": \"%s\", \"n\": %d, \"p50_ns\": %llu, \"p95_ns\": %llu}\n", shell, n,
           (unsigned long long)took[n / 2], (unsigned long long)took[(size_t)n * 95 / 100]);
    return 0;
}
