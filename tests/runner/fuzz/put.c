/* Whatever stream of entries a host sends: nothing is written outside the folder, nothing is left half-written. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "main.h"
#include "system.h"

bool is_init, stopping, one_shot, had_shell;
u8 instance[16];

static char home[64] = "/tmp/rr-fuzz-XXXXXX";

static void clean(void) {
    struct fault f = {0};
    struct entry remove = {.type = 'r'};
    u64 count = 0;
    int fd = memory_file("clean", &remove, sizeof remove, UNSEALED);
    char base[100];
    snprintf(base, sizeof base, "%s/in", home);
    if (!put_stream(fd, base, &count, &f)) abort();
    close(fd);
}

static void leave(void) {
    clean();
    rmdir(home);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    if (!mkdtemp(home) || chdir(home)) abort();
    atexit(leave);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fault f = {0};
    u64 count = 0;
    char base[100];
    snprintf(base, sizeof base, "%s/in", home);
    int fd = memory_file("fuzz", data, size, UNSEALED);
    if (fd < 0) abort();
    mkdir(base, 0755);
    (void)!symlink("..", "in/out"); /* a way out: whoever takes it is seen below */
    if (!put_stream(fd, base, &count, &f) && !f.error) abort();
    close(fd);
    DIR *there = opendir(home);
    for (struct dirent *e; there && (e = readdir(there));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, "in")) abort();
    if (there) closedir(there);
    clean();
    return 0;
}
