#include "once.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "link.h"
#include "state.h"
#include "system.h"

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static int real_out = -1;

static bool decode(const char *text, struct buf *out) {
    u32 bits = 0;
    int have = 0;
    for (; *text && *text != '='; text++) {
        const char *at = strchr(ALPHABET, *text);
        if (!at) return false;
        bits = bits << 6 | (u32)(at - ALPHABET);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        u8 byte = (u8)(bits >> have);
        buf_add(out, &byte, 1);
    }
    return !text[strspn(text, "=")];
}

static void encode(const u8 *p, size_t n, struct buf *out) {
    for (size_t i = 0; i < n; i += 3) {
        u32 bits = (u32)p[i] << 16 | (i + 1 < n ? (u32)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        char four[4] = {ALPHABET[bits >> 18], ALPHABET[bits >> 12 & 63], i + 1 < n ? ALPHABET[bits >> 6 & 63] : '=',
                        i + 2 < n ? ALPHABET[bits & 63] : '='};
        buf_add(out, four, sizeof four);
    }
    buf_add(out, "\n", 1);
}

static bool replace(int fd, int standard) {
    if (fd < 0) return false;
    bool ok = dup2(fd, standard) == standard;
    close(fd);
    return ok;
}

const char *once_begin(const struct once_options *o) {
    if (o->request) {
        struct buf frames = {0};
        bool ok = decode(o->request, &frames) && replace(memory_file("request", frames.p, frames.n, UNSEALED), 0);
        buf_free(&frames);
        if (!ok) return "runner: --request is not base64\n";
    } else if (o->request_path && !replace(open(o->request_path, O_RDONLY | O_CLOEXEC), 0)) {
        return "runner: --request-file cannot be read\n";
    }
    if (o->base64) {
        real_out = fcntl(1, F_DUPFD_CLOEXEC, 3);
        if (real_out < 0 || !replace(memory_file("reply", NULL, 0, UNSEALED), 1)) return "runner: no memory for the reply\n";
    }
    if (o->state_path) {
        struct stat st;
        int fd = open(o->state_path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) state_load(state_of(NULL), fd);
        close_fd(&fd);
    }
    link_open(0, 1, TRUSTED);
    return NULL;
}

/* Under a new name first: a state is whole or the one before. */
static bool save(const char *path) {
    size_t n = strlen(path) + 32;
    char *temporary = xmalloc(n);
    snprintf(temporary, n, "%s.%d", path, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && state_save(state_of(NULL), fd);
    close_fd(&fd);
    ok = ok && rename(temporary, path) == 0;
    if (!ok) unlink(temporary);
    free(temporary);
    return ok;
}

bool once_end(const struct once_options *o) {
    bool ok = !o->state_path || save(o->state_path);
    if (!o->base64) return ok;
    struct stat st;
    struct buf text = {0};
    if (fstat(1, &st)) return false;
    u8 *frames = xmalloc((size_t)st.st_size);
    ok = pread(1, frames, (size_t)st.st_size, 0) == st.st_size && ok;
    encode(frames, (size_t)st.st_size, &text);
    ok = write_all(real_out, text.p, text.n) && ok;
    free(frames);
    buf_free(&text);
    return ok;
}
