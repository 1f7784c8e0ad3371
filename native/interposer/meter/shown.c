/* What a mark shows when the device has reached it: when the launches before it were done. */
#include "interposer/meter/shown.h"

#include <string.h>

static void drop_oldest(struct gs_meter *meter, struct gs_queue *queue) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  gs_queue_landed(meter, queue, mark->segment.estimate, mark->segment.unobserved);
  queue->tail++;
  __atomic_store_n(&meter->marks, meter->marks - 1, __ATOMIC_RELAXED);
}

/* When the first kernel began, by a clock that is early by what recording an event takes, as launching does. The driver
 * first loads a function that was never launched, which may take milliseconds. */
static uint64_t begin_of_first(const struct gs_segment *segment) {
  uint64_t took = segment->made > segment->first ? segment->made - segment->first : 0;
  if (segment->stalled > 0 || took == 0) /* `stalled` covers that time */
    return segment->first;
  if (segment->unobserved > 0)
    return segment->made;
  if (took >= GS_METER_LAG_NS)
    return segment->first;
  return segment->made - (took < GS_METER_CLOCK_NS ? took : GS_METER_CLOCK_NS);
}

/* Whether the stream had work from the begin of the segment on, until it was done. */
static bool seen_whole(const struct gs_mark *mark, const struct gs_shown *shown) {
  const struct gs_segment *segment = &mark->segment;
  double mean = shown->total / maximum(segment->launches, 1);
  if (segment->share > GS_METER_MOSTLY && mark->recorded_by <= shown->begin) /* all was launched by then */
    return true;
  if (segment->launches > 1) /* there was more than the last launch to do when the mark was recorded */
    return segment->share > GS_METER_MOSTLY && segment->idle < 0.02 * after(shown->done, shown->begin) &&
           mark->recorded_by - mark->recorded < GS_METER_GAP_NS && shown->lag > GS_METER_LAG_NS &&
           after(mark->expected, shown->recorded) > GS_METER_LAG_NS + 2 * mean;
  /* The thread may have lost its processor before it made the launch, or before it recorded the mark: then the work may
   * have been done long before. */
  uint64_t by = segment->made > segment->first ? segment->made : mark->recorded_by;
  return after(by, segment->first) < GS_METER_GAP_NS &&
         (shown->lag > GS_METER_CLOCK_NS || mark->recorded_by - segment->first < GS_METER_GAP_NS);
}

static struct gs_shown look(const struct gs_meter *meter, const struct gs_queue *queue, const struct gs_mark *mark,
                            uint64_t done, uint32_t lease, uint32_t residents) {
  const struct gs_segment *segment = &mark->segment;
  struct gs_shown shown = {.segment = segment, .done = done, .residents = residents, .charged = mark->charged};
  shown.recorded = segment->held_until > mark->recorded_by ? segment->held_until : mark->recorded_by;
  shown.begin = segment->seen_until ? segment->seen_until : begin_of_first(segment);
  shown.came = shown.begin >= queue->previous_done && segment->seen_until == 0;
  if (shown.begin < queue->previous_done)
    shown.begin = queue->previous_done;
  if (!shown.came) /* the mark itself took some of it; the clock's bound, which is a mark's record, includes that */
    shown.done -= (uint64_t)minimum(meter->event_ns, after(done, shown.begin));
  shown.lag = after(shown.done, shown.recorded);
  shown.total = shown.likely = maximum(gs_segment_now(segment) + segment->excess, 0);
  if (shown.lag <= GS_METER_LAG_NS && !segment->clouded) {
    double room = maximum(after(shown.done, shown.begin) - segment->stalled, 0) + GS_METER_CLOCK_NS;
    shown.likely = gs_segment_within(segment, shown.total, room, shown.done);
  }
  shown.behind = mark->after_all > mark->expected + GS_METER_LAG_NS;
  shown.rest = minimum(after(mark->expected, shown.recorded), shown.total);
  shown.expected = maximum(after(mark->expected, shown.recorded), after(mark->after_all, shown.recorded));
  shown.expected = maximum(shown.expected, shown.total / maximum(segment->launches, 1));
  shown.alone = segment->lease == lease && (lease & GS_METER_HELD) && !segment->shared;
  shown.whole = !segment->clouded && seen_whole(mark, &shown);
  shown.longest = shown.whole && segment->launches == 1 && shown.lag <= GS_METER_CLOCK_NS;
  return shown;
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
  queue->latest = queue->end;
  uint64_t all = done + (uint64_t)meter->inflight;
  if (all < queue->end)
    all = queue->end;
  if (all < meter->end)
    meter->end = all;
}

void gs_meter_reap(struct gs_meter *meter, struct gs_queue *queue, uint64_t done, uint32_t lease, uint32_t residents) {
  const struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  struct gs_shown shown = look(meter, queue, mark, done, lease, residents);
  bool seen = mark->segment.seen_until && mark->segment.launches == 1; /* its bracket has shown it, and it is charged */
  uint64_t expected = mark->expected;
  double weight = mark->segment.weight;
  if (!mark->start && queue->anchored && done > queue->previous_done && shown.done > shown.begin && !seen)
    gs_charge_segment(meter, queue, &shown);
  drop_oldest(meter, queue);
  if (done > meter->done_at)
    meter->done_at = done;
  if (!queue->anchored || done > queue->previous_done)
    queue->previous_done = done;
  queue->anchored = true;
  /* A launch that was chosen, and was alone where that was not known: the next one is bracketed in its place. */
  if (weight > 0 && shown.lag <= GS_METER_LAG_NS && expected > done + GS_METER_LAG_NS)
    queue->again = weight;
  /* A mark done long before it was expected also shows that nothing was waiting. */
  if (shown.lag > GS_METER_LAG_NS || expected > done + GS_METER_CLOCK_NS)
    believe(meter, queue, done);
}

void gs_meter_unready(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, uint32_t residents) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  uint64_t from = mark->recorded_by > queue->previous_done ? mark->recorded_by : queue->previous_done;
  double had, total = gs_segment_now(&mark->segment);
  if (mark->start || mark->segment.clouded || now <= from)
    return;
  had = gs_siblings_left(gs_meter_had(meter, from, now, false, 0).least, residents);
  /* what is only a little late is charged when the mark is done */
  if (had < 2 * GS_METER_SLICE_NS || !gs_is_late(had, after(mark->after_all, from) + total))
    return;
  if (had > mark->charged)
    mark->charged += gs_timeline_fill(meter, from, now, had - mark->charged);
}

void gs_meter_lose(struct gs_meter *meter, struct gs_queue *queue, uint64_t now) {
  struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
  if (queue->anchored && now > queue->previous_done && !mark->start) {
    double span = (double)(now - queue->previous_done);
    gs_timeline_add(meter, queue->previous_done, now, minimum(gs_segment_now(&mark->segment), span), 1);
    queue->previous_done = now;
  }
  drop_oldest(meter, queue);
}

/* Adds a segment to the open one, before its launches. */
static void join(struct gs_segment *open, const struct gs_segment *segment, double charged) {
  open->other += maximum(gs_segment_now(segment) + segment->excess - charged, 0);
  open->guessed |= !gs_segment_trusted(segment);
  open->stalled += segment->stalled;
  if (open->launches == 0 || segment->first < open->first)
    open->first = segment->first;
  open->launches += segment->launches;
}

void gs_meter_lose_all(struct gs_meter *meter, struct gs_queue *queue, uint64_t now, struct gs_waited waited) {
  struct gs_segment *open = &queue->open;
  for (; queue->tail != queue->head; drop_oldest(meter, queue)) {
    const struct gs_mark *mark = &queue->ring[queue->tail % GS_METER_RING];
    if (!mark->start)
      join(open, &mark->segment, mark->charged);
  }
  if (open->launches == 0)
    return;
  if (!queue->anchored)
    queue->previous_done = open->first;
  queue->anchored = true;
  if (!gs_segment_trusted(open)) { /* of unknown length: as long as nobody saw that they were done */
    uint64_t from = open->first > queue->previous_done ? open->first : queue->previous_done;
    double had = gs_meter_likely(meter, from, now, waited.residents) - open->stalled;
    gs_timeline_add(meter, from, now, maximum(had, 0), minimum(maximum(had, 0) / maximum(after(now, from), 1), 1));
    memset(open, 0, sizeof *open);
    waited = (struct gs_waited){0};
  }
  gs_meter_synced(meter, queue, now, waited);
}
