/* One event loop, no threads. */
#ifndef RR_LOOP_H
#define RR_LOOP_H

typedef void (*ready_fn)(void *owner, short events);

/* Call `fn` when `fd` is ready (POLLIN, POLLOUT). Again with other events to change them; with 0 it is kept, silent. */
void watch(int fd, short events, ready_fn fn, void *owner);
void unwatch(int fd);
void close_watched(int *fd); /* unwatch, close, -1 */
void loop_wait(int timeout_ms); /* -1: until something happens */

#endif
