/* The clock of all times that processes share: CLOCK_MONOTONIC of the host. A process in a time namespace, as every
 * container that CRIU restores, has one that is ahead of it or behind. */
#ifndef GS_CLOCK_H
#define GS_CLOCK_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* This process's CLOCK_MONOTONIC, ns: the kernel's, also in a program in which another library (libfaketime) has replaced
 * libc's clock. What is measured by that one is wrong by as much as the program wants. */
uint64_t gs_clock_own(void);
/* Sleeps until a time of gs_clock_own, or until a signal. No cancellation point. */
void gs_clock_sleep(uint64_t until_ns);

/* How far this process's CLOCK_MONOTONIC is ahead of the host's, ns; 0 where /proc does not say. */
static inline int64_t gs_clock_ahead(void) {
  char text[256], own[64] = "", children[64] = "";
  long long seconds, ns;
  /* The offsets are those of the namespace of future children, which may be another one than this process's. */
  if (readlink("/proc/self/ns/time", own, sizeof own - 1) < 0 ||
      readlink("/proc/self/ns/time_for_children", children, sizeof children - 1) < 0 || strcmp(own, children) != 0)
    return 0;
  int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0)
    close(fd);
  text[got > 0 ? got : 0] = 0;
  return sscanf(text, "monotonic %lld %lld", &seconds, &ns) == 2 ? seconds * 1000000000 + ns : 0;
}

#endif
