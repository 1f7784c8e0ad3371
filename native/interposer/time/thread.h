/* State of the calling thread. */
#ifndef GPUSHARE_TIME_THREAD_H
#define GPUSHARE_TIME_THREAD_H

#include "interposer/os/compiler.h"
#include "interposer/time/timing.h"

/* The thread runs a function that the driver calls in stream order: its submissions are metered, do not wait for work in
 * flight, and wait for a lease only where they go on for longer than the bound. The driver may refuse calls that the
 * interposer makes here. */
extern __thread bool gs_called_back GS_TLS_MODEL __attribute__((visibility("hidden")));

/* Bits of the devices, by ordinal, to which the thread is about to submit a collective that is already counted: it is
 * submitted even if the lease has been revoked meanwhile. */
extern __thread uint32_t gs_claimed GS_TLS_MODEL __attribute__((visibility("hidden")));

/* The wait that the thread makes: from when until when the stream is seen to have work; 0: not known. Its number among
 * those of the device; 0: when it ends, it shows nothing. */
struct gs_wait {
  uint64_t began, until, number;
};
extern __thread struct gs_wait gs_wait GS_TLS_MODEL __attribute__((visibility("hidden")));

static inline bool gs_claimed_on(const struct gs_time_device *device) { return gs_claimed >> device->ordinal & 1; }

#endif
