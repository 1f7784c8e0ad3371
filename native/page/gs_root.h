/* Whether root of this machine owns a file, as a process sees it. */
#ifndef GS_ROOT_H
#define GS_ROOT_H

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { GS_NOBODY_UID = 65534 /* of what belongs to nobody in a user namespace; every system has the default */ };

/* Whether this process is in a user namespace of its own, as in a sandbox: there the host's root usually is nobody. */
static inline bool gs_in_user_namespace(void) {
  char map[128];
  int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, map, sizeof map - 1);
  if (fd >= 0)
    close(fd);
  if (got <= 0)
    return false;
  map[got] = 0;
  return !strstr(map, "4294967295"); /* all users, as in the first namespace */
}

/* owner: the file's st_uid. */
static inline bool gs_is_roots(uid_t owner) { return owner == 0 || (owner == GS_NOBODY_UID && gs_in_user_namespace()); }

#endif
