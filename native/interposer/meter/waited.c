/* The part of the meter that handles waits of the program: when one begins, and what it shows when it ends. */
#include <string.h>

#include "interposer/meter/functions.h"

bool gs_meter_check_before_sync(const struct gs_meter *meter, struct gs_queue *queue, uint64_t now) {
  if (gs_meter_careful(meter, now))
    return queue->open.launches > 0;
  if (queue->open.launches < 2)
    return false;
  if (gs_segment_trusted(&queue->open) && now - queue->last_check <= gs_queue_sample_every(meter, queue))
    return false;
  queue->last_check = now;
  return true;
}

/* When everything launched so far was expected to be done: other streams may have had the device first. */
static uint64_t believed_end(const struct gs_meter *meter, const struct gs_queue *queue) {
  return meter->end > queue->end ? meter->end : queue->end;
}

enum { RETURNS_MOST = 16 }; /* older measurements are forgotten */

/* Late waits are classed by their delay, in powers of two: the time that a thread waits for a processor differs from
 * the time that its kernels take. */
static uint32_t class_of(double late) {
  uint32_t power = 63 - (uint32_t)__builtin_clzll((uint64_t)late / GS_METER_LATE_NS + 1);
  return power < GS_METER_RETURNS ? power : GS_METER_RETURNS - 1;
}

/* The part of the delay of a wait for which the device worked, by what was measured of delays of its class and the
 * classes next to it: the thread may have had no processor to return on. What is not known counts as work. */
static double worked(const struct gs_meter *meter, double late) {
  uint32_t class = class_of(late), last = class + 1 < GS_METER_RETURNS ? class + 1 : class;
  double measured = late, at_work = late;
  for (uint32_t i = class > 0 ? class - 1 : 0; i <= last; i++) {
    measured += meter->returns[i].late;
    at_work += meter->returns[i].worked;
  }
  return late * at_work / measured;
}

/* Factor by which a late wait raises the credit for marks. It is high unless marks have shown that such delays are mostly
 * the device's: until marks show that the thread only had no processor, the delay is charged as work. */
static double worth_of_return(const struct gs_meter *meter, double late) {
  const struct gs_returns *returns = &meter->returns[class_of(late)];
  bool device = 2 * returns->late >= RETURNS_MOST * late && returns->worked > returns->late / 2;
  return device ? 1 : RETURNS_MOST;
}

/* The wait returned, and a mark shows when the work was done. It shows nothing of the time until the call that recorded
 * it returned, in which the thread may have lost its processor; nor of a wait for a copy. */
static void learn_return(struct gs_meter *meter, const struct gs_queue *queue, struct gs_waited waited) {
  const struct gs_mark *mark = &queue->ring[(queue->tail - 1) % GS_METER_RING];
  uint64_t from = waited.began > mark->recorded_by ? waited.began : mark->recorded_by;
  struct gs_returns *returns;
  double expected, late, shown;
  if (!waited.returned || queue->open.launches > 0 || queue->tail == 0 || waited.until <= from)
    return;
  if (mark->start || __atomic_load_n(&mark->state, __ATOMIC_ACQUIRE) != GS_MARK_RECORDED || mark->segment.clouded ||
      __atomic_load_n(&queue->clouded, __ATOMIC_RELAXED))
    return;
  expected = mark->expected > from ? (double)(mark->expected - from) : 0;
  late = (double)(waited.until - from) - expected;
  if (!gs_is_late(late + expected, expected))
    return;
  shown = queue->previous_done > from ? (double)(queue->previous_done - from) - expected : 0;
  returns = &meter->returns[class_of(late)];
  returns->late += late;
  returns->worked += shown < 0 ? 0 : minimum(shown, late);
  if (returns->late > RETURNS_MOST * late) {
    returns->late /= 2;
    returns->worked /= 2;
  }
}

/* Adds what a wait has shown. Returns false if it lasted as long as expected, and so shows nothing. */
static bool add_wait(struct gs_meter *meter, const struct gs_queue *queue, struct gs_waited waited) {
  uint64_t end = believed_end(meter, queue);
  double expected = end > waited.began ? (double)(end - waited.began) : 0, blocked, alone, took;
  if (waited.until <= waited.began)
    return false;
  alone = gs_meter_exclusive(meter, waited.began, waited.until);
  blocked = gs_meter_resident(meter, waited.began, waited.until, waited.residents);
  /* The others on the device may be what it waited for. */
  took = gs_meter_careful(meter, waited.began) ? blocked : alone;
  if (!gs_is_late(gs_own_time(took, waited.residents), expected))
    return false;
  gs_meter_surprise(meter, waited.until, took - expected, (took - expected) * worth_of_return(meter, took - expected));
  if (__atomic_load_n(&queue->clouded, __ATOMIC_RELAXED))
    return false;
  if (waited.returned && blocked > expected)
    blocked = expected + worked(meter, blocked - expected);
  gs_timeline_add(meter, waited.began, waited.until, blocked, blocked / (double)(waited.until - waited.began));
  return true;
}

void gs_meter_seen_busy(struct gs_meter *meter, const struct gs_queue *queue, struct gs_waited waited) {
  const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
  bool marks = queue->head != queue->tail;
  if (marks && (oldest->start || __atomic_load_n(&oldest->state, __ATOMIC_ACQUIRE) == GS_MARK_RECORDED))
    return; /* the mark shows more, and when */
  /* The thread may have got no processor for long after the work was done. The last mark says when the stream was done
   * with all that came before it; nothing was launched since, or only after that and after the wait began. */
  const struct gs_segment *next = marks ? &oldest->segment : &queue->open;
  uint64_t done = queue->previous_done;
  if (queue->anchored && (next->launches == 0 || (next->first > done && next->first > waited.began)) &&
      waited.until > done)
    waited.until = done;
  add_wait(meter, queue, waited);
}

void gs_meter_unready(struct gs_meter *meter, const struct gs_queue *queue, uint64_t now, uint32_t residents) {
  const struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  uint64_t from = mark->recorded_by > queue->previous_done ? mark->recorded_by : queue->previous_done;
  bool careful = gs_meter_careful(meter, mark->recorded);
  double lag;
  if (mark->start || mark->segment.clouded || now <= from)
    return;
  lag = careful ? gs_meter_resident(meter, mark->recorded_by, now, residents)
                : gs_meter_exclusive(meter, mark->recorded_by, now);
  /* what is only a little late is charged when the mark is done */
  if (lag < GS_METER_LONG_NS || !gs_mark_late(mark, gs_segment_now(&mark->segment), lag))
    return;
  lag = gs_meter_resident(meter, from, now, residents);
  gs_timeline_add(meter, from, now, lag, lag / (double)(now - from));
}

void gs_meter_synced(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, struct gs_waited waited) {
  const struct gs_segment *open = &queue->open;
  uint64_t from = open->first > queue->previous_done ? open->first : queue->previous_done;
  learn_return(meter, queue, waited);
  if (open->launches > 0 && queue->anchored && now > from) {
    double total = gs_segment_now(open), rest = 0;
    uint64_t to = now;
    if (waited.began < from)
      waited.began = from;
    if (waited.until > waited.began && queue->end > waited.began)
      rest = minimum((double)(queue->end - waited.began), total);
    if (add_wait(meter, queue, waited)) {
      total -= rest;
      to = waited.began;
    }
    if (to > from)
      gs_timeline_add(meter, from, to, gs_queue_fit(queue, open, total, (double)(to - from)), 1);
  }
  gs_queue_landed(meter, queue, queue->inflight, queue->unobserved);
  if (meter->inflight < 1)
    meter->end = now;
  memset(&queue->open, 0, sizeof queue->open);
  __atomic_store_n(&queue->clouded, false, __ATOMIC_RELAXED);
  queue->anchored = true;
  queue->launched_before = meter->launched;
  queue->previous_done = now;
  queue->previous_lag = 0;
  queue->end = queue->closed = now;
}
