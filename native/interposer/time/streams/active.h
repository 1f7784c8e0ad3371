/* Streams with work that is not known to be done: a list per device, so that no wait looks at all streams that a
 * program ever used.
 *
 * The list changes under the device's lock and may be walked without it: a stream that is removed keeps its link, so a
 * walk that has reached it continues. It may see streams twice, or streams without work, but it misses none that was in
 * the list all the time. Without the lock, check `device`: a place may have been reused for a stream of another
 * device. */
#ifndef GPUSHARE_TIME_ACTIVE_H
#define GPUSHARE_TIME_ACTIVE_H

#include "interposer/time/timing.h"

static inline struct gs_stream *gs_active_first(const struct gs_time_device *device) {
  return __atomic_load_n(&device->active, __ATOMIC_ACQUIRE);
}
static inline struct gs_stream *gs_active_next(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->next, __ATOMIC_ACQUIRE);
}

/* Under the device's lock. */
void gs_active_add_slow(struct gs_stream *stream);
static inline void gs_active_add(struct gs_stream *stream) {
  if (!GS_LIKELY(stream->listed))
    gs_active_add_slow(stream);
}
void gs_active_drop(struct gs_stream *stream);

/* Notes that the device has work. A device that was proven idle no longer counts as idle, until the next mark, wait or
 * question. Under its lock. */
void gs_not_idle_slow(struct gs_time *time, struct gs_time_device *device);
static inline void gs_not_idle(struct gs_time *time, struct gs_time_device *device) {
  if (!GS_LIKELY(device->slot->inflight != 0))
    gs_not_idle_slow(time, device);
}

#endif
