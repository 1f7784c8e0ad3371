#include "interposer/time/marks/waits.h"

#include "interposer/time/lease.h"
#include "interposer/time/marks/marks.h"
#include "interposer/time/marks/query.h"
#include "interposer/time/streams/active.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/repeat.h"
#include "interposer/time/streams/streams.h"
#include "interposer/time/thread.h"

/* Under the device's lock. */
static void come_before(struct gs_stream *stream, uint64_t number) {
  gs_repeat_absorb(stream);
  if (gs_stream_awaits(stream))
    stream->newest = number;
}

/* Under the device's lock. */
static uint64_t take_number(struct gs_stream *stream, struct gs_time_device *device) {
  uint64_t number = device->waits + 1;
  if (stream->handle == CU_STREAM_LEGACY)
    for (struct gs_stream *other = device->active; other; other = other->next)
      come_before(other, number);
  come_before(stream, number);
  return device->waits = number;
}

void gs_before_question(struct gs_stream *stream) {
  gs_biased_take(&stream->device->lock);
  gs_wait.number = take_number(stream, stream->device);
  gs_biased_drop(&stream->device->lock);
}

void gs_wait_ended(void) { gs_wait = (struct gs_wait){0}; }

void gs_before_wait(struct gs_stream *stream) {
  bool check;
  gs_wait = (struct gs_wait){0};
  if (!stream || !__atomic_load_n(&stream->context, __ATOMIC_RELAXED))
    return;
  struct gs_time_device *device = gs_stream_home(stream);
  gs_biased_take(&device->lock);
  gs_wait.number = take_number(stream, device);
  if (gs_time()->profiled) {
    gs_biased_drop(&device->lock);
    return;
  }
  gs_wait.began = gs_ticks_at(&device->ticks, gs_ticks_read());
  gs_wait.until = UINT64_MAX;
  /* a mark now would also cover what the driver does not have yet */
  check = !gs_stream_awaits(stream) && gs_meter_check_before_sync(stream->device->meter, &stream->queue);
  gs_biased_drop(&device->lock);
  if (check && !gs_stream_capturing(stream->handle))
    gs_mark_record(stream, false);
}

void gs_stream_clouded(CUstream handle) {
  struct gs_stream *stream = gs_stream_known(handle);
  if (stream)
    __atomic_store_n(&stream->queue.clouded, true, __ATOMIC_RELAXED);
}

void gs_stream_holds(CUstream handle) {
  struct gs_time *time = gs_time();
  if (!time || (__atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) > 0 && gs_stream_capturing(handle)))
    return;
  struct gs_stream *stream = gs_stream_of(handle);
  if (!stream)
    return;
  __atomic_store_n(&stream->queue.clouded, true, __ATOMIC_RELAXED);
  gs_biased_take(&stream->device->lock);
  gs_repeat_absorb(stream);
  __atomic_store_n(&stream->held_launches, gs_stream_launches(stream) + 1, __ATOMIC_RELAXED);
  stream->held_head = stream->queue.head;
  gs_biased_drop(&stream->device->lock);
}

void gs_wait_began(struct gs_stream *stream, uint64_t tick, uint64_t launches) {
  struct gs_time_device *device = stream->device;
  uint64_t now, gone = 0, number = 0;
  gs_biased_take(&device->lock);
  now = gs_now();
  if (launches == gs_stream_launches(stream))
    number = take_number(stream, device);
  if (device->ticks.within > 0)
    gone = (gs_ticks_read() - tick) * (device->ticks.scale >> 10) >> 22;
  gs_biased_drop(&device->lock);
  gs_wait =
      gone > 0 && gone < now ? (struct gs_wait){now - gone, UINT64_MAX, number} : (struct gs_wait){.number = number};
}

void gs_stream_seen_busy(struct gs_stream *stream) {
  uint64_t now = gs_now(), launches = gs_stream_launches(stream) + 1;
  if (__atomic_load_n(&stream->polled_launches, __ATOMIC_RELAXED) != launches) {
    __atomic_store_n(&stream->polled_from, now, __ATOMIC_RELAXED);
    __atomic_store_n(&stream->polled_launches, launches, __ATOMIC_RELAXED);
    if (gs_meter_uncovered(stream->device->meter))
      gs_before_wait(stream);
  }
  __atomic_store_n(&stream->polled_until, now, __ATOMIC_RELAXED);
}

void gs_stream_seen_idle(const struct gs_stream *stream) {
  gs_wait.began = gs_wait.until = 0;
  if (__atomic_load_n(&stream->polled_launches, __ATOMIC_RELAXED) == gs_stream_launches(stream) + 1) {
    gs_wait.began = __atomic_load_n(&stream->polled_from, __ATOMIC_RELAXED);
    gs_wait.until = __atomic_load_n(&stream->polled_until, __ATOMIC_RELAXED);
  }
}

void gs_stream_was_busy(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  if (gs_wait.began == 0)
    return;
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  gs_meter_seen_busy(device->meter, &stream->queue,
                     (struct gs_waited){gs_wait.began, gs_now(), gs_residents(device), true});
  gs_biased_drop(&device->lock);
}

static bool blocking_beside(const struct gs_stream *stream, const void *legacy) {
  return stream == legacy ||
         (__atomic_load_n(&stream->blocking, __ATOMIC_RELAXED) &&
          __atomic_load_n(&stream->context, __ATOMIC_RELAXED) == ((const struct gs_stream *)legacy)->context);
}

static bool of_context(const struct gs_stream *stream, const void *context) {
  const struct gs_context *owner = __atomic_load_n(&stream->context, __ATOMIC_RELAXED);
  return owner && __atomic_load_n(&owner->handle, __ATOMIC_RELAXED) == context;
}

/* Work in the legacy stream runs after all earlier work in the blocking streams of its context. */
void gs_stream_done_with_others(struct gs_stream *stream) {
  if (stream->handle == CU_STREAM_LEGACY)
    gs_streams_done(stream->device, blocking_beside, stream);
  else if (stream->context)
    gs_stream_done(stream);
}

void gs_before_wait_context(CUcontext context) {
  struct gs_time *time = gs_time();
  struct gs_time_device *of = NULL;
  gs_wait = (struct gs_wait){0};
  for (uint32_t i = 0; time && i < gs_process->ndevices; i++) {
    struct gs_time_device *device = &time->device[i];
    for (struct gs_stream *stream = gs_active_first(device), *next; stream; stream = next) {
      next = gs_active_next(stream);
      if (!gs_stream_live(stream) || gs_stream_home(stream) != device || !of_context(stream, context))
        continue;
      of = device;
      if (!gs_stream_retired(stream))
        gs_before_wait(stream);
    }
  }
  if (!of)
    return;
  gs_biased_take(&of->lock);
  gs_wait.number = of->waits + 1;
  for (struct gs_stream *stream = of->active; stream; stream = stream->next)
    come_before(stream, gs_wait.number);
  of->waits = gs_wait.number;
  gs_biased_drop(&of->lock);
}

void gs_context_done(CUcontext context, int ordinal) {
  struct gs_time *time = gs_time();
  if (time)
    gs_streams_done(&time->device[ordinal], of_context, context);
}

/* ---- events of the program ---- */

static struct gs_recorded *place_of(struct gs_time *time, CUevent event) {
  return &time->recorded[((uintptr_t)event >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 56 & (GS_TIME_RECORDED - 1)];
}

void gs_event_recorded(CUevent event, struct gs_stream *stream, uint64_t launches) {
  struct gs_time *time = gs_time();
  struct gs_recorded *place;
  if (!time)
    return;
  place = place_of(time, event);
  gs_latch_take(&time->recorded_lock);
  if (stream)
    *place = (struct gs_recorded){event, stream, __atomic_load_n(&time->generation, __ATOMIC_ACQUIRE), launches};
  else if (place->event == event)
    place->event = NULL;
  gs_latch_drop(&time->recorded_lock);
}

struct gs_stream *gs_stream_behind(CUevent event, bool *emptied) {
  struct gs_time *time = gs_time();
  struct gs_stream *stream = NULL;
  struct gs_recorded *place;
  *emptied = false;
  if (!time)
    return NULL;
  place = place_of(time, event);
  gs_latch_take(&time->recorded_lock);
  if (place->event == event && place->generation == __atomic_load_n(&time->generation, __ATOMIC_ACQUIRE)) {
    stream = place->stream;
    *emptied = place->launches == gs_stream_launches(stream);
  }
  gs_latch_drop(&time->recorded_lock);
  return stream;
}

static bool recorded_elsewhere; /* in this process; never reset */

void gs_events_recorded_elsewhere(void) { __atomic_store_n(&recorded_elsewhere, true, __ATOMIC_RELAXED); }

/* Querying the driver costs 0.5 us, so this is done only in a program that has passed an event to something else. */
bool gs_event_shows_idle(struct gs_stream *stream) {
  return !__atomic_load_n(&recorded_elsewhere, __ATOMIC_RELAXED) || gs_stream_queried_idle(stream);
}

static bool clouded(const struct gs_stream *stream) {
  const struct gs_queue *queue = &stream->queue;
  bool found = __atomic_load_n(&queue->clouded, __ATOMIC_RELAXED);
  gs_biased_take(&stream->device->lock);
  for (uint32_t i = queue->tail; i != queue->head; i++)
    found |= queue->ring[i % GS_METER_RING].segment.clouded;
  gs_biased_drop(&stream->device->lock);
  return found;
}

void gs_stream_follows(CUstream handle, CUevent event) {
  struct gs_stream *stream = gs_stream_known(handle), *first;
  bool emptied;
  if (!stream)
    return;
  first = gs_stream_behind(event, &emptied);
  if (!first || first->device != stream->device || clouded(first))
    gs_stream_clouded(handle);
}
