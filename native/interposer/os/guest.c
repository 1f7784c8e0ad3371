/* Services that every file of the interposer uses; they know nothing about grants or CUDA. */
#include "interposer/os/guest.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interposer/os/system.h"
#include "page/gs_clock.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14; older headers do not know it */
#endif

enum { SAY_LINES = 20, SAY_BYTES = 400 };

void *gs_private_map(size_t bytes) {
  int saved = errno;
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    at = NULL;
  else
    madvise(at, bytes, MADV_WIPEONFORK);
  errno = saved;
  return at;
}

static int64_t ahead; /* gs_clock_ahead */

void gs_clock_find(void) {
  int saved = errno;
  __atomic_store_n(&ahead, gs_clock_ahead(), __ATOMIC_RELAXED);
  errno = saved;
}

uint64_t gs_now(void) { return gs_clock_own() - (uint64_t)__atomic_load_n(&ahead, __ATOMIC_RELAXED); }

enum { WAKE_ON = 2 };

void gs_futex_pass_on(const uint32_t *word, uint32_t value) {
  /* A thread that has waited for the newest value ends the chain. */
  if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
    gs_futex_wake(word, WAKE_ON, true);
}

bool gs_futex_wait(const uint32_t *word, uint32_t value, uint64_t timeout_ns, bool shared) {
  int saved = errno;
  struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
  int operation = shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  long rc = syscall(SYS_futex, word, operation, value, timeout_ns ? &timeout : NULL, NULL, 0);
  bool timed_out = rc < 0 && errno == ETIMEDOUT;
  if (rc == 0 && shared)
    gs_futex_pass_on(word, value);
  errno = saved;
  return !timed_out;
}

void gs_futex_wake(const uint32_t *word, int count, bool shared) {
  int saved = errno;
  syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
  errno = saved;
}

/* 0 free, 1 held, 2 held with waiters */
void gs_lock(uint32_t *lock) {
  uint32_t seen = 0;
  if (__atomic_compare_exchange_n(lock, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return;
  while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE) != 0)
    gs_futex_wait(lock, 2, 0, false);
}

void gs_unlock(uint32_t *lock) {
  if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2)
    gs_futex_wake(lock, 1, false);
}

/* One write, so that lines of several processes do not mix; an error cannot be reported anywhere. */
__attribute__((format(printf, 1, 0))) static void write_line(const char *format, va_list args) {
  int saved = errno;
  char line[SAY_BYTES] = "gpushare: ";
  size_t head = strlen(line);
  int body = vsnprintf(line + head, sizeof line - head - 1, format, args);
  size_t length = body < 0 ? head : head + (size_t)body;
  if (length > sizeof line - 2)
    length = sizeof line - 2;
  line[length] = '\n';
  ssize_t written = write(STDERR_FILENO, line, length + 1);
  (void)written;
  errno = saved;
}

static struct {
  dev_t device;
  ino_t inode;
} stderr_was; /* gs_stderr_find; zeros: it was closed, or is not known */

void gs_stderr_find(void) {
  int saved = errno;
  struct stat is;
  if (gs_fstat(STDERR_FILENO, &is) == 0) {
    stderr_was.device = is.st_dev;
    stderr_was.inode = is.st_ino;
  }
  errno = saved;
}

/* A program that closes its stderr may open a file or a connection, which then has that number: what can be read too is
 * stderr only if it is a terminal or the like, or was there before. Whoever reads a pipe may have stopped. */
static bool may_write(void) {
  int saved = errno, flags = fcntl(STDERR_FILENO, F_GETFL);
  struct stat is;
  bool ours = flags >= 0 && gs_fstat(STDERR_FILENO, &is) == 0 &&
              ((flags & O_ACCMODE) == O_WRONLY || S_ISCHR(is.st_mode) ||
               (is.st_dev == stderr_was.device && is.st_ino == stderr_was.inode));
  struct pollfd ready = {STDERR_FILENO, POLLOUT, 0};
  bool may = ours && poll(&ready, 1, 0) == 1 && ready.revents == POLLOUT;
  errno = saved;
  return may;
}

void gs_say(const char *format, ...) {
  static uint32_t lines;
  va_list args;
  if (!may_write() || __atomic_fetch_add(&lines, 1, __ATOMIC_RELAXED) >= SAY_LINES)
    return;
  va_start(args, format);
  write_line(format, args);
  va_end(args);
}

void gs_debug(const char *format, ...) {
  va_list args;
  va_start(args, format);
  write_line(format, args);
  va_end(args);
}
