/* Whatever bytes a stream brings: key scan, hello, epochs, frames, fields. No command is started; what would be asked of
 * the rest is asked of stubs, which read every field that the rest would read.
 *
 * The first byte of an input says how the rest is cut into reads. */
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

#include "link.h"
#include "loop.h"
#include "main.h"
#include "request.h"
#include "state.h"
#include "wire.h"

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
void requests_rewind(struct bytes pending, struct buf *known) { buf_add(known, pending.p, pending.n - pending.n % 4); }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    states_start();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t cuts[] = {1, 2, 3, 7, 11, 12, 13, 16, 17, 64, 255, 4096, 65536};
    if (!size) return 0;
    size_t cut = cuts[data[0] % (sizeof cuts / sizeof *cuts)];
    link_restart(open("/dev/zero", O_RDONLY | O_CLOEXEC), open("/dev/null", O_WRONLY | O_CLOEXEC),
                 data[0] & 0x80 ? TRUSTED : NEEDS_KEY);
    stopping = false;
    for (size_t at = 1; at < size && !stopping; at += cut) {
        link_bytes(0, data + at, size - at < cut ? size - at : cut);
        links_flush();
    }
    return 0;
}
