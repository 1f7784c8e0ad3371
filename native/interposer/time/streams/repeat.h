/* Fast path for launches that repeat the previous one. Accounting for each of many short launches is expensive. So a
 * thread whose launch was booked in full may launch the same function into the same stream a few times and only count
 * the launches; the next launch booked in full accounts for them. The unbooked work is bounded by GS_REPEAT_NS of
 * estimated device time and of the program's launch interval, and by a quarter of the bound on work in flight.
 *
 * The thread checks only the processor's counter and two words: the lease, and `repeats` of gs_time, which everything
 * that changes the meaning of a launch increments (captures, modules, streams, contexts, the loss of the daemon). */
#ifndef GPUSHARE_REPEAT_H
#define GPUSHARE_REPEAT_H

#include "interposer/meter/repeats.h"
#include "interposer/process/process.h"
#include "interposer/time/timing.h"

struct __attribute__((aligned(64))) gs_repeat {
  uint64_t key;      /* where the grant lends idle memory: its complement */
  CUstream handle;   /* of the legacy default stream: CU_STREAM_LEGACY */
  CUcontext context; /* for the default streams, whose handle does not identify them; else NULL */
  struct gs_stream *stream;
  const uint32_t *lease_word, *repeats_word;
  uint32_t lease, repeats; /* values of those words when the launch was booked */
  uint32_t left;
  /* In ticks of the processor's counter: `soon` is GS_REPEAT_NS after the booking, 0 for short kernels; `short_wait` is
   * how long a wait may last without being booked at once; `until` is GS_REPEAT_WITHIN_NS after the booking,
   * or the booking where the counter is not trusted yet */
  uint64_t soon, short_wait, until;
  /* where the grant lends idle memory: this thread's gs_launch_word. Not 0 between its look at those words and the end of
   * the driver's call */
  uint32_t *inside;
};

/* Indexed by a hash of the stream; enough for the streams into which a thread is likely to launch in turn. */
extern __thread struct gs_repeat gs_repeats[8] __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline struct gs_repeat *gs_repeat_of(CUstream handle) {
  if (!handle)
    handle = CU_STREAM_LEGACY;
  struct gs_repeat *repeat = &gs_repeats[(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15) >> 61];
  __asm__("" : "+r"(repeat)); /* otherwise the compiler computes the address anew at each use, 1 ns in all */
  return repeat;
}

/* Whether the handle names the stream of the repeat. */
static inline bool gs_repeat_names(const struct gs_repeat *repeat, CUstream handle) {
  CUcontext current = NULL;
  if (!gs_stream_is_default(handle))
    return repeat->handle == handle;
  return repeat->handle == (handle ? handle : CU_STREAM_LEGACY) && gs_real.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
         current && current == repeat->context;
}

/* Whether nothing has changed since the last launch was booked. */
static inline bool gs_repeat_holds(const struct gs_repeat *repeat) {
  return gs_ticks_read() < repeat->until &&
         __atomic_load_n(repeat->repeats_word, __ATOMIC_ACQUIRE) == repeat->repeats &&
         __atomic_load_n(repeat->lease_word, __ATOMIC_ACQUIRE) == repeat->lease &&
         __atomic_load_n(&repeat->stream->repeater, __ATOMIC_RELAXED) == repeat;
}

/* Returns non-NULL if a launch may go straight to the driver; call gs_repeated with its result. */
static inline struct gs_repeat *gs_repeat_launch(uint64_t key, CUstream handle) {
  struct gs_repeat *repeat = gs_repeat_of(handle);
  if (repeat->left == 0 || repeat->key != key || !gs_repeat_names(repeat, handle) || !gs_repeat_holds(repeat))
    return NULL;
  repeat->left--;
  return repeat;
}

/* Called if the stream was found idle, and left the list of those with work, while the driver was called. */
void gs_repeat_late(struct gs_stream *stream);
static inline void gs_repeated(struct gs_repeat *repeat, CUresult result) {
  struct gs_stream *stream = repeat->stream;
  if (!GS_LIKELY(result == CUDA_SUCCESS)) {
    repeat->left = 0;
    return;
  }
  __atomic_store_n(&stream->repeated, __atomic_load_n(&stream->repeated, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
  if (!GS_LIKELY(__atomic_load_n(&stream->repeater, __ATOMIC_RELAXED) == repeat))
    gs_repeat_late(stream);
}

/* The same where the grant lends idle memory: whoever moves it has to see that this thread is on its way to the driver. */
static inline struct gs_repeat *gs_repeat_launch_watched(uint64_t key, CUstream handle) {
  struct gs_repeat *repeat = gs_repeat_of(handle);
  if (repeat->left == 0 || repeat->key != ~key || !gs_repeat_names(repeat, handle))
    return NULL;
  __atomic_store_n(repeat->inside, 1, __ATOMIC_RELAXED);
  __atomic_signal_fence(__ATOMIC_SEQ_CST); /* for other processors, gs_stores_seen orders these */
  if (!gs_repeat_holds(repeat)) {
    __atomic_store_n(repeat->inside, 0, __ATOMIC_RELAXED);
    return NULL;
  }
  repeat->left--;
  return repeat;
}
static inline void gs_repeated_watched(struct gs_repeat *repeat, CUresult result) {
  gs_repeated(repeat, result);
  __atomic_store_n(repeat->inside, 0, __ATOMIC_RELEASE);
}

/* To be called before a wait for a stream into which this thread launches. If the wait is short, it is accounted for
 * with the next launch that is booked in full. NULL if that does not apply: a wait for the legacy stream shows more. */
static inline struct gs_repeat *gs_repeat_wait(CUstream handle) {
  struct gs_repeat *repeat = gs_repeat_of(handle);
  if (repeat->left > 0 && !gs_stream_is_default(handle) && repeat->handle == handle && gs_repeat_holds(repeat) &&
      __atomic_load_n(&repeat->stream->device->meter->marks, __ATOMIC_RELAXED) == 0 &&
      !__atomic_load_n(&repeat->stream->queue.sampled, __ATOMIC_RELAXED))
    return repeat;
  return NULL;
}

/* After that wait, which began at `tick` and ended at `now`: whether it was as short as expected. */
static inline bool gs_repeat_waited(const struct gs_repeat *repeat, uint64_t tick, uint64_t now) {
  return now - tick < repeat->short_wait && (repeat->soon == 0 || now < repeat->soon);
}

/* Decides whether, and how often, the launch just booked may be repeated. Called with the device's lock held. */
void gs_repeat_from(struct gs_stream *stream, struct gs_function *function, CUstream handle, uint32_t lease,
                    double room, uint64_t tick, uint64_t now);
/* Books the repeated launches of the stream. Called with the device's lock held, before anything else is done with its
 * queue. */
static inline uint64_t gs_repeat_pending(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->repeated, __ATOMIC_ACQUIRE) - __atomic_load_n(&stream->absorbed, __ATOMIC_RELAXED);
}
void gs_repeat_absorb_slow(struct gs_stream *stream);
static inline void gs_repeat_absorb(struct gs_stream *stream) {
  if (gs_repeat_pending(stream) > 0)
    gs_repeat_absorb_slow(stream);
}
/* Books the repeated launches of all streams of the device. Takes the lock. */
void gs_repeat_absorb_all(struct gs_time_device *device);
/* Whether anything was launched since the stream was last marked or waited for. */
bool gs_stream_open(struct gs_stream *stream);
/* Number of launches so far; shows whether anything was launched after an event of the program. */
static inline uint64_t gs_stream_launches(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->queue.launches, __ATOMIC_RELAXED) +
         __atomic_load_n(&stream->repeated, __ATOMIC_ACQUIRE);
}
/* Whether a submission is booked that the driver may not have yet. */
static inline bool gs_stream_awaits(const struct gs_stream *stream) {
  uint64_t sent = __atomic_load_n(&stream->sent, __ATOMIC_RELAXED);
  return __atomic_load_n(&stream->arrived, __ATOMIC_ACQUIRE) != sent;
}
/* gs_stream_launches if the driver has them all, else UINT64_MAX: then nothing that begins now comes after all of
 * them. */
static inline uint64_t gs_stream_arrived(const struct gs_stream *stream) {
  uint64_t launches = gs_stream_launches(stream);
  __atomic_thread_fence(__ATOMIC_ACQUIRE); /* gs_submit counts in the opposite order */
  return gs_stream_awaits(stream) ? UINT64_MAX : launches;
}
/* Whether all work is known to be done, even if the stream's queue is not up to date. */
static inline bool gs_stream_known_done(const struct gs_stream *stream) {
  return stream->done_launches == gs_stream_launches(stream) + 1;
}
/* A wait for the stream, which gs_repeat_waited found to be short, has ended at `tick`. launches: gs_stream_arrived when
 * it began. */
static inline void gs_repeat_done(struct gs_stream *stream, uint64_t launches, uint64_t tick) {
  __atomic_store_n(&stream->waited_tick, tick, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->waited_launches, launches + 1, __ATOMIC_RELAXED);
}
/* Whether nothing was launched into the stream since such a wait. */
static inline bool gs_repeat_known_done(const struct gs_stream *stream) {
  return __atomic_load_n(&stream->waited_launches, __ATOMIC_RELAXED) == gs_stream_launches(stream) + 1;
}
/* When that wait ended, after which nothing was launched; 0: it is too long ago to tell, or was asked for before. Called
 * with the device's lock held. */
uint64_t gs_repeat_waited_at(struct gs_stream *stream, uint64_t now);
/* From now on no launch counts as a repetition of an earlier one. */
static inline void gs_repeat_end(struct gs_time *time) { __atomic_add_fetch(&time->repeats, 1, __ATOMIC_SEQ_CST); }

#endif
