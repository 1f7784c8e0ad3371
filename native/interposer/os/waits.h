/* Waits for one of several words to change. */
#ifndef GPUSHARE_OS_WAITS_H
#define GPUSHARE_OS_WAITS_H

#include <stdbool.h>
#include <stdint.h>

struct gs_futex_waiter {
  uint64_t value, address;
  uint32_t flags, reserved;
};

static inline struct gs_futex_waiter gs_waits_for(const uint32_t *word, uint32_t value, bool shared) {
  enum { BITS_32 = 2 /* FUTEX2_SIZE_U32 */, PRIVATE = 128 };
  return (struct gs_futex_waiter){value, (uint64_t)(uintptr_t)word, BITS_32 | (shared ? 0 : PRIVATE), 0};
}

/* False if the kernel does not let us: before Linux 5.16 it has no such call (ENOSYS), and a seccomp filter that does not
 * know the call may return any error, mostly EPERM. */
bool gs_futex_wait_any(struct gs_futex_waiter *waiters, uint32_t count, uint64_t timeout_ns);

#endif
