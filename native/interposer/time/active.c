#include "interposer/time/active.h"

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
