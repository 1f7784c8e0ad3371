#include "interposer/time/streams/active.h"

#include <limits.h>

void gs_active_add_slow(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  struct gs_stream *first = device->active;
  stream->prior = NULL;
  __atomic_store_n(&stream->next, first, __ATOMIC_RELEASE);
  if (first)
    first->prior = stream;
  stream->listed = true;
  __atomic_store_n(&device->active, stream, __ATOMIC_RELEASE);
}

void gs_active_drop(struct gs_stream *stream) {
  if (!stream->listed)
    return;
  if (stream->next)
    stream->next->prior = stream->prior;
  __atomic_store_n(stream->prior ? &stream->prior->next : &stream->device->active, stream->next, __ATOMIC_RELEASE);
  stream->listed = false;
}

void gs_not_idle_slow(struct gs_time *time, struct gs_time_device *device) {
  __atomic_store_n(&device->slot->inflight, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&time->dozes, __ATOMIC_SEQ_CST) && __atomic_exchange_n(&time->dozes, 0, __ATOMIC_RELAXED))
    gs_futex_wake(&device->limits->lease, INT_MAX, true);
}
