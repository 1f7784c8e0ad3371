#include "interposer/time/marks/residency.h"

#include <limits.h>

void gs_unobserved_begin(struct gs_stream *stream, uint64_t since) {
  struct gs_time_device *device = stream->device;
  stream->unobserved_head = stream->queue.head;
  if (stream->unobserved)
    return;
  __atomic_store_n(&stream->unobserved, since, __ATOMIC_RELAXED); /* marks.c reads it without the lock */
  __atomic_store_n(&device->unobserved_streams, device->unobserved_streams + 1,
                   __ATOMIC_RELAXED); /* the gate thread reads it without the lock */
  __atomic_store_n(&device->unobserved_since, gs_now(), __ATOMIC_RELAXED);
  /* wakes the gate thread, which follows unobserved streams and may be in a long sleep */
  if (!gs_time()->profiled)
    gs_futex_wake(&device->limits->lease, INT_MAX, true);
}

void gs_unobserved_charge(struct gs_stream *stream, uint64_t now) {
  struct gs_time_device *device = stream->device;
  if (!stream->unobserved || now <= stream->unobserved)
    return;
  gs_meter_had_work(device->meter, &stream->queue, stream->unobserved, now);
  __atomic_store_n(&stream->unobserved, now, __ATOMIC_RELAXED);
}

void gs_unobserved_end(struct gs_stream *stream, uint64_t at) {
  if (!stream->unobserved)
    return;
  gs_unobserved_charge(stream, at);
  __atomic_store_n(&stream->unobserved, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->device->unobserved_streams, stream->device->unobserved_streams - 1, __ATOMIC_RELAXED);
}

void gs_book_short_wait(struct gs_stream *stream, uint64_t now) {
  uint64_t at = gs_repeat_waited_at(stream, now);
  if (at > 0)
    gs_found_idle(stream, at, (struct gs_waited){0});
}

void gs_found_idle(struct gs_stream *stream, uint64_t at, struct gs_waited waited) {
  gs_meter_synced(stream->device->meter, &stream->queue, at, waited);
  gs_unobserved_end(stream, at);
  if (gs_stream_launches(stream) >= stream->held_launches)
    __atomic_store_n(&stream->held_launches, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->due, UINT64_MAX, __ATOMIC_RELAXED);
}
