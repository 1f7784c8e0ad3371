/* Proof that work is done for programs that do not ask: the gate's thread marks streams in which nothing has happened
 * for a while. */
#ifndef GPUSHARE_TIME_WITNESS_H
#define GPUSHARE_TIME_WITNESS_H

#include "interposer/time/timing.h"

/* Records a mark in every stream of the device that has had no launch for about a millisecond, as earlier calls have
 * seen, and whose last ones are neither marked nor waited for. Called by the gate's thread only. True if it is to be
 * called again soon. */
bool gs_witness(struct gs_time *time, struct gs_time_device *device);

/* A launch was booked: the gate's thread begins to watch the device, unless it does already. */
void gs_watch_slow(struct gs_time_device *device);
static inline void gs_watch(struct gs_time_device *device) {
  if (__builtin_expect(!__atomic_load_n(&device->watched, __ATOMIC_RELAXED), 0))
    gs_watch_slow(device);
}
/* The gate's thread is about to stop watching; false: work was launched meanwhile. */
bool gs_unwatch(struct gs_time *time, struct gs_time_device *device);

#endif
