#include "interposer/time/gate/submit.h"

#include "interposer/process/device.h"
#include "interposer/time/gate/gate.h"
#include "interposer/time/gate/start.h"
#include "interposer/time/marks/bracket.h"
#include "interposer/time/marks/marks.h"
#include "interposer/time/marks/residency.h"
#include "interposer/time/streams/active.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/repeat.h"
#include "interposer/time/streams/streams.h"

#define GS_CAPTURES(time) __atomic_load_n(&(time)->captures, __ATOMIC_ACQUIRE)

/* Gates a launch into a stream that has no place. */
static void gate_only(struct gs_time *time, CUstream stream) {
  int ordinal = gs_stream_device(stream);
  struct gs_time_device *device = ordinal == GS_NO_DEVICE ? NULL : &time->device[ordinal];
  if (gs_passage())
    __atomic_store_n(&gs_passage()->unseen, 1, __ATOMIC_RELEASE);
  if (device && device->meter &&
      (!(__atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE) & GS_LEASE_HELD) || device->local ||
       !gs_memory_there(device)))
    gs_gate_wait(device);
}

/* A mark measures the launch in place of the planned bracket. */
static void no_bracket(struct gs_submission *submission) {
  submission->plan = (submission->plan & ~(uint32_t)GS_PLAN_SAMPLE) | GS_PLAN_MARK;
  __atomic_store_n(&submission->stream->queue.bracketing, false, __ATOMIC_RELEASE);
}

/* Carries out what the plan asks for before the launch. */
static void follow_before(struct gs_submission *submission) {
  struct gs_stream *stream = submission->stream;
  if (submission->plan & GS_PLAN_START) {
    gs_mark_record(stream, true);
    gs_biased_take(&stream->device->lock);
    gs_meter_started(&stream->queue, gs_now());
    gs_biased_drop(&stream->device->lock);
  }
  if (!(submission->plan & GS_PLAN_SAMPLE))
    return;
  if (__atomic_load_n(&stream->queue.sampled, __ATOMIC_ACQUIRE))
    gs_reap(stream->device);
  submission->planned = gs_now();
  if (__atomic_load_n(&stream->queue.sampled, __ATOMIC_ACQUIRE) ||
      !gs_bracket_begin(stream, submission->plan & GS_PLAN_HOLD, &submission->began))
    no_bracket(submission);
}

/* Books a callback's submission without a lease. It counts for no less than one of a function never seen, so few
 * pass. */
static void callback_spends(struct gs_time_device *device, uint32_t lease, double ns) {
  device->callback_ns = device->callback_lease == lease ? device->callback_ns + ns : ns;
  device->callback_lease = lease;
}

/* A submission between the gate and the driver. Its steps are inlined into gs_submit, so this lies in registers. */
struct passage {
  struct gs_time *time;
  struct gs_stream *stream;
  struct gs_time_device *device; /* of the stream */
  struct gs_meter *meter;        /* of the device */
  struct gs_function *function;
  uint64_t tick, now; /* when it passed the gate */
  uint32_t lease;     /* the lease word that let it pass */
  uint32_t plan;
  double bound;
};

/* Finds the stream. False: the submission is neither booked nor marked, because it is captured or its stream has no
 * place. */
static inline bool find_stream(struct passage *passage, CUstream handle) {
  struct gs_time *time = gs_time();
  if (!time) {
    /* A context created without the interposer, through the driver's private tables. */
    gs_time_start(gs_stream_device(handle));
    time = gs_time();
  }
  if (!time || (GS_CAPTURES(time) > 0 && gs_stream_capturing(handle)))
    return false;
  passage->time = time;
  passage->stream = gs_stream_of(handle);
  if (!passage->stream) {
    gate_only(time, handle);
    return false;
  }
  passage->device = passage->stream->device;
  passage->meter = passage->device->meter;
  return true;
}

/* Waits for the lease, for the memory and for the bound. Returns with the device's lock held: whoever stops submissions
 * takes it after that, and then either sees what passed or is seen here. */
static inline void pass_gate(struct passage *passage, uint64_t key) {
  struct gs_stream *stream = passage->stream;
  struct gs_time_device *device = passage->device;
  uint64_t began = 0;
  for (;;) {
    /* Costs 5 ns less here than after the arithmetic of the bound: a processor retires older instructions first. */
    passage->tick = gs_ticks_read();
    passage->lease = __atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE);
    if (!GS_LIKELY((passage->lease & GS_LEASE_HELD) && !__atomic_load_n(&device->local, __ATOMIC_RELAXED) &&
                   gs_memory_there(device))) {
      passage->lease = gs_gate_wait(device);
      passage->tick = gs_ticks_read();
    }
    passage->bound = gs_bound(device);
    gs_biased_take(&device->lock);
    if (!GS_LIKELY(gs_meter_inflight(passage->meter, passage->bound) <= passage->bound) && !passage->time->profiled) {
      gs_biased_drop(&device->lock);
      began = began ? began : gs_now();
      if (!gs_bound_wait(device, stream, key, passage->lease, began))
        continue;
      passage->tick = gs_ticks_read();
      passage->bound = gs_bound(device);
    }
    if (gs_memory_there(device))
      return;
    gs_biased_drop(&device->lock);
  }
}

/* Passes the submission to the meter, behind all that came before it. Under the device's lock. False, without the lock:
 * the memory began to move while the lock was dropped. */
static inline bool book(struct passage *passage, struct gs_submission *submission, uint64_t key) {
  struct gs_stream *stream = passage->stream;
  struct gs_time_device *device = passage->device;
  struct gs_meter *meter = passage->meter;
  passage->now = gs_ticks_at(&device->ticks, passage->tick);
  passage->function = gs_queue_function(meter, &stream->queue, key);
  if (!GS_LIKELY(!gs_meter_close_first(&stream->queue, passage->function, passage->now))) {
    gs_biased_drop(&device->lock);
    gs_mark_record(stream, false);
    gs_biased_take(&device->lock);
    if (!gs_memory_there(device)) {
      gs_biased_drop(&device->lock);
      return false;
    }
    passage->now = gs_ticks_at(&device->ticks, gs_ticks_read());
    passage->function = gs_queue_function(meter, &stream->queue, key);
  }
  if (!GS_LIKELY(!gs_turn_passed(device, passage->lease)))
    gs_notice_turn(device, passage->lease, passage->now);
  gs_repeat_absorb(stream);
  if (gs_repeat_known_done(stream) && stream->queue.head == stream->queue.tail && !stream->queue.sampled)
    gs_book_short_wait(stream, passage->now);
  submission->stream = stream;
  submission->function = passage->function;
  submission->estimate = passage->function->estimate;
  submission->segments = stream->queue.segments;
  stream->newest = device->waits;
  __atomic_store_n(&stream->sent, stream->sent + 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE); /* before the launch is counted, see gs_stream_arrived */
  passage->plan = gs_meter_launch(meter, &stream->queue, passage->function, passage->now, passage->lease);
  gs_active_add(stream);
  if (!GS_LIKELY(!passage->time->profiled && stream->context)) { /* no marks */
    passage->plan = 0;
    __atomic_store_n(&stream->queue.bracketing, false, __ATOMIC_RELAXED);
    gs_unobserved_begin(stream, passage->now);
  }
  submission->plan = passage->plan;
  return true;
}

/* Shows the booking to the arbiter and to the gate thread, and decides whether the next launches may repeat this one.
 * Drops the device's lock. */
static inline void publish(const struct passage *passage, CUstream handle) {
  struct gs_stream *stream = passage->stream;
  struct gs_time_device *device = passage->device;
  struct gs_function *function = passage->function;
  double bound = passage->bound;
  __atomic_store_n(&stream->due, stream->queue.end, __ATOMIC_RELAXED);
  /* first, so that the arbiter never sees work in flight without its end */
  if (stream->queue.end > device->slot->queue_end_ns)
    __atomic_store_n(&device->slot->queue_end_ns, stream->queue.end, __ATOMIC_RELAXED);
  gs_not_idle(passage->time, device);
  __atomic_store_n(&device->slot->launches, device->slot->launches + 1, __ATOMIC_RELAXED);
  if ((passage->lease & GS_LEASE_HELD) && !__atomic_load_n(&device->local, __ATOMIC_RELAXED)) {
    if (!stream->unobserved)
      gs_repeat_from(stream, function, handle, passage->lease, bound - gs_meter_inflight(passage->meter, bound),
                     passage->tick, passage->now);
  } else if (gs_called_back) {
    callback_spends(device, passage->lease,
                    function->estimate > bound / GS_METER_RISK_SHARE ? function->estimate
                                                                     : bound / GS_METER_RISK_SHARE);
    gs_biased_drop(&device->lock);
    gs_clear_drained(device); /* only after booking, because the gate thread checks at once */
    gs_biased_take(&device->lock);
  }
  gs_biased_drop(&device->lock);
}

CUresult gs_submit(struct gs_submission *submission, uint64_t key, CUstream handle) {
  struct passage passage;
  submission->stream = NULL;
  if (!find_stream(&passage, handle))
    return CUDA_SUCCESS;
  do
    pass_gate(&passage, key);
  while (!GS_LIKELY(book(&passage, submission, key)));
  publish(&passage, handle);
  if (!GS_LIKELY(!(passage.plan & (GS_PLAN_START | GS_PLAN_SAMPLE))))
    follow_before(submission);
  return CUDA_SUCCESS;
}

static void close_bracket(struct gs_submission *submission, uint64_t ended) {
  struct gs_stream *stream = submission->stream;
  uint64_t closed;
  enum gs_held held;
  if (!gs_bracket_end(stream, submission->plan & GS_PLAN_HOLD, &closed, &held)) {
    no_bracket(submission);
    return;
  }
  gs_biased_take(&stream->device->lock);
  gs_meter_sampling(&stream->queue, submission->function, submission->plan, submission->planned, submission->began,
                    ended, closed, held);
  gs_biased_drop(&stream->device->lock);
}

void gs_submitted_slow(struct gs_submission *submission, CUresult result) {
  struct gs_stream *stream = submission->stream;
  struct gs_time_device *device = stream->device;
  if (result != CUDA_SUCCESS) {
    gs_repeat_of(stream->handle)->left = 0;
    gs_biased_take(&device->lock);
    if (stream->queue.segments == submission->segments)
      gs_meter_undo(device->meter, &stream->queue, submission->function, submission->estimate);
    __atomic_store_n(&device->slot->launches, device->slot->launches - 1, __ATOMIC_RELAXED);
    gs_biased_drop(&device->lock);
    gs_arrived(stream);
    if (submission->plan & GS_PLAN_SAMPLE)
      no_bracket(submission);
    return;
  }
  /* A mark that another thread recorded meanwhile may have come before the launch, or after it. So the launch is booked
   * behind that mark too, and gets a mark of its own, which shows how much of it was left then. */
  if (__atomic_load_n(&stream->queue.segments, __ATOMIC_RELAXED) != submission->segments) {
    gs_biased_take(&device->lock);
    gs_meter_repeated(device->meter, &stream->queue, submission->function, submission->function->key, 1);
    stream->queue.open.unsure = true;
    gs_biased_drop(&device->lock);
    submission->plan |= GS_PLAN_MARK;
  }
  gs_arrived(stream);
  uint64_t ended = gs_now();
  if (submission->plan & GS_PLAN_SAMPLE)
    close_bracket(submission, ended);
  if (!(submission->plan & GS_PLAN_MARK))
    return;
  __atomic_store_n(&stream->queue.made, ended, __ATOMIC_RELAXED);
  gs_mark_record(stream, false);
}
