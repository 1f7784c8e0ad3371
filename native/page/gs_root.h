/* Whether root of this machine owns a file, as a process sees it. */
#ifndef GS_ROOT_H
#define GS_ROOT_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { GS_NOBODY_UID = 65534 /* of what belongs to nobody in a user namespace; every system has the default */ };

/* Reads how this process's user namespace maps users: lines of a first user here, the same user outside, and a number.
 * Empty where none is mapped. False: it is the first namespace, or nobody knows. */
static inline bool gs_read_user_map(char map[256]) {
  int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, map, 255);
  if (fd >= 0)
    close(fd);
  if (got < 0)
    return false;
  map[got] = 0;
  return !strstr(map, "4294967295"); /* all users, as in the first namespace */
}

/* owner: the file's st_uid. In a user namespace, as sandboxes have, the machine's root usually is nobody, or whoever it is
 * mapped to. */
static inline bool gs_is_roots(uid_t owner) {
  char map[256], *at = map, *next;
  if (owner == 0)
    return true;
  if (!gs_read_user_map(map))
    return false;
  for (;; at = next) {
    unsigned long here = strtoul(at, &next, 10), outside = strtoul(next, &next, 10);
    if (next == at || strtoul(next, &next, 10) == 0)
      return owner == GS_NOBODY_UID;
    if (outside == 0 && here == owner)
      return true;
  }
}

#endif
