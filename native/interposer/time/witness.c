#include "interposer/time/witness.h"

#include <limits.h>

#include "interposer/os/system.h"
#include "interposer/time/marks.h"
#include "interposer/time/repeat.h"

/* A launch is booked before it is made: long enough that it has been made by then. */
enum { QUIET_NS = 900000 };

/* A mark in the legacy stream orders the blocking streams of its context, also those that the program left independent
 * of each other. */
static bool orders_others(const struct gs_time *time, const struct gs_stream *legacy) {
  uint32_t streams = __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < streams; i++) {
    const struct gs_stream *stream = time->stream[i];
    if (stream && stream != legacy && gs_stream_live(stream) && stream->context == legacy->context &&
        __atomic_load_n(&stream->blocking, __ATOMIC_RELAXED))
      return true;
  }
  return false;
}

/* The per-thread default stream of another thread cannot be named here, and a mark must not become part of a capture.
 * Called with `reaping` held: captures begin, and streams and contexts end, only after taking it. */
static bool may_mark(const struct gs_time *time, const struct gs_stream *stream) {
  return stream->handle != CU_STREAM_PER_THREAD && !stream->unmarked && !gs_stream_retired(stream) &&
         __atomic_load_n(&stream->context->ending, __ATOMIC_RELAXED) == 0 &&
         __atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) == 0 &&
         (stream->handle != CU_STREAM_LEGACY || !orders_others(time, stream));
}

/* False: nothing to do for this stream. */
static bool witness(struct gs_time *time, struct gs_stream *stream, uint64_t now) {
  uint64_t launches = gs_stream_launches(stream);
  CUcontext popped;
  if (gs_stream_covered(stream) || !may_mark(time, stream))
    return false;
  if (launches != stream->witnessed) {
    stream->witnessed = launches;
    stream->witnessed_at = now;
    return true;
  }
  if (now - stream->witnessed_at < QUIET_NS)
    return true;
  if (gs_real.cuCtxPushCurrent_v2(stream->context->handle) != CUDA_SUCCESS)
    return false;
  gs_mark_record(stream, false);
  gs_real.cuCtxPopCurrent_v2(&popped);
  return true;
}

bool gs_witness(struct gs_time *time, struct gs_time_device *device) {
  uint32_t streams = __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE);
  uint64_t now = gs_now();
  bool open = false;
  if (time->profiled)
    return false;
  gs_latch_take(&time->driving);
  if (!__atomic_load_n(&time->stop, __ATOMIC_ACQUIRE) && gs_latch_try(&device->reaping)) {
    for (uint32_t i = 0; i < streams; i++) {
      struct gs_stream *stream = time->stream[i];
      if (stream && gs_stream_live(stream) && stream->device == device)
        open = witness(time, stream, now) || open;
    }
    gs_latch_drop(&device->reaping);
  }
  gs_latch_drop(&time->driving);
  return open;
}

void gs_watch_slow(struct gs_time_device *device) {
  if (!__atomic_exchange_n(&device->watched, 1, __ATOMIC_ACQ_REL))
    gs_futex_wake(&device->limits->lease, INT_MAX, true);
}

bool gs_unwatch(struct gs_time *time, struct gs_time_device *device) {
  uint64_t launches = __atomic_load_n(&device->slot->launches, __ATOMIC_RELAXED);
  __atomic_store_n(&device->watched, 0, __ATOMIC_SEQ_CST);
  gs_repeat_end(time); /* the next launch is booked, and so begins to be watched */
  return __atomic_load_n(&device->slot->launches, __ATOMIC_SEQ_CST) == launches;
}
