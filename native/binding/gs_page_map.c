/* Shared mappings of files that an untrusted process can write and therefore truncate. Access beyond the new end raises
 * SIGBUS, which would kill the daemon and with it the arbiter of all grants. The signal handler replaces the whole
 * mapping by zeroed private memory and marks it torn; the caller then sees an invalid page (magic 0) and drops the
 * grant. */
#include "binding/gs_page_ops.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { MAPS_MAX = 4096 }; /* two pages of each grant, and room for as many that are being made */

/* Read by the signal handler. `start` is written last when an entry is published and cleared first when it is
 * withdrawn. */
static struct {
  uintptr_t start;
  uint64_t size;
  uint32_t torn;
} maps[MAPS_MAX];
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous;
static int installed;

static void on_sigbus(int signal, siginfo_t *info, void *context) {
  uintptr_t at = (uintptr_t)info->si_addr;
  for (int i = 0; i < MAPS_MAX; i++) {
    uintptr_t start = __atomic_load_n(&maps[i].start, __ATOMIC_ACQUIRE);
    if (start == 0 || at < start || at - start >= maps[i].size)
      continue;
    int saved = errno;
    void *zeros =
        mmap((void *)start, maps[i].size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    errno = saved;
    if (zeros == MAP_FAILED)
      break;
    __atomic_store_n(&maps[i].torn, 1, __ATOMIC_RELEASE);
    return;
  }
  /* The address is not in one of our mappings: calls the previous handler, or restores the default action. Returning
   * from here repeats the access, which raises SIGBUS again. */
  if (previous.sa_flags & SA_SIGINFO)
    previous.sa_sigaction(signal, info, context);
  else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
    previous.sa_handler(signal);
  else
    sigaction(SIGBUS, &previous, NULL);
}

static int install_handler(struct gs_err *err) {
  if (installed)
    return 0;
  struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, &previous) < 0)
    return gs_fail(err, -errno, "cannot guard shared pages: sigaction: %s", strerror(errno));
  installed = 1;
  return 0;
}

int gs_page_map(int fd, uint64_t size, int writable, void **out, struct gs_err *err) {
  struct stat file;
  if (fstat(fd, &file) < 0)
    return gs_fail(err, -errno, "cannot read the page's size: %s", strerror(errno));
  if (!S_ISREG(file.st_mode) || (uint64_t)file.st_size != size)
    return gs_fail(err, -EPROTO, "the page has %lld bytes, expected %llu", (long long)file.st_size,
                   (unsigned long long)size);
  void *page = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED)
    return gs_fail(err, -errno, "cannot map the page: %s", strerror(errno));
  pthread_mutex_lock(&maps_lock);
  int rc = install_handler(err);
  int i = 0;
  while (i < MAPS_MAX && maps[i].start != 0)
    i++;
  if (rc == 0 && i == MAPS_MAX)
    rc = gs_fail(err, -ENOSPC, "more than %d pages mapped: release some grants", MAPS_MAX);
  if (rc == 0) {
    maps[i].size = size;
    maps[i].torn = 0;
    __atomic_store_n(&maps[i].start, (uintptr_t)page, __ATOMIC_RELEASE);
    *out = page;
  }
  pthread_mutex_unlock(&maps_lock);
  if (rc < 0)
    munmap(page, size);
  return rc;
}

static int find(const void *page) {
  for (int i = 0; i < MAPS_MAX; i++)
    if (__atomic_load_n(&maps[i].start, __ATOMIC_ACQUIRE) == (uintptr_t)page)
      return i;
  return -1;
}

void gs_page_unmap(void *page, uint64_t size) {
  pthread_mutex_lock(&maps_lock);
  int i = find(page);
  if (i >= 0)
    __atomic_store_n(&maps[i].start, 0, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&maps_lock);
  munmap(page, size);
}

int gs_page_torn(const void *page) {
  int i = find(page);
  return i >= 0 && __atomic_load_n(&maps[i].torn, __ATOMIC_ACQUIRE) != 0;
}
