/* The keepers, as the runner sees them: hired for a command, free again after it or left with its background jobs. */
#ifndef RR_CREW_H
#define RR_CREW_H

#include "keeper.h"
#include "request.h"

struct member *crew_hire(void); /* NULL with errno: none is free and none can be forked */
bool crew_run(struct member *m, struct request *r, const struct order *order, struct bytes cwd, struct bytes env, int out_fd,
              int text_fd); /* text_fd: -1 without one */
void crew_end(struct member *m, u64 grace_ns);
void crew_leave(struct member *m, int out_fd); /* its command is over; jobs live on and may print into what out_fd reads */
void crew_free(struct member *m);              /* nothing is left of its command */
void crew_dismiss(struct member *m);           /* and with it everything it looks after */
void crew_kill(struct member *m);              /* it does not answer */
void crew_disband(void);                       /* everything has been killed */
void crew_part(void);                          /* we go, and background jobs stay with their keepers */
void crew_child_stopped(pid_t pid);
void crew_child_died(pid_t pid);

#endif
