/* Marks: the timing events of the meter. Records them and reaps them. */
#include "interposer/time/marks/marks.h"

#include <string.h>

#include "interposer/time/lease.h"
#include "interposer/time/marks/bracket.h"
#include "interposer/time/marks/events.h"
#include "interposer/time/marks/inside.h"
#include "interposer/time/marks/publish.h"
#include "interposer/time/marks/residency.h"
#include "interposer/time/streams/active.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/places.h"
#include "interposer/time/streams/repeat.h"
#include "interposer/time/thread.h"

enum {
  NS_PER_MS = 1000000,
  RESIDENTS_NS = 2000000, /* a process without work for this long is no longer on the device */
  RECOUNT_NS = 1000,      /* per slot: interval of recounts, so that a hundredth of the time goes into them */
  LOOKED_NS = 20000,      /* marks that follow one another this fast are taken in together */
  RETRY_NS = 1000000      /* after the driver refused a mark */
};
/* cuEventElapsedTime returns a float: beyond 4 s its resolution is worse than 0.25 us */
static const float rebase_ms = 4000;

/* ---- recording ---- */

/* No mark could be recorded behind what was launched into the stream: it is charged by residency. */
static void refused(struct gs_stream *stream) {
  gs_biased_take(&stream->device->lock);
  gs_repeat_absorb(stream);
  if (stream->queue.open.launches > 0)
    gs_unobserved_begin(stream, stream->queue.open.first);
  gs_publish(stream->device, gs_now());
  gs_biased_drop(&stream->device->lock);
}

/* False: the driver refused the event, or the ring of marks is full. began: when this thread was first kept from its
 * own work. */
static bool mark_with(struct gs_stream *stream, CUevent event, bool start, uint64_t began) {
  struct gs_time_device *device = stream->device;
  struct gs_mark *mark;
  CUresult result;
  uint64_t first;
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  first = stream->queue.open.first;
  mark = gs_meter_mark(device->meter, &stream->queue, start, gs_now());
  if (mark) {
    mark->event = event;
    mark->segment.unsure |= gs_stream_awaits(stream);
    /* found idle since its launch arrived, it has left the list, and nobody would reap the mark */
    if (gs_stream_live(stream))
      gs_active_add(stream);
  }
  gs_biased_drop(&device->lock);
  if (!mark)
    return false;
  result = gs_real.cuEventRecord(event, stream->handle);
  gs_biased_take(&device->lock);
  mark->recorded_by = gs_now();
  gs_meter_recorded(device->meter, (double)(mark->recorded_by - began));
  if (result != CUDA_SUCCESS) {
    mark->event = NULL;
    __atomic_store_n(&stream->refused, gs_now(), __ATOMIC_RELAXED);
    gs_unobserved_begin(stream, first ? first : gs_now());
  }
  __atomic_store_n(&mark->state, result == CUDA_SUCCESS ? GS_MARK_RECORDED : GS_MARK_LOST, __ATOMIC_RELEASE);
  gs_publish(device, gs_now());
  gs_biased_drop(&device->lock);
  return result == CUDA_SUCCESS;
}

void gs_mark_record(struct gs_stream *stream, bool start) {
  struct gs_inside inside;
  CUevent event = NULL;
  if (!gs_stream_nameable(stream) || gs_time()->profiled)
    return;
  if (gs_called_back) { /* an error of the driver would say nothing about the stream here */
    refused(stream);
    return;
  }
  uint64_t began = gs_now();
  bool in = gs_inside_begin(&inside, stream->context), look, first;
  look = began - __atomic_load_n(&stream->device->looked_at, __ATOMIC_RELAXED) > LOOKED_NS;
  /* Behind work that is still going on a mark may wait. On a stream that is believed to be idle it shows the more the
   * sooner it follows the launch. */
  first = look && __atomic_load_n(&stream->due, __ATOMIC_RELAXED) > began;
  if (first) {
    gs_reap(stream->device);
    began = gs_now();
  }
  if (in && began - __atomic_load_n(&stream->refused, __ATOMIC_RELAXED) > RETRY_NS)
    event = gs_event_take(stream->context);
  if (!event)
    refused(stream);
  else if (!mark_with(stream, event, start, began))
    gs_event_give(stream->context, event);
  if (look && !first)
    gs_reap(stream->device);
  gs_inside_end(&inside);
}

/* The stream may be one that another thread uses. Under `reaping`, so that no capture begins meanwhile. */
static bool may_mark(struct gs_stream *stream) {
  struct gs_inside inside;
  bool may = gs_inside_begin(&inside, stream->context) && gs_stream_nameable(stream) && !gs_stream_retired(stream) &&
             gs_capture_may_ask(stream->handle);
  gs_inside_end(&inside);
  return may;
}

void gs_mark_all(struct gs_time_device *device) {
  if (gs_called_back || gs_time()->profiled) /* the driver is called with `reaping` held, and this is called by it */
    return;
  gs_latch_take(&device->reaping);
  for (struct gs_stream *stream = gs_active_first(device), *next; stream; stream = next) {
    next = gs_active_next(stream);
    if (gs_stream_askable(stream, device) && gs_stream_open(stream) && may_mark(stream))
      gs_mark_record(stream, false);
  }
  gs_latch_drop(&device->reaping);
}

/* ---- taking in ---- */

/* Gets the device time of a completed event; *known: whether the driver gave it. The first event of a context becomes
 * the base, and so does one that is far from the base. Returns true if the context keeps the event. Called with
 * `reaping` held. */
static bool device_time(struct gs_context *context, CUevent event, uint64_t *time, bool *known) {
  float ms;
  *known = true;
  if (!context->base) {
    __atomic_store_n(&context->base, event, __ATOMIC_RELAXED);
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
  __atomic_store_n(&context->base, event, __ATOMIC_RELAXED);
  context->base_time = *time;
  return true;
}

/* Whether an error of an event query shows nothing about the work before the event: the program captured the stream in
 * another thread. Other errors are those of a context in which nothing runs any more. */
static bool tells_nothing(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

/* Reaps the oldest mark of a stream if it is done or lost. False if there is nothing left to reap. Called with
 * `reaping` held. */
static bool take_oldest(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  struct gs_context *context = stream->context;
  struct gs_mark *mark;
  CUresult result;
  uint64_t time, asked, now;
  uint32_t number;
  bool known, kept;
  CUevent event;
  gs_biased_take(&device->lock);
  mark = gs_meter_oldest(&stream->queue);
  gs_biased_drop(&device->lock);
  if (!mark || __atomic_load_n(&mark->state, __ATOMIC_ACQUIRE) == GS_MARK_RECORDING)
    return false;
  event = mark->event;
  asked = gs_now();
  result = event ? gs_real.cuEventQuery(event) : CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_ERROR_NOT_READY) {
    mark->unready = asked;
    gs_biased_take(&device->lock);
    gs_meter_unready(device->meter, &stream->queue, asked, device->residents);
    gs_biased_drop(&device->lock);
    return false;
  }
  now = gs_now();
  known = kept = false;
  if (result == CUDA_SUCCESS)
    kept = device_time(context, event, &time, &known);
  if (known) {
    gs_clock_not_before(&context->clock, time, mark->unready);
    gs_clock_not_after(&context->clock, time, now);
  }
  gs_biased_take(&device->lock);
  number = stream->queue.tail;
  if (known) {
    uint64_t done = gs_clock_host(&context->clock, time);
    gs_meter_reap(device->meter, &stream->queue, done, __atomic_load_n(&device->limits->lease, __ATOMIC_RELAXED),
                  device->residents);
    gs_unobserved_end_by_mark(stream, number, done < now ? done : now);
  } else {
    if (event && tells_nothing(result))
      gs_unobserved_begin(stream, mark->start ? mark->recorded : mark->segment.first);
    else if (event)
      gs_unobserved_end_by_mark(stream, number, now);
    gs_meter_lose(device->meter, &stream->queue, now);
  }
  gs_meter_read(device->meter, (double)(gs_now() - asked));
  __atomic_store_n(&device->reaped, device->reaped + 1, __ATOMIC_RELEASE);
  gs_biased_drop(&device->lock);
  if (event && !kept)
    gs_event_give(context, event);
  return true;
}

/* All marks of the stream are reaped or lost. Called with the device's `reaping` and `tables` held. */
static void free_stream(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  gs_bracket_free(stream);
  /* under the lock, so that a thread that iterates over the streams with it never finds one that is being set up */
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  gs_found_idle(stream, gs_now(), (struct gs_waited){0});
  __atomic_store_n(&stream->live, false, __ATOMIC_RELEASE);
  gs_active_drop(stream);
  gs_biased_drop(&device->lock);
  gs_place_give(gs_time(), stream);
}

/* Under `reaping`. */
static void count_residents(struct gs_time_device *device, uint64_t now) {
  uint32_t slots = __atomic_load_n(&gs_process->limits->slots_high, __ATOMIC_RELAXED);
  if (now - device->residents_at < (slots > 1 ? (uint64_t)slots * RECOUNT_NS : RESIDENTS_NS))
    return;
  device->residents_at = now;
  __atomic_store_n(&device->residents, gs_slots_active(device, now, RESIDENTS_NS), __ATOMIC_RELAXED);
  gs_biased_take(&device->lock);
  device->meter->residents = device->residents;
  if (slots > 1)
    device->meter->charged = &gs_process->usage->charged[device->ordinal];
  gs_biased_drop(&device->lock);
}

/* Completes what gs_stream_done could not do because another thread was reading the marks. */
static void close_done(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  if (__atomic_load_n(&stream->done_launches, __ATOMIC_RELAXED) == 0)
    return;
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  if (gs_stream_known_done(stream) && stream->queue.head == stream->queue.tail)
    gs_found_idle(stream, stream->done_at > stream->queue.previous_done ? stream->done_at : stream->queue.previous_done,
                  (struct gs_waited){0});
  if (stream->queue.head == stream->queue.tail)
    __atomic_store_n(&stream->done_launches, 0, __ATOMIC_RELAXED);
  gs_biased_drop(&device->lock);
}

static bool is_unobserved(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->unobserved, __ATOMIC_RELAXED) != 0;
}

/* Under `reaping`. */
static void reap_stream(struct gs_stream *stream) {
  struct gs_time *time = gs_time();
  struct gs_time_device *device = stream->device;
  if (gs_repeat_pending(stream) > 0 || is_unobserved(stream)) {
    gs_biased_take(&device->lock);
    gs_repeat_absorb(stream);
    gs_unobserved_charge(stream, gs_now());
    gs_biased_drop(&device->lock);
  }
  if (!stream->context || __atomic_load_n(&stream->context->ending, __ATOMIC_RELAXED) > 0)
    return;
  /* brackets first: what a launch took is then known before it is charged */
  do
    gs_bracket_take(stream);
  while (take_oldest(stream));
  close_done(stream);
  if (!gs_stream_retired(stream) || stream->queue.head != stream->queue.tail || is_unobserved(stream) ||
      gs_stream_awaits(stream))
    return;
  gs_latch_take(&time->tables);
  free_stream(stream);
  gs_latch_drop(&time->tables);
}

void gs_reap(struct gs_time_device *device) {
  struct gs_inside inside;
  bool sooner;
  if (!gs_latch_try(&device->reaping))
    return;
  count_residents(device, gs_now());
  __atomic_store_n(&device->meter->spare_milli, __atomic_load_n(&device->limits->spare_milli, __ATOMIC_RELAXED),
                   __ATOMIC_RELAXED);
  gs_look_at_turn(device); /* decides how finished work is charged */
  gs_inside_begin(&inside, NULL);
  for (struct gs_stream *stream = gs_active_first(device), *next; stream; stream = next) {
    next = gs_active_next(stream);
    if (gs_stream_live(stream) && gs_stream_home(stream) == device)
      reap_stream(stream);
  }
  gs_biased_take(&device->lock);
  /* a tight bound is kept only as accurately as the marks allow */
  device->meter->mark_most_ns = gs_bound(device) / GS_METER_MARKS;
  gs_meter_explain(device->meter, gs_now());
  sooner = gs_publish(device, gs_now());
  gs_biased_drop(&device->lock);
  __atomic_store_n(&device->looked_at, gs_now(), __ATOMIC_RELAXED);
  gs_inside_end(&inside);
  gs_latch_drop(&device->reaping);
  if (sooner)
    gs_tell_sooner(device);
}

/* The wait that this thread made has ended at `now`. Called with the lock held; marks that are done have been reaped. */
static void wait_ended(struct gs_stream *stream, uint64_t now) {
  struct gs_time_device *device = gs_stream_home(stream);
  bool returned = gs_wait.until >= now;
  struct gs_waited waited = {gs_wait.began, returned ? now : gs_wait.until, gs_residents(device), returned};
  gs_repeat_absorb(stream);
  if (stream->newest >= gs_wait.number || gs_stream_awaits(stream)) {
    /* not all of its work came before the wait, but the wait has shown it busy */
    gs_meter_seen_busy(device->meter, &stream->queue, waited);
  } else if (stream->queue.head == stream->queue.tail && !stream->queue.sampled) {
    gs_found_idle(stream, now, waited);
    /* another thread is still reading its marks, or the last one is not known to be done: close_done completes this */
  } else {
    stream->done_at = now;
    __atomic_store_n(&stream->done_launches, gs_stream_launches(stream) + 1, __ATOMIC_RELAXED);
  }
}

static void reap_unlocked(struct gs_time_device *device) {
  gs_biased_drop(&device->lock);
  gs_reap(device);
  gs_biased_take(&device->lock);
}

void gs_stream_done(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  gs_biased_take(&device->lock);
  uint64_t now = gs_ticks_at(&device->ticks, gs_ticks_read());
  if (device->meter->marks > 0 || stream->queue.sampled) /* false for most programs that wait for each launch */
    reap_unlocked(device);
  wait_ended(stream, now);
  bool sooner = gs_publish(device, now);
  gs_biased_drop(&device->lock);
  if (sooner)
    gs_tell_sooner(device);
}

void gs_streams_done(struct gs_time_device *device, bool (*matches)(const struct gs_stream *stream, const void *what),
                     const void *what) {
  if (!device->meter) /* nothing was launched there */
    return;
  gs_biased_take(&device->lock);
  uint64_t now = gs_ticks_at(&device->ticks, gs_ticks_read());
  gs_meter_waited(device->meter, now);
  if (device->meter->marks > 0)
    reap_unlocked(device);
  gs_biased_drop(&device->lock);
  if (!gs_active_first(device))
    return;
  for (struct gs_stream *stream = gs_active_first(device), *next; stream; stream = next) {
    next = gs_active_next(stream);
    if (!gs_stream_live(stream) || gs_stream_home(stream) != device || !matches(stream, what))
      continue;
    gs_biased_take(&device->lock);
    if (stream->queue.sampled)
      reap_unlocked(device);
    wait_ended(stream, now);
    gs_biased_drop(&device->lock);
  }
  gs_biased_take(&device->lock);
  bool sooner = gs_publish(device, now);
  gs_biased_drop(&device->lock);
  if (sooner)
    gs_tell_sooner(device);
}

/* The call that ended the context has waited for the stream's work. */
static void forget_stream(struct gs_stream *stream, uint64_t now) {
  struct gs_time_device *device = stream->device;
  uint64_t began = stream->context->ending_since;
  struct gs_waited waited = {began, began > 0 ? now : 0, gs_residents(device), true};
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  gs_meter_lose_all(device->meter, &stream->queue, now, waited);
  gs_biased_drop(&device->lock);
  memset(stream->bracket, 0, sizeof stream->bracket);
  free_stream(stream);
}

void gs_context_forget(struct gs_context *context) {
  struct gs_time *time = gs_time();
  struct gs_time_device *device = &time->device[context->ordinal];
  uint64_t now = gs_now();
  for (uint32_t i = 0; i < time->buckets; i++)
    for (struct gs_stream *stream = time->bucket[i], *next; stream; stream = next) {
      next = stream->alike;
      if (stream->context == context)
        forget_stream(stream, now);
    }
  gs_biased_take(&device->lock);
  gs_publish(device, now);
  gs_biased_drop(&device->lock);
  context->free_events = 0;
  context->base = context->asking = NULL;
  __atomic_sub_fetch(&time->ending, context->ending, __ATOMIC_RELAXED);
  context->ending = 0;
  context->ending_since = 0;
  __atomic_store_n(&context->handle, NULL, __ATOMIC_RELAXED);
}
