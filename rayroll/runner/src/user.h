/* Who a command or a transfer runs as. */
#ifndef RR_USER_H
#define RR_USER_H

#include <sys/types.h>

#include "bytes.h"

enum { USER_GROUPS = 64 };

struct user {
    uid_t uid;
    gid_t gid;
    int group_count;
    gid_t groups[USER_GROUPS];
    char name[64], home[256];
};

/* "name", "uid", "uid:gid", "name:group", as Docker's USER. NULL, or why not. */
const char *user_find(const char *text, struct user *user);
bool user_is_us(const struct user *user);
bool user_become(const struct user *user); /* for good */

#endif
