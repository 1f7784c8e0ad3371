/* What a mark shows when the device has reached it: how long the launches before it took. */
#include <string.h>

#include "interposer/meter/functions.h"

static void drop_oldest(struct gs_meter *meter, struct gs_queue *queue) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  gs_queue_landed(meter, queue, mark->segment.estimate, mark->segment.unobserved);
  queue->tail++;
  __atomic_store_n(&meter->marks, meter->marks - 1, __ATOMIC_RELAXED);
}

/* Charges by estimate, within a span that bounds the charge. A launch shorter than the mean of its function may have no
 * room for the estimate; the next longer one has, so a few launches' worth is carried over. A larger remainder is not
 * by chance: the estimate is too high. */
double gs_queue_fit(struct gs_queue *queue, const struct gs_segment *segment, double want, double span) {
  double took = minimum(want + queue->owed, span), more;
  queue->owed = minimum(want + queue->owed - took, GS_METER_CARRIED * want / maximum(segment->launches, 1));
  more = maximum(minimum(queue->guessed, span - took), -took);
  queue->guessed -= more;
  return took + more;
}

/* A single launch whose thread did not lose its processor around it: its time was measured exactly. */
static bool one_alone(const struct gs_mark *mark) {
  return mark->segment.launches == 1 && mark->recorded_by - mark->segment.first < GS_METER_GAP_NS;
}

/* Whether more than the last launch was still to be done when a mark was recorded, `lag` before it was done. */
static bool backlogged(const struct gs_segment *segment, double total, double lag) {
  return lag > GS_METER_LAG_NS + (segment->launches > 1 ? 2 * total / segment->launches : 0);
}

/* The time since the segment's first launch in which the queue is believed to have had work: without the time in which
 * the device waited for the host, but no less than estimated now, nor than `lag`, as there was work from the record of
 * the mark on. */
static double without_idle(const struct gs_segment *segment, double since_first, double lag) {
  double idle = maximum(segment->idle - segment->before - segment->stalled, 0);
  return minimum(maximum(maximum(since_first - idle, gs_segment_now(segment)), lag), since_first);
}

/* The queue is believed to have had work all the time: the device worked for this process, however long it took. */
static bool without_a_gap(const struct gs_mark *mark, double since_first, double total, double lag) {
  return mark->segment.idle < 0.02 * since_first && mark->recorded_by - mark->recorded < GS_METER_GAP_NS &&
         backlogged(&mark->segment, total, lag);
}

/* With others on the device, a segment that is long, or whose functions were not observed without others, is charged
 * the device time that was available to this process. */
static bool by_residency(const struct gs_segment *segment, bool alone, double lag) {
  return !alone && lag > GS_METER_LAG_NS &&
         (!gs_segment_known_alone(segment) || gs_segment_now(segment) > GS_METER_LONG_NS);
}

/* Whether a segment of known functions is charged by residency because their estimates proved wrong. */
static bool known_wrongly(struct gs_meter *meter, const struct gs_mark *mark, uint32_t lease, bool alone, double lag,
                          double resident) {
  /* The lease has changed, but the meter has not yet been notified of others on the device. */
  bool stale = mark->segment.lease != lease && meter->others == 0 && gs_meter_last_turn(meter) <= mark->segment.first;
  if (alone || stale || lag <= GS_METER_LAG_NS)
    return false;
  bool wrong = resident > 4 * gs_segment_now(&mark->segment) + GS_METER_LONG_NS;
  /* While others are on the device, nothing shows that lengths are even again. */
  if (wrong || gs_meter_careful(meter, mark->recorded))
    gs_meter_surprise(meter, mark->recorded, GS_METER_CAREFUL_NS,
                      wrong ? resident - gs_segment_now(&mark->segment) : 0);
  return gs_meter_careful(meter, mark->recorded);
}

static double after(uint64_t end, uint64_t begin) { return end > begin ? (double)(end - begin) : 0; }

/* True if hardly any other stream of the process had work meanwhile. */
static bool only_stream(const struct gs_segment *segment) { return segment->share > 0.9; }

/* To be called for each segment beside others: compares what its work is believed to take with how long it took. */
static void note_beside(struct gs_meter *meter, const struct gs_segment *segment, double took) {
  if (!only_stream(segment))
    return;
  meter->beside_known += (gs_segment_now(segment) - meter->beside_known) / GS_METER_BESIDE;
  meter->beside_took += (took - meter->beside_took) / GS_METER_BESIDE;
}

/* The part of the time beside others that was this process's own. least: that part if others had work all the time. A
 * grant may report work that it does not have; then this process's work takes no longer than it is known to, averaged
 * over many segments. A part below 1.5 times `least` shows nothing: launches of one function differ in length, and
 * estimates are inexact. */
static double own_part(const struct gs_meter *meter, const struct gs_segment *segment, double least) {
  if (!only_stream(segment) || !gs_segment_known_alone(segment))
    return least;
  double part = meter->beside_known < meter->beside_took ? meter->beside_known / meter->beside_took : 1;
  return part > 1.5 * least ? part : least;
}

bool gs_mark_late(const struct gs_mark *mark, double total, double lag) {
  double expected = maximum(after(mark->expected, mark->recorded_by), after(mark->after_all, mark->recorded_by));
  double last = total / maximum(mark->segment.launches, 1); /* it had just been made */
  return gs_is_late(lag, maximum(expected, last) + total / 4 /* small errors of many launches add up */);
}

/* The device worked for this queue from the record of the mark until it was done. If that is far from what was
 * expected, it replaces the estimate of this part; work that was expected to be done before the record is still charged
 * by estimate. */
static double measured(const struct gs_mark *mark, bool late, double total, double lag, double since_first) {
  double expected = after(mark->expected, mark->recorded_by);
  if (!late && !gs_is_late(expected, lag + total / 4))
    return total;
  return minimum(lag + maximum(total - expected, 0), since_first);
}

/* When the first kernel began, at the earliest: its launch takes a few microseconds to make. The driver first loads a
 * function that was never launched, which may take milliseconds. */
static uint64_t begin_of_first(const struct gs_segment *segment) {
  if (segment->stalled > 0) /* `stalled` covers that time */
    return segment->first;
  if (segment->unobserved > 0 && segment->made > segment->first)
    return segment->made;
  uint64_t took = segment->made > segment->first ? segment->made - segment->first : 0;
  return took < GS_METER_LAG_NS ? segment->first + took / 2 : segment->first;
}

/* Learns from a time of which the grant's other processes had part. */
static void learn(const struct gs_segment *segment, double took, enum gs_observed how, uint32_t residents) {
  if (residents > 1)
    gs_segment_learn(segment, took / residents, GS_OBSERVED_SHARED);
  else
    gs_segment_learn(segment, took, how);
}

/* Device time of a segment that ended at `done`, `span` after the previous one. resident: device time available to this
 * process since its first launch. */
static double segment_busy(struct gs_meter *meter, struct gs_queue *queue, const struct gs_mark *mark, uint64_t done,
                           double span, double lag, bool alone, uint32_t residents, double resident) {
  const struct gs_segment *segment = &mark->segment;
  bool trusted = gs_segment_trusted(segment);
  double total = gs_segment_now(segment);
  uint64_t first = begin_of_first(segment);
  double since_first = done > first ? minimum((double)(done - first), span) : 0;
  since_first = maximum(since_first - segment->stalled, 0);
  /* A mark is done a few microseconds later than the clocks show. */
  double most = minimum(span, since_first + GS_METER_PILE_NS);
  if (!alone && trusted) {
    if (resident > 4 * total + GS_METER_LONG_NS)
      gs_segment_distrust(segment);
    return gs_queue_fit(queue, segment, total, most);
  }
  double own = gs_own_time(lag, residents);
  bool late = trusted && gs_mark_late(mark, total, own);
  if (trusted && segment->clouded) {
    if (late)
      gs_meter_surprise(meter, mark->recorded, GS_METER_CAREFUL_NS, own);
    return gs_queue_fit(queue, segment, total, most);
  }
  if (backlogged(segment, total, queue->previous_lag) && backlogged(segment, total, lag) &&
      segment->idle < 0.02 * span && since_first > 0.98 * span) {
    learn(segment, span, GS_OBSERVED_BACKLOGGED, residents);
    return span;
  }
  if ((trusted ? own : lag) > GS_METER_LAG_NS &&
      (!trusted || one_alone(mark) || without_a_gap(mark, since_first, total, lag) ||
       (segment->launches >= GS_METER_MANY && since_first < 0.9 * total))) {
    bool early = one_alone(mark) && gs_is_late(after(mark->expected, mark->recorded_by), lag);
    double off = maximum(since_first - total, total - since_first);
    if (segment->launches == 1 && (early || late))
      gs_meter_surprise(meter, mark->recorded, off, off * maximum(segment->stands, 1));
    else if (late)
      gs_meter_surprise(meter, mark->recorded, GS_METER_CAREFUL_NS, own);
    /* Clocks are compared to a few microseconds only: a difference that small leaves the estimate as it is. */
    if (trusted && one_alone(mark) && since_first - total < GS_METER_PILE_NS && total - since_first < GS_METER_PILE_NS)
      return gs_queue_fit(queue, segment, total, most);
    double busy = segment->launches > 1 ? without_idle(segment, since_first, own) : since_first;
    learn(segment, busy, GS_OBSERVED_ALONE, residents);
    return busy;
  }
  if (trusted && lag > GS_METER_LAG_NS) {
    if (since_first < 0.25 * total)
      gs_segment_distrust(segment);
    if (late)
      gs_meter_surprise(meter, mark->recorded, GS_METER_CAREFUL_NS, own);
    total = measured(mark, late, total, lag, since_first);
    /* from the record of the mark on, the queue was not empty */
    total = maximum(total, minimum(own, span));
  }
  if (trusted)
    return gs_queue_fit(queue, segment, total, most);
  /* No work waited, so these launches took no longer than it took to submit them; an overestimate is lowered so that a
   * sample is taken. */
  double longest = minimum((double)(done - segment->first), span);
  if (alone && total > longest)
    learn(segment, longest, GS_OBSERVED_ALONE, residents);
  double guess = minimum(since_first, total);
  if (alone)
    gs_segment_guessed(segment, guess);
  return guess;
}

/* Work launched before a mark was done at the mark; the rest follows, but not before it was launched, since marks are
 * reaped late. */
static void believe(struct gs_meter *meter, struct gs_queue *queue, uint64_t done) {
  const struct gs_segment *last = &queue->open;
  if (last->launches == 0 && queue->head != queue->tail)
    last = &queue->ring[(queue->head - 1) % GS_METER_RING].segment;
  queue->end = done + (uint64_t)queue->inflight;
  if (last->launches > 0 && queue->end < last->first + (uint64_t)last->estimate)
    queue->end = last->first + (uint64_t)last->estimate;
  uint64_t all = done + (uint64_t)meter->inflight;
  if (all < queue->end)
    all = queue->end;
  if (all < meter->end)
    meter->end = all;
}

void gs_meter_reap(struct gs_meter *meter, struct gs_queue *queue, uint64_t done, uint32_t lease, uint32_t residents) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  uint64_t free = mark->segment.held_until > mark->recorded_by ? mark->segment.held_until : mark->recorded_by;
  double lag = done > free ? (double)(done - free) : 0;
  if (!mark->start && queue->anchored && done > queue->previous_done) {
    double span = (double)(done - queue->previous_done);
    /* Without a lease (the daemon is gone), others are on the device too. */
    bool alone = mark->segment.lease == lease && (lease & GS_METER_HELD) && !mark->segment.shared;
    uint64_t from = mark->segment.first > queue->previous_done ? mark->segment.first : queue->previous_done;
    double resident = gs_meter_resident(meter, from, done, residents);
    bool residency = by_residency(&mark->segment, alone, lag);
    if (!alone)
      note_beside(meter, &mark->segment, after(done, from));
    if (done > from && (residency || known_wrongly(meter, mark, lease, alone, lag, resident))) {
      resident = maximum(resident - mark->segment.stalled, 0);
      if (residency)
        resident = without_idle(&mark->segment, resident, gs_own_time(lag, residents));
      double elapsed = (double)(done - from), part = own_part(meter, &mark->segment, resident / elapsed);
      if (residency && !gs_segment_known_alone(&mark->segment))
        gs_segment_learn(&mark->segment, resident, GS_OBSERVED_SHARED);
      /* All streams together had no more device time. */
      gs_timeline_add(meter, from, done, part * elapsed, part);
    } else {
      double busy = segment_busy(meter, queue, mark, done, span, lag, alone, residents, resident);
      /* It did not begin before its first launch. Spread over the pause before that, it would not coincide with the work
       * of other streams that it waited for, and that would count twice. */
      if (busy > (double)(done - from))
        from = busy < span ? done - (uint64_t)busy : queue->previous_done;
      gs_timeline_add(meter, from, done, busy, 1);
    }
  }
  drop_oldest(meter, queue);
  if (done > meter->done_at)
    meter->done_at = done;
  if (!queue->anchored || done > queue->previous_done)
    queue->previous_done = done;
  queue->anchored = true;
  queue->previous_lag = lag;
  queue->silent = lag > GS_METER_LAG_NS                  ? 0
                  : queue->silent < GS_METER_SILENT_MOST ? queue->silent + 1
                                                         : GS_METER_SILENT_MOST;
  /* A mark done long before it was expected also shows that nothing was waiting. */
  if (lag > GS_METER_LAG_NS || mark->expected > done + GS_METER_LATE_NS)
    believe(meter, queue, done);
}

void gs_meter_lose(struct gs_meter *meter, struct gs_queue *queue, uint64_t now) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  if (queue->anchored && now > queue->previous_done && !mark->start) {
    double span = (double)(now - queue->previous_done);
    gs_timeline_add(meter, queue->previous_done, now, minimum(gs_segment_now(&mark->segment), span), 1);
    queue->previous_done = now;
    queue->previous_lag = 0;
  }
  drop_oldest(meter, queue);
}

void gs_meter_lose_all(struct gs_meter *meter, struct gs_queue *queue, uint64_t now) {
  double want = gs_segment_now(&queue->open);
  uint64_t from = queue->open.first;
  for (uint32_t i = queue->head; i != queue->tail; i--) {
    const struct gs_mark *mark = &queue->ring[(i - 1) % GS_METER_RING];
    if (mark->start)
      continue;
    want += gs_segment_now(&mark->segment);
    from = mark->segment.first;
  }
  if (queue->anchored)
    from = queue->previous_done;
  if (want > 0 && now > from)
    gs_timeline_add(meter, from, now, minimum(want, (double)(now - from)), 1);
  memset(&queue->open, 0, sizeof queue->open);
  while (queue->tail != queue->head)
    drop_oldest(meter, queue);
}
