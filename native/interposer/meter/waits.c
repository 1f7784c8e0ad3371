/* What waits of the program show when they end. */
#include <string.h>

#include "interposer/meter/lengths.h"

enum { ASK = 8 /* so many waits are marked after one that was late, nobody knows why */ };

bool gs_meter_check_before_sync(const struct gs_meter *meter, const struct gs_queue *queue) {
  return meter->ask > 0 ? queue->open.launches > 0 : queue->open.launches > 1 && !gs_segment_trusted(&queue->open);
}

/* The part of the delay of a wait for which the device worked, by what marks have shown of others: the thread may have
 * had no processor to return on. What is not known counts as work. */
static double worked(const struct gs_meter *meter, double late) {
  double first = minimum(late, GS_METER_GAP_NS);
  return late * (meter->worked + first) / (meter->late + first);
}

/* When the stream was done with all its work, if a mark or a bracket has shown that; 0: not known. *from: it shows
 * nothing of the time before; *expected: when that was expected. A mark shows nothing of the time until the call that
 * recorded it returned, in which the thread may have lost its processor; nor of a wait for a copy. */
static uint64_t shown_done(const struct gs_queue *queue, uint64_t *from, uint64_t *expected) {
  const struct gs_mark *mark = &queue->ring[(queue->tail - 1) % GS_METER_RING];
  *from = queue->sampled_closed;
  *expected = queue->end;
  if (__atomic_load_n(&queue->clouded, __ATOMIC_RELAXED))
    return 0;
  if (queue->open.launches > 0 && queue->repeated == 0)
    return queue->bracket_done;
  if (queue->open.launches > 0 || queue->tail == 0 || mark->start || mark->segment.clouded ||
      __atomic_load_n(&mark->state, __ATOMIC_ACQUIRE) != GS_MARK_RECORDED)
    return 0;
  *from = mark->recorded_by;
  *expected = mark->expected;
  return queue->previous_done;
}

/* The wait returned at `until`, and the work was done at `done`. Of the time before that, only what was without others
 * counts: a wait that is late beside them is so because of their work. */
static void learn_return(struct gs_meter *meter, struct gs_waited waited, uint64_t from, uint64_t expected_at,
                         uint64_t done) {
  if (from < waited.began)
    from = waited.began;
  double expected = after(expected_at, from), worked = maximum(gs_meter_exclusive(meter, from, done) - expected, 0);
  double late = worked + after(waited.until, done > from ? done : from);
  if (waited.residents > 1) /* the work may have waited for theirs: siblings.c */
    late -= worked, worked = 0;
  if (!waited.returned || !gs_is_late(late + expected, expected))
    return;
  gs_meter_late(meter, late, worked);
}

/* Adds what a wait has shown. Returns false if it lasted as long as expected, and so shows nothing. ours: when it began,
 * the device did work of this process. */
static bool add_wait(struct gs_meter *meter, const struct gs_queue *queue, struct gs_waited waited, bool ours) {
  uint64_t end = gs_queue_latest(queue, waited.began);
  if (end < meter->end) /* other streams may have had the device first */
    end = meter->end;
  double expected = after(end, waited.began), took;
  if (waited.until <= waited.began)
    return false;
  took = ours ? gs_meter_had(meter, waited.began, waited.until, false, expected).least
              : gs_meter_exclusive(meter, waited.began, waited.until);
  if (!gs_is_late(took, expected))
    return false;
  if (waited.returned) {
    took = expected + worked(meter, took - expected);
    meter->ask = ASK;
  }
  if (waited.residents > 1) {
    if (!__atomic_load_n(&queue->clouded, __ATOMIC_RELAXED))
      gs_siblings_note(meter, (struct gs_among){.from = waited.began,
                                                .to = waited.until,
                                                .pending = took,
                                                .own = expected,
                                                .residents = waited.residents,
                                                .came = true});
    return false;
  }
  gs_purse_found(meter, took - expected - GS_METER_KNEE * (queue->recent ? queue->recent->estimate : 0));
  if (__atomic_load_n(&queue->clouded, __ATOMIC_RELAXED))
    return false;
  gs_timeline_add(meter, waited.began, waited.until, took, took / (double)(waited.until - waited.began));
  return true;
}

void gs_meter_seen_busy(struct gs_meter *meter, const struct gs_queue *queue, struct gs_waited waited) {
  const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
  bool marks = queue->head != queue->tail;
  if (marks && (oldest->start || __atomic_load_n(&oldest->state, __ATOMIC_ACQUIRE) == GS_MARK_RECORDED))
    return; /* the mark shows more, and when */
  /* The thread may have got no processor for long after the work was done. The last mark shows when the stream was done
   * with all that came before it; nothing was launched since, or only after that and after the wait began. */
  const struct gs_segment *next = marks ? &oldest->segment : &queue->open;
  uint64_t done = queue->previous_done;
  if (queue->anchored && (next->launches == 0 || (next->first > done && next->first > waited.began)) &&
      waited.until > done)
    waited.until = done;
  add_wait(meter, queue, waited, false);
}

/* What is certain is charged at once; the rest when the segment has ended. */
void gs_meter_had_work(struct gs_meter *meter, struct gs_queue *queue, uint64_t from, uint64_t to) {
  if (from != queue->seen_to) {
    queue->seen_from = from;
    queue->seen_ns = queue->seen_charged = 0;
  }
  double had = gs_meter_had(meter, queue->seen_from, to, true, 0).least;
  double more = gs_siblings_left(had, meter->residents) - queue->seen_ns;
  queue->seen_to = to;
  if (more <= 0)
    return;
  double charged = gs_timeline_fill(meter, queue->seen_from, to, more);
  queue->seen_ns += more;
  queue->seen_charged += charged;
  queue->open.excess -= charged;
}

/* The stream was seen at work out of the marks' sight, with launches of unknown length: the rest of its residency. */
static void charge_seen(struct gs_meter *meter, struct gs_queue *queue, uint32_t residents) {
  double rest = gs_meter_resident(meter, queue->seen_from, queue->seen_to, residents) - queue->seen_ns;
  if (queue->seen_to > 0 && rest > 0 && !gs_segment_trusted(&queue->open))
    queue->open.excess -= gs_timeline_fill(meter, queue->seen_from, queue->seen_to, rest);
  queue->seen_to = 0;
}

/* Charges the open segment, of which a wait has shown that it is done. */
static void charge_open(struct gs_meter *meter, struct gs_queue *queue, uint64_t from, uint64_t now,
                        struct gs_waited waited) {
  const struct gs_segment *open = &queue->open;
  double total = maximum(gs_segment_now(open) + open->excess, 0), rest;
  bool ours = open->first < queue->previous_done && waited.began <= queue->previous_done;
  if (waited.began < from)
    waited.began = from;
  rest = minimum(after(gs_queue_latest(queue, waited.began), waited.began), total);
  if (add_wait(meter, queue, waited, ours)) {
    total -= rest;
    now = waited.began;
  } else if (after(waited.until, waited.began) + GS_METER_CLOCK_NS < rest) { /* done sooner than expected */
    total = gs_segment_within(open, total, after(now, from), now);
  }
  if (now > from)
    gs_timeline_fill(meter, from, now, gs_meter_fit(meter, open, total, 0, (double)(now - from)));
}

void gs_meter_synced(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, struct gs_waited waited) {
  const struct gs_segment *open = &queue->open;
  uint64_t from = open->first > queue->previous_done ? open->first : queue->previous_done;
  uint64_t shown_from, expected, done = shown_done(queue, &shown_from, &expected);
  if (done > 0) {
    learn_return(meter, waited, shown_from, expected, done);
    if (waited.until > done)
      waited.until = done;
  }
  if (open->seen_until > from)
    from = open->seen_until;
  charge_seen(meter, queue, meter->residents);
  if (open->launches > (open->seen_until > 0) && queue->anchored && now > from)
    charge_open(meter, queue, from, now, waited);
  gs_meter_waited(meter, now);
  meter->ask -= meter->ask > 0;
  gs_meter_settle(meter, now);
  gs_queue_landed(meter, queue, queue->inflight, queue->unobserved);
  if (meter->inflight < 1)
    meter->end = now;
  memset(&queue->open, 0, sizeof queue->open);
  __atomic_store_n(&queue->clouded, false, __ATOMIC_RELAXED);
  queue->anchored = true;
  queue->launched_before = meter->launched;
  queue->previous_done = now;
  queue->end = queue->latest = queue->closed = now;
  queue->repeated_ns = 0;
}
