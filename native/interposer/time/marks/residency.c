#include "interposer/time/marks/residency.h"

#include <limits.h>

void gs_blind(struct gs_stream *stream, uint64_t since) {
  struct gs_time_device *device = stream->device;
  stream->blind_head = stream->queue.head;
  if (stream->blind)
    return;
  __atomic_store_n(&stream->blind, since, __ATOMIC_RELAXED);             /* marks.c reads it without the lock */
  __atomic_store_n(&device->blind, device->blind + 1, __ATOMIC_RELAXED); /* the gate thread reads it without the lock */
  __atomic_store_n(&device->blind_since, gs_now(), __ATOMIC_RELAXED);
  /* wakes the gate thread, which follows blind streams and may be in a long sleep */
  if (!gs_time()->profiled)
    gs_futex_wake(&device->limits->lease, INT_MAX, true);
}

void gs_blind_charge(struct gs_stream *stream, uint64_t now) {
  struct gs_time_device *device = stream->device;
  if (!stream->blind || now <= stream->blind)
    return;
  gs_meter_had_work(device->meter, &stream->queue, stream->blind, now);
  __atomic_store_n(&stream->blind, now, __ATOMIC_RELAXED);
}

void gs_blind_end(struct gs_stream *stream, uint64_t at) {
  if (!stream->blind)
    return;
  gs_blind_charge(stream, at);
  __atomic_store_n(&stream->blind, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->device->blind, stream->device->blind - 1, __ATOMIC_RELAXED);
}

void gs_proven_idle(struct gs_stream *stream, uint64_t at, struct gs_waited waited) {
  gs_meter_synced(stream->device->meter, &stream->queue, at, waited);
  gs_blind_end(stream, at);
  if (gs_stream_launches(stream) >= stream->held_launches)
    __atomic_store_n(&stream->held_launches, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->due, UINT64_MAX, __ATOMIC_RELAXED);
}
