/* What the calling thread is doing. */
#ifndef GPUSHARE_TIME_THREAD_H
#define GPUSHARE_TIME_THREAD_H

#include "interposer/os/compiler.h"
#include "interposer/time/timing.h"

/* It is in a function that the driver calls in stream order: what is submitted here is metered, and waits for nothing.
 * The driver may refuse calls of ours. */
extern __thread bool gs_called_back GS_TLS_MODEL __attribute__((visibility("hidden")));

/* Of the devices, by ordinal, those to which it is about to submit a collective that is counted: it goes, whatever the
 * lease is now. */
extern __thread uint32_t gs_claimed GS_TLS_MODEL __attribute__((visibility("hidden")));

static inline bool gs_claimed_on(const struct gs_time_device *device) { return gs_claimed >> device->ordinal & 1; }

#endif
