/* Our own reading of passwd and group: libc's asks a name service daemon through a socket and waits for a FIFO, both of
 * which a sandbox can put in its way. */
#include "user.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TABLE_MOST = 16 << 20 };

static FILE *open_table(const char *path) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= TABLE_MOST) return fdopen(fd, "r");
    close(fd);
    return NULL;
}

static bool as_number(const char *text, unsigned *value) {
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    *value = (unsigned)number;
    return *text >= '0' && *text <= '9' && !*end && !errno && number < 0xffffffffu; /* that one means "unchanged" */
}

static bool find_passwd(const char *name, bool numeric, unsigned number, struct user *user) {
    FILE *table = open_table("/etc/passwd");
    bool found = false;
    for (struct passwd *entry; table && !found && (entry = fgetpwent(table));) {
        found = numeric ? entry->pw_uid == number : !strcmp(entry->pw_name, name);
        if (!found) continue;
        user->uid = entry->pw_uid;
        user->gid = entry->pw_gid;
        snprintf(user->name, sizeof user->name, "%s", entry->pw_name);
        snprintf(user->home, sizeof user->home, "%s", *entry->pw_dir ? entry->pw_dir : "/");
    }
    if (table) fclose(table);
    return found;
}

static bool find_group(const char *name, gid_t *gid) {
    FILE *table = open_table("/etc/group");
    bool found = false;
    for (struct group *entry; table && !found && (entry = fgetgrent(table));) {
        found = !strcmp(entry->gr_name, name);
        if (found) *gid = entry->gr_gid;
    }
    if (table) fclose(table);
    return found;
}

static void add_groups(struct user *user) {
    FILE *table = open_table("/etc/group");
    for (struct group *entry; table && (entry = fgetgrent(table));)
        for (char **member = entry->gr_mem; *member && user->group_count < USER_GROUPS; member++)
            if (!strcmp(*member, user->name) && entry->gr_gid != user->gid) {
                user->groups[user->group_count++] = entry->gr_gid;
                break;
            }
    if (table) fclose(table);
}

const char *user_find(const char *text, struct user *user) {
    char name[128];
    unsigned number = 0;
    *user = (struct user){0};
    if (snprintf(name, sizeof name, "%s", text) >= (int)sizeof name) return "no such user in the sandbox";
    char *group = strchr(name, ':');
    if (group) *group++ = 0;
    bool numeric = as_number(name, &number);
    if (!find_passwd(name, numeric, number, user)) {
        if (!numeric) return "no such user in the sandbox";
        user->uid = number;
        user->gid = number;
        snprintf(user->name, sizeof user->name, "%.63s", name);
        snprintf(user->home, sizeof user->home, "/");
    }
    if (group && as_number(group, &number)) user->gid = number;
    else if (group && !find_group(group, &user->gid)) return "no such group in the sandbox";
    user->groups[user->group_count++] = user->gid;
    if (!group) add_groups(user);
    if (!user_is_us(user) && geteuid() != 0) return "the runner is not root here and cannot become another user";
    return NULL;
}

bool user_is_us(const struct user *user) { return user->uid == getuid() && user->gid == getgid(); }

bool user_become(const struct user *user) {
    if (user_is_us(user)) return true;
    return setgroups((size_t)user->group_count, user->groups) == 0 && setgid(user->gid) == 0 && setuid(user->uid) == 0;
}
