/* Streams to hosts: who may speak, cutting bytes into frames, the window, and being found again. */
#ifndef RR_LINK_H
#define RR_LINK_H

#include "bytes.h"
#include "wire.h"

enum trust { NEEDS_KEY, TRUSTED };

void link_open(int in, int out, enum trust trust);
void link_key(const u8 given[WIRE_KEY]); /* of hosts that come by socket */
u64 links_tick(u64 now);                 /* looks again at streams that hung up; when to be called next (0: no need) */
void links_flush(void);

bool link_active(void);  /* a host is there */
bool link_flushed(void); /* and has taken all we said */
bool link_ended(void);   /* the stream we were started with has no more to say */

void link_send(u8 type, u32 id, struct bytes payload); /* to the host; dropped where there is none */
void link_error(u32 id, const char *code, int error, const char *reason);
bool link_may_send(size_t n); /* false: the window is full, or the stream has not taken what is queued */
void link_sent(size_t n);     /* n bytes of the window are in use */

#endif
