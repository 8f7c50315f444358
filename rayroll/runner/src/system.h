/* What every part asks of the kernel: the clock, whole reads and writes, nameless files, messages with descriptors. */
#ifndef RR_SYSTEM_H
#define RR_SYSTEM_H

#include <sys/types.h>

#include "bytes.h"

u64 now_ns(void); /* monotonic */
u64 sooner(u64 a_ns, u64 b_ns); /* of two moments, either of which may be 0: none */
bool write_all(int fd, const void *p, size_t n);
bool read_all(int fd, void *p, size_t n); /* false also where the file ends before */
void set_nonblocking(int fd);
void close_fd(int *fd); /* unless it is -1 already, which it is afterwards */

void close_from(int first); /* every descriptor from `first` up */
void null_stdio(void);      /* 0, 1 and 2 become /dev/null: the channel is nobody's but the runner's */

/* A file in memory that holds these bytes, positioned at 0; -1 on failure. Sealed: nobody can change it any more. */
enum seal { UNSEALED, SEALED };
int memory_file(const char *name, const void *p, size_t n, enum seal seal);

/* One message of a SOCK_SEQPACKET with up to MESSAGE_FDS descriptors, which arrive close-on-exec. Neither ever waits. */
enum { MESSAGE_FDS = 3 };
bool message_send(int socket, struct bytes head, struct bytes body, const int *fds, int fd_count);
ssize_t message_recv(int socket, void *p, size_t most, int fds[MESSAGE_FDS]); /* absent descriptors: -1 */

#endif
