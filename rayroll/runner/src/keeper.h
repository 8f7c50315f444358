/* What the runner and a keeper say to each other, one message at a time, over a SOCK_SEQPACKET. */
#ifndef RR_KEEPER_H
#define RR_KEEPER_H

#include "bytes.h"
#include "state.h"
#include "user.h"

enum { INLINE_MOST = 48 << 10 }; /* longer requests and changes go in a memory file; a socket takes 200 kB by default */

/* To the keeper. RUN: descriptors are the output, then the text and the memory file, where there is one. LEAVE: the
 * descriptor is the other end of the output, and the runner is about to go without anything being the matter. */
enum order_kind { ORDER_RUN = 1, ORDER_END, ORDER_LEAVE };
struct order {
    u32 kind, serial; /* of the command, so that an order that comes too late is nobody's */
    u64 grace_ns;     /* END: from TERM to KILL */
    bool in_file, has_text, has_user, who_known, identify;
    u32 cwd_n, env_n, request_n; /* RUN: these follow */
    struct user who;
    u64 text_n, text_hash; /* what `export -p` prints where nothing changed; 0: unknown */
};

/* From the keeper; descriptors are the memory file and the text, where there is one. */
enum note_kind {
    NOTE_REFUSED = 1, /* the request cannot work: code, reason */
    NOTE_FAILED,      /* nothing was executed: stage, error */
    NOTE_EXITED,      /* the main process ended */
    NOTE_GONE,        /* and nothing else of the command is left, as far as it could be killed */
};
enum what_state { STATE_LOST, STATE_SAME, STATE_CHANGED, STATE_TOO_LARGE };
struct note {
    u32 kind, serial;
    int status, error, stage;
    bool is_alone; /* nothing else is left: the keeper is free again */
    bool fell_back, who_known, in_file, has_text, survived;
    u8 state;
    u32 changes_n; /* these follow, or are in the memory file */
    u64 started_ns, exited_ns, user_ns, system_ns, max_rss_bytes;
    u64 text_n, text_hash;
    struct user who;
    char code[16], reason[160];
};

#define KEEPER_NAME "rayroll-keeper"
_Noreturn void keeper_main(int control);

#endif
