/* Marks: the timing events of the meter. Records them, reaps them, and reports to the arbiter. */
#include <errno.h>
#include <pthread.h>

#include "interposer/process/join.h"
#include "interposer/time/capture.h"
#include "interposer/time/events.h"
#include "interposer/time/lease.h"
#include "interposer/time/marks.h"
#include "interposer/time/repeat.h"
#include "interposer/time/thread.h"

enum {
  NS_PER_MS = 1000000,
  RESIDENTS_NS = 2000000,
  UNPROVEN_NS = 20000000, /* longer than it takes to prove, where that is possible */
  LOOKED_NS = 20000,      /* marks that follow one another this fast are taken in together */
  /* work that is done this much before the arbiter expects it is worth a bell: waking others takes as long */
  SOONER_NS = 50000
};
/* cuEventElapsedTime returns a float: beyond 4 s its resolution is worse than 0.25 us */
static const float rebase_ms = 4000;

/* The interposer's driver calls while the books are inconsistent: the thread must not be cancelled in them. */
static int shield(void) {
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  return before;
}

static void unshield(int before) { pthread_setcancelstate(before, &before); }

/* ---- recording ---- */

void gs_mark_record(struct gs_stream *stream, bool start) {
  struct gs_time_device *device = stream->device;
  struct gs_mark *mark;
  CUevent event;
  CUresult result;
  if (gs_called_back)
    return; /* in a callback, an error of the driver says nothing about the stream */
  int saved = errno, cancel = shield(), previous = gs_capture_mode_push();
  if (gs_now() - __atomic_load_n(&device->looked_at, __ATOMIC_RELAXED) > LOOKED_NS)
    gs_reap(device);
  event = stream->unmarked ? NULL : gs_event_take(stream->context);
  if (!event)
    goto out;
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  mark = gs_meter_mark(device->meter, &stream->queue, start, gs_now());
  if (mark) {
    mark->event = event;
    __atomic_store_n(&stream->covered, gs_stream_launches(stream), __ATOMIC_RELAXED);
  }
  gs_biased_drop(&device->lock);
  if (!mark) {
    gs_event_give(stream->context, event);
    goto out;
  }
  result = gs_real.cuEventRecord(event, stream->handle);
  gs_biased_take(&device->lock);
  mark->recorded_by = gs_now();
  if (result != CUDA_SUCCESS) {
    mark->event = NULL;
    stream->unmarked = true;
  }
  __atomic_store_n(&mark->state, result == CUDA_SUCCESS ? GS_MARK_RECORDED : GS_MARK_LOST, __ATOMIC_RELEASE);
  gs_publish(device, gs_now());
  gs_biased_drop(&device->lock);
  if (result != CUDA_SUCCESS)
    gs_event_give(stream->context, event);
out:
  gs_capture_mode_pop(previous);
  unshield(cancel);
  errno = saved;
}

bool gs_bracket_record(struct gs_stream *stream, int which, uint64_t *recorded) {
  if (gs_called_back)
    return false;
  int saved = errno, cancel = shield(), previous = gs_capture_mode_push();
  bool done = false;
  if (!stream->bracket[which] && !stream->unmarked)
    stream->bracket[which] = gs_event_take(stream->context);
  if (stream->bracket[which])
    done = gs_real.cuEventRecord(stream->bracket[which], stream->handle) == CUDA_SUCCESS;
  *recorded = gs_now();
  gs_capture_mode_pop(previous);
  unshield(cancel);
  errno = saved;
  return done;
}

/* ---- taking in ---- */

/* Device time of a completed event. The first event of a context becomes the base, and so does one that is far from the
 * base. Returns true if the context keeps the event. Called with `reaping` held. */
static bool device_time(struct gs_context *context, CUevent event, uint64_t *time, bool *known) {
  float ms;
  *known = true;
  if (!context->base) {
    context->base = event;
    context->base_time = UINT64_C(1) << 62; /* far from 0: other streams' marks may be older */
    *time = context->base_time;
    return true;
  }
  if (gs_real.cuEventElapsedTime(&ms, context->base, event) != CUDA_SUCCESS) {
    *known = false;
    return false;
  }
  *time = context->base_time + (uint64_t)(int64_t)((double)ms * NS_PER_MS);
  if (ms < rebase_ms)
    return false;
  gs_event_give(context, context->base);
  context->base = event;
  context->base_time = *time;
  return true;
}

/* Reaps the oldest mark of a stream if it is done or lost. False if there is nothing (more) to reap. Called with
 * `reaping` held. */
static bool take_oldest(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  struct gs_context *context = stream->context;
  struct gs_mark *mark;
  CUresult result;
  uint64_t time, now;
  bool known, kept;
  CUevent event;
  gs_biased_take(&device->lock);
  mark = gs_meter_oldest(&stream->queue);
  gs_biased_drop(&device->lock);
  if (!mark || __atomic_load_n(&mark->state, __ATOMIC_ACQUIRE) == GS_MARK_RECORDING)
    return false;
  event = mark->event;
  result = event ? gs_real.cuEventQuery(event) : CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_ERROR_NOT_READY)
    return false;
  now = gs_now();
  known = kept = false;
  if (result == CUDA_SUCCESS)
    kept = device_time(context, event, &time, &known);
  if (known) {
    gs_clock_not_before(&context->clock, time, mark->recorded);
    gs_clock_not_after(&context->clock, time, now);
  }
  gs_biased_take(&device->lock);
  if (known)
    gs_meter_reap(device->meter, &stream->queue, gs_clock_host(&context->clock, time),
                  __atomic_load_n(&device->limits->lease, __ATOMIC_RELAXED), device->residents);
  else
    gs_meter_lose(device->meter, &stream->queue, now);
  __atomic_store_n(&device->reaped, device->reaped + 1, __ATOMIC_RELEASE);
  gs_biased_drop(&device->lock);
  if (event && !kept)
    gs_event_give(context, event);
  return true;
}

/* Reads the bracketed launch of a stream if both of its events are done. Called with `reaping` held. */
static void take_sample(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  CUresult result;
  float ms;
  if (!__atomic_load_n(&stream->queue.sampled, __ATOMIC_ACQUIRE))
    return;
  result = gs_real.cuEventQuery(stream->bracket[1]);
  if (result == CUDA_ERROR_NOT_READY)
    return;
  if (result == CUDA_SUCCESS)
    result = gs_real.cuEventElapsedTime(&ms, stream->bracket[0], stream->bracket[1]);
  gs_biased_take(&device->lock);
  if (result == CUDA_SUCCESS)
    gs_meter_sampled(device->meter, &stream->queue, (double)ms * NS_PER_MS);
  else
    __atomic_store_n(&stream->queue.sampled, NULL, __ATOMIC_RELAXED);
  gs_biased_drop(&device->lock);
}

/* All marks of the stream are reaped or lost. Called with the device's `reaping` held. */
static void free_stream(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  for (int i = 0; i < 2; i++)
    if (stream->bracket[i])
      gs_event_give(stream->context, stream->bracket[i]);
  stream->bracket[0] = stream->bracket[1] = NULL;
  /* under the lock, so that a thread that iterates over the streams with it never finds one that is being set up */
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  gs_meter_synced(device->meter, &stream->queue, gs_now(), (struct gs_waited){0});
  __atomic_store_n(&stream->live, false, __ATOMIC_RELEASE);
  gs_biased_drop(&device->lock);
}

/* Under `reaping`. */
static void count_residents(struct gs_time_device *device, uint64_t now) {
  if (now - device->residents_at < RESIDENTS_NS)
    return;
  device->residents_at = now;
  __atomic_store_n(&device->residents, gs_slots_active(device, now, RESIDENTS_NS), __ATOMIC_RELAXED);
}

/* Completes what gs_stream_done could not do because another thread was reading the marks. */
static void close_done(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  if (__atomic_load_n(&stream->done_launches, __ATOMIC_RELAXED) == 0)
    return;
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  if (gs_stream_known_done(stream) && stream->queue.head == stream->queue.tail)
    gs_meter_synced(device->meter, &stream->queue,
                    stream->done_at > stream->queue.previous_done ? stream->done_at : stream->queue.previous_done,
                    (struct gs_waited){0});
  if (stream->queue.head == stream->queue.tail)
    __atomic_store_n(&stream->done_launches, 0, __ATOMIC_RELAXED);
  gs_biased_drop(&device->lock);
}

static void tell_sooner(const struct gs_time_device *device) {
  if (__atomic_load_n(&device->limits->contended, __ATOMIC_RELAXED))
    gs_ring();
}

void gs_reap(struct gs_time_device *device) {
  struct gs_time *time = gs_time();
  uint32_t streams;
  int saved = errno, cancel, previous;
  bool sooner;
  if (!gs_latch_try(&device->reaping))
    return;
  cancel = shield();
  count_residents(device, gs_now());
  gs_look_at_turn(device); /* decides how finished work is charged */
  previous = gs_capture_mode_push();
  streams = __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < streams; i++) {
    struct gs_stream *stream = time->stream[i];
    if (!stream || !gs_stream_live(stream) || stream->device != device)
      continue;
    if (gs_repeat_pending(stream) > 0) {
      gs_biased_take(&device->lock);
      gs_repeat_absorb(stream);
      gs_biased_drop(&device->lock);
    }
    if (__atomic_load_n(&stream->context->ending, __ATOMIC_RELAXED) > 0)
      continue;
    while (take_oldest(stream)) {
    }
    take_sample(stream);
    close_done(stream);
    if (gs_stream_retired(stream) && stream->queue.head == stream->queue.tail)
      free_stream(stream);
  }
  gs_biased_take(&device->lock);
  /* a tight bound is kept only as accurately as the marks allow */
  device->meter->mark_most_ns = gs_bound(device) / GS_METER_MARKS;
  sooner = gs_publish(device, gs_now());
  gs_biased_drop(&device->lock);
  __atomic_store_n(&device->looked_at, gs_now(), __ATOMIC_RELAXED);
  gs_capture_mode_pop(previous);
  gs_latch_drop(&device->reaping);
  if (sooner)
    tell_sooner(device);
  unshield(cancel);
  errno = saved;
}

void gs_stream_done(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  uint64_t now;
  bool sooner;
  gs_biased_take(&device->lock);
  now = gs_ticks_at(&device->ticks, gs_ticks_read());
  if (device->meter->marks > 0 || stream->queue.sampled) { /* false for most programs that wait for each launch */
    gs_biased_drop(&device->lock);
    gs_reap(device);
    gs_biased_take(&device->lock);
  }
  gs_repeat_absorb(stream);
  __atomic_store_n(&stream->covered, gs_stream_launches(stream), __ATOMIC_RELAXED);
  if (stream->queue.head == stream->queue.tail) {
    gs_meter_synced(device->meter, &stream->queue, now,
                    (struct gs_waited){gs_wait.began, gs_wait.until, gs_residents(device)});
    /* another thread is still reading its marks, or the last one is not known to be done: that thread completes this */
  } else {
    stream->done_at = now;
    __atomic_store_n(&stream->done_launches, gs_stream_launches(stream) + 1, __ATOMIC_RELAXED);
  }
  sooner = gs_publish(device, now);
  gs_biased_drop(&device->lock);
  if (sooner)
    tell_sooner(device);
}

static void forget_stream(struct gs_stream *stream, uint64_t now) {
  struct gs_time_device *device = stream->device;
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  gs_meter_lose_all(device->meter, &stream->queue, now);
  gs_biased_drop(&device->lock);
  stream->bracket[0] = stream->bracket[1] = NULL;
  free_stream(stream);
}

void gs_context_forget(struct gs_context *context) {
  struct gs_time *time = gs_time();
  struct gs_time_device *device = &time->device[context->ordinal];
  uint64_t now = gs_now();
  for (uint32_t i = 0; i < time->streams; i++) {
    struct gs_stream *stream = time->stream[i];
    if (!stream || !gs_stream_live(stream) || stream->context != context)
      continue;
    forget_stream(stream, now);
    gs_biased_take(&device->lock);
    gs_publish(device, now);
    gs_biased_drop(&device->lock);
  }
  context->free_events = 0;
  context->base = NULL;
  __atomic_sub_fetch(&time->ending, context->ending, __ATOMIC_RELAXED);
  context->ending = 0;
  __atomic_store_n(&context->handle, NULL, __ATOMIC_RELAXED);
}

/* ---- telling ---- */

/* Whether work may go on that was expected to be done: the gate's thread will know soon (witness.h). */
static bool unproven(const struct gs_stream *stream, uint64_t now) {
  return stream->queue.open.launches > 0 && !gs_stream_covered(stream) && now < stream->queue.end + UNPROVEN_NS;
}

static uint64_t expected_end(struct gs_time_device *device, uint64_t now) {
  struct gs_time *time = gs_time();
  uint32_t streams = __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE);
  uint64_t end = 0, serial;
  double sum = 0;
  for (uint32_t i = 0; i < streams; i++) {
    const struct gs_stream *stream = time->stream[i];
    uint64_t expected;
    if (!stream || !gs_stream_live(stream) || stream->device != device || gs_stream_known_done(stream))
      continue;
    expected = gs_queue_expected_end(device->meter, &stream->queue, now);
    if (expected == 0 && unproven(stream, now))
      expected = now + GS_DRAINED_NS;
    if (expected > end)
      end = expected;
    sum += gs_queue_inflight(&stream->queue, 0, now);
  }
  /* Streams share the device: what is in flight in all of them may have to run one after another. */
  serial = now + (uint64_t)sum;
  return end && serial > end ? serial : end;
}

bool gs_publish(struct gs_time_device *device, uint64_t now) {
  uint64_t end = expected_end(device, now), launches = device->slot->launches, before = device->slot->queue_end_ns;
  bool idle = end == 0;
  if (idle) {
    gs_set_dependent(device, false);
    end = device->slot->queue_end_ns;
    if (device->idle_at != launches || end > now)
      end = now;
  }
  device->idle_at = idle ? launches : UINT64_MAX;
  __atomic_store_n(&device->slot->busy_ns, (uint64_t)device->meter->busy, __ATOMIC_RELAXED);
  __atomic_store_n(&device->slot->inflight, device->meter->marks, __ATOMIC_RELAXED);
  __atomic_store_n(&device->slot->queue_end_ns, end, __ATOMIC_RELAXED);
  return idle && before > now + SOONER_NS;
}

uint64_t gs_rest(struct gs_time_device *device, uint64_t now) {
  uint64_t end = expected_end(device, now);
  return end > now ? end - now : 0;
}
