#include "interposer/os/files/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/os/system.h"

#ifndef F_OFD_GETLK /* Linux 3.15 */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

enum { PATH_BYTES = 48 };

/* A direct system call: newer versions of libc have another symbol for fcntl. */
static long control(int fd, int what, struct flock *lock) { return syscall(SYS_fcntl, fd, what, lock); }

static struct flock lock_of(short type, uint64_t byte) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
}

uint64_t gs_descriptor_file(int fd) {
  int saved = errno;
  struct stat file;
  bool is_open = gs_fstat(fd, &file) == 0;
  errno = saved;
  /* an odd constant with well-distributed bits; file systems number their files from small numbers on */
  return is_open ? ((uint64_t)file.st_dev * 0xd6e8feb86659fd93u ^ file.st_ino) << 1 | 1 : 0;
}

int gs_descriptor_copy(int fd) {
  int saved = errno, copy = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
  errno = saved;
  return copy;
}

void gs_descriptor_drop(int copy) {
  int saved = errno;
  if (copy >= 0)
    close(copy);
  errno = saved;
}

static int open_again(const char *where, int fd) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "/proc/%s/fd/%d", where, fd);
  return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

int gs_descriptor_watcher(int fd) {
  int saved = errno, watcher = open_again("thread-self", fd); /* "self" is empty once the main thread has ended */
  if (watcher < 0)
    watcher = open_again("self", fd); /* before Linux 3.17 */
  errno = saved;
  return watcher;
}

bool gs_descriptor_lock(int fd, uint64_t byte) {
  int saved = errno;
  struct flock write = lock_of(F_WRLCK, byte), read = lock_of(F_RDLCK, byte);
  bool locked = control(fd, F_OFD_SETLK, &write) == 0 || control(fd, F_OFD_SETLK, &read) == 0;
  errno = saved;
  return locked;
}

bool gs_descriptor_is_open(int watcher, uint64_t file, uint64_t byte) {
  int saved = errno;
  struct flock asked = lock_of(F_WRLCK, byte);
  bool known = watcher >= 0 && gs_descriptor_file(watcher) == file && control(watcher, F_OFD_GETLK, &asked) == 0;
  errno = saved;
  return !known || asked.l_type != F_UNLCK;
}

void gs_descriptor_unwatch(int watcher, uint64_t file) {
  int saved = errno;
  if (watcher >= 0 && gs_descriptor_file(watcher) == file) /* else the program has closed it and reused the number */
    close(watcher);
  errno = saved;
}
