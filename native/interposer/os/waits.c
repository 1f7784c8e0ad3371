#include "interposer/os/waits.h"

#include <errno.h>
#include <time.h>

#include "interposer/os/guest.h"
#include "interposer/os/system.h"
#include "page/gs_clock.h"

enum { SYS_FUTEX_WAITV = 449, PRIVATE = 128 };

bool gs_futex_wait_any(struct gs_futex_waiter *waiters, uint32_t count, uint64_t timeout_ns) {
  static uint32_t refused; /* a fork inherits the kernel and the filter */
  if (__atomic_load_n(&refused, __ATOMIC_RELAXED))
    return false;
  int saved = errno;
  uint64_t end = gs_clock_own() + timeout_ns;
  struct timespec until = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
  long woken = syscall(SYS_FUTEX_WAITV, waiters, count, 0, &until, CLOCK_MONOTONIC);
  if (woken >= 0 && !(waiters[woken].flags & PRIVATE))
    gs_futex_pass_on((const uint32_t *)(uintptr_t)waiters[woken].address, (uint32_t)waiters[woken].value);
  bool refuses = woken < 0 && errno != EAGAIN && errno != ETIMEDOUT && errno != EINTR;
  if (refuses)
    __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
  errno = saved;
  return !refuses;
}
