/* When the program learns that work is done, the meter learns it too. */
#include "interposer/time/waits.h"

#include "interposer/time/capture.h"
#include "interposer/time/marks.h"
#include "interposer/time/repeat.h"

void gs_before_wait(struct gs_stream *stream) {
  bool check;
  if (!stream || gs_time()->profiled)
    return;
  gs_biased_take(&stream->device->lock);
  gs_repeat_absorb(stream);
  check = gs_meter_check_before_sync(&stream->queue, gs_ticks_at(&stream->device->ticks, gs_ticks_read()));
  gs_biased_drop(&stream->device->lock);
  if (check && !gs_stream_capturing(stream->handle))
    gs_mark_record(stream, false);
}

static void residency_ends(struct gs_time_device *device) {
  uint64_t now = gs_now();
  gs_biased_take(&device->lock);
  if (device->resident && now > device->resident_since)
    device->meter->busy += (double)(now - device->resident_since);
  device->resident = false;
  gs_publish(device, now);
  gs_biased_drop(&device->lock);
}

static void done_where(bool (*matches)(const struct gs_stream *stream, const void *what), const void *what) {
  struct gs_time *time = gs_time();
  uint32_t streams = __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < streams; i++) {
    struct gs_stream *stream = time->stream[i];
    if (stream && gs_stream_live(stream) && !gs_stream_retired(stream) && matches(stream, what))
      gs_stream_done(stream);
  }
}

static bool blocking_beside(const struct gs_stream *stream, const void *legacy) {
  return stream == legacy || (__atomic_load_n(&stream->blocking, __ATOMIC_RELAXED) &&
                              stream->context == ((const struct gs_stream *)legacy)->context);
}

static bool of_context(const struct gs_stream *stream, const void *context) {
  const struct gs_context *owner = __atomic_load_n(&stream->context, __ATOMIC_RELAXED);
  return __atomic_load_n(&owner->handle, __ATOMIC_RELAXED) == context;
}

/* Work in the legacy stream runs after all earlier work in the blocking streams of its context. */
void gs_stream_done_with_others(struct gs_stream *stream) {
  if (gs_time()->profiled)
    residency_ends(stream->device);
  else if (stream->handle == CU_STREAM_LEGACY)
    done_where(blocking_beside, stream);
  else
    gs_stream_done(stream);
}

void gs_before_wait_context(CUcontext context) {
  struct gs_time *time = gs_time();
  for (uint32_t i = 0; time && i < __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE); i++) {
    struct gs_stream *stream = time->stream[i];
    /* The per-thread default stream of another thread cannot be named here. */
    if (stream && gs_stream_live(stream) && !gs_stream_retired(stream) && of_context(stream, context) &&
        __atomic_load_n(&stream->handle, __ATOMIC_RELAXED) != CU_STREAM_PER_THREAD)
      gs_before_wait(stream);
  }
}

void gs_context_done(CUcontext context, int ordinal) {
  struct gs_time *time = gs_time();
  if (time && time->profiled && time->device[ordinal].meter)
    residency_ends(&time->device[ordinal]);
  else if (time)
    done_where(of_context, context);
}

/* ---- events of the program ---- */

static struct gs_recorded *place_of(struct gs_time *time, CUevent event) {
  return &time->recorded[((uintptr_t)event >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 56 & (GS_TIME_RECORDED - 1)];
}

void gs_event_recorded(CUevent event, struct gs_stream *stream) {
  struct gs_time *time = gs_time();
  struct gs_recorded *place;
  if (!time)
    return;
  place = place_of(time, event);
  gs_latch_take(&time->recorded_lock);
  if (stream)
    *place = (struct gs_recorded){event, stream, __atomic_load_n(&time->generation, __ATOMIC_ACQUIRE),
                                  gs_stream_launches(stream)};
  else if (place->event == event)
    place->event = NULL;
  gs_latch_drop(&time->recorded_lock);
}

struct gs_stream *gs_stream_emptied_by(CUevent event) {
  struct gs_time *time = gs_time();
  struct gs_stream *stream = NULL;
  struct gs_recorded *place;
  if (!time)
    return NULL;
  place = place_of(time, event);
  gs_latch_take(&time->recorded_lock);
  if (place->event == event && place->generation == __atomic_load_n(&time->generation, __ATOMIC_ACQUIRE) &&
      place->launches == gs_stream_launches(place->stream))
    stream = place->stream;
  gs_latch_drop(&time->recorded_lock);
  return stream;
}
