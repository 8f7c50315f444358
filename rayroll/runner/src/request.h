/* What is under way: commands, file transfers and their replies, each by its request id.
 *
 * A command's reply is kept until the host says it has it (ACK): after a broken stream the next hello names what it
 * still waits for, and nothing is run twice. File transfers are simply asked for again. */
#ifndef RR_REQUEST_H
#define RR_REQUEST_H

#include <sys/types.h>

#include "bytes.h"
#include "cgroup.h"
#include "keeper.h"

enum phase { QUEUED, RUNNING, SENDING, SENT };

struct member; /* crew.h */

struct command {
    struct member *keeper;
    struct state *state; /* what it starts from, and changes; NULL: nothing is carried */
    u64 generation, mark_key;
    int out;
    u64 total_at_ns, idle_ns, idle_at_ns, grace_ns, limit_at_ns, lost_at_ns;
    u8 limit;
    bool exited, state_saved, state_too_large, survived;
    struct note note;
    struct pressure before;
    struct buf head, tail;
    size_t head_cap, tail_cap;
    u64 output_bytes;
};

struct transfer {
    pid_t worker;
    int data, status;
    struct buf inbox;
    bool inbox_ended, data_ended, status_known;
};

struct reply {
    u8 type;
    struct buf fields, output;
    size_t head_kept, sent;
};

struct request {
    struct request *older, *newer;
    u32 id;
    u8 type;
    enum phase phase;
    bool forgotten; /* nobody awaits the reply any more */
    struct buf payload;
    u64 received_ns, started_ns;
    struct command command;
    struct transfer transfer;
    struct reply reply;
};

/* --- what the link calls --- */

void request_start(u8 type, u32 id, struct bytes payload);
void request_cancel(u32 id);
void request_ack(u32 id);
void request_data(u32 id, struct bytes data);
void request_data_end(u32 id);
void requests_kill_all(u32 id);
void requests_reset(u32 id, struct bytes payload); /* the same, then the way back to the baseline */
void requests_rewind(struct bytes pending, struct buf *known); /* a new hello: send again, forget what nobody awaits */

/* --- what the loop calls --- */

void request_child_died(pid_t pid);
u64 requests_tick(u64 now); /* limits; returns when to be called again (0: no need) */
bool requests_pump(void);   /* send what the window allows; true: there is more */
bool requests_idle(void);   /* nothing runs and everything is sent */
bool requests_seen(void);   /* there was one at all */

/* --- what commands and transfers call --- */

void request_finish(struct request *r, u8 reply_type); /* may free it: the last thing to do with it */
void request_fail(struct request *r, const char *code, int error, const char *reason); /* the same */

/* --- command.c --- */

void command_start(struct request *r);
void command_end(struct request *r, u8 limit);
u64 command_tick(struct request *r, u64 now); /* UINT64_MAX: it was lost, and with it others may have changed */
void command_killed(struct request *r);       /* everything has been killed */
void command_free(struct command *c);
void command_noted(struct request *r, const struct note *note, struct bytes changes, int text_fd); /* which stays the caller's */
void command_keeper_lost(struct request *r);
void command_not_taken(struct request *r); /* its keeper was killed before it knew of it: nothing has happened yet */

/* --- transfer.c --- */

void transfer_start(struct request *r);
void transfer_stop(struct request *r); /* the worker ends; its status follows */
void transfer_killed(struct request *r);
void transfer_free(struct transfer *t);
void transfer_data(struct request *r, struct bytes data, bool end);
void transfer_pump(struct request *r); /* the window has opened */

#endif
