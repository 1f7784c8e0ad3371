/* State of the calling thread. */
#ifndef GPUSHARE_TIME_THREAD_H
#define GPUSHARE_TIME_THREAD_H

#include "interposer/os/compiler.h"
#include "interposer/time/timing.h"

/* The thread runs a function that the driver calls in stream order: its submissions are metered, do not wait for work
 * in flight, and wait for a lease only once more than the bound has passed without one. The driver may refuse calls
 * that the interposer makes here. */
extern __thread bool gs_called_back GS_TLS_MODEL __attribute__((visibility("hidden")));

/* One bit for each device, by ordinal, to which the thread is about to submit a collective that is already counted: it
 * is submitted even if the lease has been revoked meanwhile. */
extern __thread uint32_t gs_claimed GS_TLS_MODEL __attribute__((visibility("hidden")));

/* The thread's current wait: when it began and until when the stream was seen to have work (0: not known), and its
 * number among the device's waits (0: its end shows nothing). */
struct gs_wait {
  uint64_t began, until, number;
};
extern __thread struct gs_wait gs_wait GS_TLS_MODEL __attribute__((visibility("hidden")));

static inline bool gs_claimed_on(const struct gs_time_device *device) { return gs_claimed >> device->ordinal & 1; }

#endif
