/* The clock of the fast path: CLOCK_MONOTONIC, read through the processor's own counter, which costs half as much.
 * Counter and clock are compared every few milliseconds; a counter that does not run evenly is no longer used. */
#ifndef GPUSHARE_TICKS_H
#define GPUSHARE_TICKS_H

#include <stdint.h>

#include "interposer/os/guest.h"

enum { GS_TICKS_BELIEVED_NS = 4000000 }; /* 10 ppm of error in the scale is then 40 ns */

struct gs_ticks {
  uint64_t tick, ns;           /* of the last comparison */
  uint64_t within;             /* ticks after it for which the counter is trusted, GS_TICKS_BELIEVED_NS; 0: never */
  uint64_t scale;              /* nanoseconds per tick << 32 */
  uint64_t from_tick, from_ns; /* start of the measurement of the scale */
  uint64_t last;               /* last time returned, since time must not go back */
  bool broken;
};

/* Compares counter and clock, updates the scale, and returns the time in ns. */
uint64_t gs_ticks_compare(struct gs_ticks *ticks);

static inline uint64_t gs_ticks_read(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return 0;
#endif
}

/* Converts a counter value read just now to CLOCK_MONOTONIC in ns. The caller serialises calls for one `ticks`. */
static inline uint64_t gs_ticks_at(struct gs_ticks *ticks, uint64_t tick) {
  uint64_t gone = tick - ticks->tick, now;
  if (__builtin_expect(gone >= ticks->within, 0))
    return gs_ticks_compare(ticks);
  now = ticks->ns + (gone * ticks->scale >> 32);
  if (now > ticks->last)
    ticks->last = now;
  return ticks->last;
}

#endif
