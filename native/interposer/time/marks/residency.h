/* Busy until proven idle. A stream that took work counts as busy until something that completed after that work proves
 * otherwise: a mark, a wait or a question.
 *
 * A stream whose work is out of the marks' sight (the driver refused an event, its thread may not call the driver, the
 * program is profiled, or the work takes longer than expected) is unobserved: it is charged by residency, the device time
 * that this process could use while the stream was not proven idle.
 *
 * All functions are called with the device's lock held. */
#ifndef GPUSHARE_TIME_RESIDENCY_H
#define GPUSHARE_TIME_RESIDENCY_H

#include "interposer/time/streams/repeat.h"
#include "interposer/time/timing.h"

enum {
  /* the end of work that is not proven done is published this far ahead of the clock; the gate thread refreshes it
   * every GS_LOOK_NS if others wait */
  GS_UNPROVEN_NS = 2000000,
  GS_LOOK_NS = 1000000
};

/* Charges the work launched since `since`, or at least since the stream became unobserved, by residency until it is proven
 * done. */
void gs_unobserved_begin(struct gs_stream *stream, uint64_t since);
/* Charges an unobserved stream up to now. */
void gs_unobserved_charge(struct gs_stream *stream, uint64_t now);
/* Ends that: the stream was idle at that time, and nothing was launched into it since. */
void gs_unobserved_end(struct gs_stream *stream, uint64_t at);
/* The same, if the work became unobserved before the mark with this number was recorded. */
static inline void gs_unobserved_end_by_mark(struct gs_stream *stream, uint32_t mark, uint64_t at) {
  if (stream->unobserved && (int32_t)(mark - stream->unobserved_head) >= 0)
    gs_unobserved_end(stream, at);
}

/* Everything launched into the stream is done since `at`. waited: as for gs_meter_synced. All its marks are reaped or
 * lost. */
void gs_found_idle(struct gs_stream *stream, uint64_t at, struct gs_waited waited);
/* Books a short wait that was not booked when it ended (streams/repeat.h). Under the device's lock, where the stream has
 * no marks. */
void gs_book_short_wait(struct gs_stream *stream, uint64_t now);

/* Whether the launches that are not known to be done may be behind a wait for a value in memory or a semaphore. */
static inline bool gs_stream_held(const struct gs_stream *stream) {
  return stream->held_launches > 0 && (int32_t)(stream->queue.tail - stream->held_head) <= 0;
}

/* Whether the stream may have work on the device. */
static inline bool gs_stream_may_run(const struct gs_stream *stream) {
  const struct gs_queue *queue = &stream->queue;
  return stream->unobserved || gs_stream_awaits(stream) ||
         ((queue->head != queue->tail || queue->open.launches > 0 || gs_repeat_pending(stream) > 0) &&
          !gs_stream_known_done(stream));
}

#endif
