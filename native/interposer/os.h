/* What we ask of the system without libc wrappers that old libcs lack. */
#ifndef GPUSHARE_OS_H
#define GPUSHARE_OS_H

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* stat and fstat are new symbols in glibc 2.33; the kernel's structure is glibc's on x86-64 and aarch64. */
static inline int gs_stat(const char *path, struct stat *file) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, file, 0);
}
static inline int gs_fstat(int fd, struct stat *file) {
  return (int)syscall(SYS_newfstatat, fd, "", file, AT_EMPTY_PATH);
}

#endif
