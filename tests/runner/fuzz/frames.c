/* Whatever bytes a stream brings: key scan, hello, epochs, frames, fields. No command is started; what would be asked of
 * the rest is asked of stubs, which read every field that the rest would read.
 *
 * The first byte of an input says how the rest is cut into reads. */
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

#include "link.c" /* whole, for its memory has to be as new for every input */

bool is_init, stopping, one_shot, had_shell = true;
u8 instance[16];
static int asked;

void lease_set(u64 duration_ns) { if (duration_ns > 366ull * 24 * 3600 * 1000000000) abort(); }
void lease_renew(void) {}
const char *find_shell(void) { return "/bin/sh"; }

static void read_everything(struct bytes payload) {
    asked++;
    for (int tag = 0; tag < 256; tag++) {
        struct bytes value = field(payload, (u8)tag);
        if (value.p && (value.p < payload.p || value.p + value.n > payload.p + payload.n)) abort();
        field_num(payload, (u8)tag, 7);
        field_ns(payload, (u8)tag, 7);
        free(field_text(payload, (u8)tag));
    }
}

void request_start(u8 type, u32 id, struct bytes payload) {
    read_everything(payload);
    if (id % 2) link_error(id, "busy", type, "fuzzed");
    else link_send(F_OUTPUT, id, payload.n < 100 ? payload : (struct bytes){payload.p, 100});
}
void request_cancel(u32 id) { (void)id; }
void request_ack(u32 id) { (void)id; }
void request_data(u32 id, struct bytes data) { (void)id; link_sent(data.n % 1000); }
void request_data_end(u32 id) { (void)id; }
void requests_kill_all(u32 id) { link_send(F_RESULT, id, (struct bytes){NULL, 0}); }
void requests_reset(u32 id, struct bytes payload) { request_start(F_RESET, id, payload); }
void requests_rewind(struct bytes pending, struct buf *known) { buf_add(known, pending.p, pending.n - pending.n % 4); }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    states_start();
    return 0;
}

/* A runner that has just begun, and its first stream, which is not a socket. */
static void restart(enum trust trust) {
    if (links[0].used) {
        link_close(&links[0]);
        close(links[0].in);
        close(links[0].out);
    }
    memset(links, 0, sizeof links);
    epoch = 0;
    window_used = 0;
    key_known = first_ended = stopping = false;
    link_open(open("/dev/zero", O_RDONLY | O_CLOEXEC), open("/dev/null", O_WRONLY | O_CLOEXEC), trust);
    links[0].is_socket = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t cuts[] = {1, 2, 3, 7, 11, 12, 13, 16, 17, 64, 255, 4096, 65536};
    if (!size) return 0;
    size_t cut = cuts[data[0] % (sizeof cuts / sizeof *cuts)];
    restart(data[0] & 0x80 ? TRUSTED : NEEDS_KEY);
    for (size_t at = 1; at < size && !stopping; at += cut) {
        hear(&links[0], data + at, size - at < cut ? size - at : cut);
        links_flush();
    }
    return 0;
}
