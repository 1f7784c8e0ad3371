/* System calls without libc wrappers that old versions of libc lack. */
#ifndef GPUSHARE_OS_H
#define GPUSHARE_OS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* stat and fstat are new symbols in glibc 2.33; the kernel's structure is glibc's on x86-64 and aarch64. */
static inline int gs_stat(const char *path, struct stat *file) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, file, 0);
}
static inline int gs_fstat(int fd, struct stat *file) {
  return (int)syscall(SYS_newfstatat, fd, "", file, AT_EMPTY_PATH);
}

/* The inode of this process's pid namespace; 0 where /proc does not say. */
static inline uint32_t gs_pid_namespace(void) {
  struct stat file;
  return gs_stat("/proc/self/ns/pid", &file) == 0 ? (uint32_t)file.st_ino : 0;
}

/* Sleeps. Not libc's nanosleep, which is a cancellation point: a cancelled thread would leave locks held and
 * announcements in place. */
static inline void gs_nap(uint64_t ns) {
  struct timespec nap = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  syscall(SYS_nanosleep, &nap, NULL);
}

#endif
