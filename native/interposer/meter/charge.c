/* How a segment whose mark was done is charged, and what it teaches. */
#include "interposer/meter/shown.h"

#include <stddef.h>

/* A launch shorter than the mean of its function may have no room for the estimate; the next longer one has, so a few
 * launches' worth is carried over. A larger remainder is not by chance: the estimate is wrong. No launch is that much
 * longer than the mean, so a segment makes up for a part of it only. */
double gs_meter_fit(struct gs_meter *meter, const struct gs_segment *segment, double estimate, double least,
                    double room) {
  double each = estimate / maximum(segment->launches, 1);
  double spread = segment->kinds == 1 ? segment->kind[0].function->spread : each;
  double made_up = minimum(meter->balance, 2 * segment->launches * minimum(spread, each));
  double took = minimum(maximum(estimate + made_up, least), room);
  meter->balance = maximum(minimum(estimate + meter->balance - took, GS_METER_KNEE * spread), 0);
  return took;
}

void gs_charge_unseen(struct gs_meter *meter, uint64_t to, double missed) {
  uint64_t from = meter->unseen_since > meter->forgotten ? meter->unseen_since : meter->forgotten;
  if (to > 0 && to < meter->unseen_until && missed > 0)
    gs_timeline_add(meter, from, to, missed, 1);
}

/* Learns from a segment that was seen whole, and took `took` ns. */
static void learn_whole(struct gs_meter *meter, const struct gs_shown *shown, double took) {
  const struct gs_segment *segment = shown->segment;
  struct gs_function *function = gs_segment_function(segment);
  double missed = took - shown->total, weight = maximum(segment->weight, 1);
  uint32_t n = segment->launches - (segment->seen_until > 0);
  if (shown->residents > 1 || !function || shown->behind) /* others may have had a part of it */
    return;
  if (gs_function_far(function, missed + function->estimate)) { /* one of them was */
    gs_purse_found(meter, n == 1 ? missed * weight : missed);
    if (n == 1) {
      gs_function_classify(function, took, weight);
      gs_charge_unseen(meter, segment->first, missed * (weight - 1));
    }
  } else if (n > 1 || took > GS_METER_GAP_NS || !shown->came) { /* else clocks are not exact enough */
    gs_function_seen(function, took / n, segment->burst);
    gs_function_learn(function, took / n, n > 1 ? n : weight, n == 1);
  }
}

/* Charges `took` ns that ended at `done`. They began a little before `begin` if clocks say so, but not before the
 * previous work was done. Other streams' work may be what was seen there before. */
static void charge(struct gs_meter *meter, const struct gs_queue *queue, const struct gs_shown *shown, uint64_t begin,
                   uint64_t done, double took) {
  took -= minimum(shown->charged, took);
  if (took > after(done, begin)) {
    begin = done - (uint64_t)took > queue->previous_done ? done - (uint64_t)took : queue->previous_done;
    done = begin + (uint64_t)took;
  }
  if (shown->segment->share < GS_METER_MOSTLY)
    gs_timeline_add(meter, begin, done, took, 1);
  else
    gs_timeline_fill(meter, begin, done, took);
}

/* Work that took so much longer than expected that it is worth looking for more of its kind. Lengths that the mean
 * stands for do not count. */
static void found_late(struct gs_meter *meter, const struct gs_shown *shown, double took) {
  gs_purse_found(meter,
                 took - shown->expected - GS_METER_GAP_NS - GS_METER_KNEE * shown->total / shown->segment->launches);
}

static bool is_late(const struct gs_shown *shown, double took) { /* small errors of many launches add up */
  return gs_is_late(took, shown->expected + shown->total / 4);
}

/* What a segment took was seen, so what it took beyond its estimate need not be made up for any more. */
static void balance_seen(struct gs_meter *meter, const struct gs_shown *shown, double took) {
  meter->balance = maximum(meter->balance - maximum(took - shown->total, 0), 0);
}

/* Launches of unknown length. Beside others they are charged their likely part of the time. */
static void charge_unknown(struct gs_meter *meter, const struct gs_shown *shown) {
  enum { LONG_NS = 4 * GS_METER_SLICE_NS }; /* an even part of it is right but for one slice */
  const struct gs_segment *segment = shown->segment;
  double time = maximum(after(shown->done, shown->begin) - segment->stalled, 0);
  double resident = gs_meter_likely(meter, shown->begin, shown->done, shown->residents) - segment->stalled;
  double room = shown->alone ? time : maximum(resident, 0), part = room / maximum(time, 1);
  if (shown->lag > GS_METER_LAG_NS && !segment->clouded) {
    double least = maximum(maximum(room - segment->idle, shown->total), shown->lag * part);
    gs_segment_learn(segment, minimum(least, room), !shown->alone);
    double rest = maximum(minimum(least, room) - shown->charged, 0), charged = shown->charged;
    charged += gs_timeline_add(meter, shown->begin, shown->done, rest, charged > 0 ? 1 : part);
    if (!shown->alone && after(shown->done, shown->begin) <= LONG_NS)
      gs_meter_settle_later(meter,
                            (struct gs_unsettled){shown->begin, shown->done, *segment, shown->came, true, charged});
    return;
  }
  /* No work waited, so these launches took no longer than it took to submit them; an overestimate is lowered so that a
   * bracket is taken. */
  double guess = minimum(time, shown->total), longest = after(shown->done, segment->first);
  if (shown->alone && shown->total > longest)
    gs_segment_learn(segment, longest, false);
  gs_timeline_add(meter, shown->begin, shown->done, guess, 1);
}

/* The stream was seen at work after `recorded` only. What it did before is charged by estimate. */
static void charge_end(struct gs_meter *meter, struct gs_queue *queue, const struct gs_shown *shown, double room) {
  const struct gs_segment *segment = shown->segment;
  uint64_t from = shown->recorded > shown->begin ? shown->recorded : shown->begin;
  double seen = after(shown->done, from), total = shown->likely, rest, clock = 0;
  bool late = is_late(shown, seen);
  if (seen <= GS_METER_LAG_NS) {
    rest = seen = 0;
    from = shown->done;
    clock = GS_METER_CLOCK_NS;
  } else if (segment->share < GS_METER_MOSTLY) {
    /* Other streams worked as well, in the part that was seen and before. The 0.2 is what makes the model right: work
     * before it overlaps more than by chance, since the device has work as long as any stream waits. */
    rest = maximum(late ? shown->rest : 0, total * (0.2 + 0.8 * seen / after(shown->done, shown->begin)));
  } else {
    rest = late ? shown->rest : seen;
  }
  gs_timeline_add(meter, from, shown->done, seen, 1);
  charge(meter, queue, shown, shown->begin, from,
         gs_meter_fit(meter, segment, maximum(total - rest, 0), 0, maximum(room - seen, 0) + clock));
}

/* The lengths of its launches are known, and only other processes of the grant may have been on the device as well. */
static void charge_among(struct gs_meter *meter, const struct gs_shown *shown, double room) {
  const struct gs_segment *segment = shown->segment;
  uint64_t from = shown->whole || shown->recorded < shown->begin ? shown->begin : shown->recorded;
  double took = gs_meter_fit(meter, segment, shown->likely, 0, room + GS_METER_CLOCK_NS);
  double left = took - minimum(shown->charged, took), pending = after(shown->done, from);
  /* At its end, if that is not theirs: they may have had slices in between. */
  uint64_t last = shown->done - (uint64_t)minimum(left, after(shown->done, shown->begin));
  if (segment->share < GS_METER_MOSTLY)
    left -= gs_timeline_add(meter, last, shown->done, left, 1);
  else
    left -= gs_timeline_fill(meter, last, shown->done, left);
  gs_timeline_add(meter, shown->begin, last, left, 1);
  if (shown->longest || segment->clouded)
    return;
  struct gs_among one = {.from = from, .to = shown->done, .pending = pending};
  if (shown->whole)
    one.pending -= segment->stalled;
  one.own = maximum(shown->whole ? took : minimum(took, shown->rest), shown->charged);
  one.residents = shown->residents;
  one.came = shown->came;
  one.weight = segment->launches == 1 ? maximum(segment->weight, 1) : 1;
  struct gs_function *function = gs_segment_function(segment);
  uint32_t n = segment->launches - (segment->seen_until > 0);
  if (function && shown->whole && !shown->came)
    one.whole = (struct gs_kind){function, function->key, n};
  gs_siblings_note(meter, one);
}

/* The last of several launches was chosen out of many, onto a stream that was believed to be empty, and was far longer than
 * was known: those that it stands for may have been, too. */
static void charge_like_last(struct gs_meter *meter, const struct gs_shown *shown) {
  const struct gs_segment *segment = shown->segment;
  double missed = shown->lag - shown->expected, mean = shown->total / segment->launches;
  if (segment->launches > 1 && segment->onto_empty && !shown->whole && !segment->clouded && !shown->behind &&
      gs_segment_function(segment) && missed > maximum(GS_METER_KNEE * mean, GS_METER_GAP_NS))
    gs_charge_unseen(meter, segment->last, missed * (segment->weight - 1));
}

/* The lengths of its launches are known, and the process had the device alone: it took as long as was seen. */
static void charge_alone(struct gs_meter *meter, struct gs_queue *queue, const struct gs_shown *shown) {
  const struct gs_segment *segment = shown->segment;
  double room = maximum(after(shown->done, shown->begin) - segment->stalled, 0), off = room - shown->total;
  bool same = segment->launches == 1 && off < GS_METER_CLOCK_NS && -off < GS_METER_CLOCK_NS;
  if (shown->residents > 1) {
    charge_among(meter, shown, room);
    return;
  }
  if (is_late(shown, shown->lag)) {
    found_late(meter, shown, shown->lag);
    charge_like_last(meter, shown);
  }
  if (shown->longest) {
    charge(meter, queue, shown, shown->begin, shown->done, minimum(shown->likely, room + GS_METER_CLOCK_NS));
  } else if (segment->clouded || (shown->whole && same)) {
    charge(meter, queue, shown, shown->begin, shown->done,
           gs_meter_fit(meter, segment, shown->total, 0, room + GS_METER_CLOCK_NS));
  } else if (shown->whole) {
    charge(meter, queue, shown, shown->begin, shown->done, room);
    balance_seen(meter, shown, room);
  } else {
    charge_end(meter, queue, shown, room);
  }
  if (shown->whole) /* where its mean is too short, launches behind the program's back would not be looked for */
    learn_whole(meter, shown, room);
}

/* Others were on the device, or may have been: what was seen bounds the estimate. */
static void charge_beside(struct gs_meter *meter, struct gs_queue *queue, const struct gs_shown *shown) {
  const struct gs_segment *segment = shown->segment;
  uint64_t from = shown->whole || shown->recorded < shown->begin ? shown->begin : shown->recorded;
  double before = shown->whole ? 0 : maximum(shown->likely - shown->rest, 0), rest = shown->likely - before;
  double room = shown->whole ? 0 : maximum(after(from, shown->begin) - segment->stalled, 0), took;
  double stalled = shown->whole ? segment->stalled : 0;
  if (from > shown->done)
    from = shown->done;
  struct gs_had had = gs_run_had(meter, queue, shown, from, rest + stalled);
  bool late = !shown->longest && is_late(shown, had.least);
  bool unsliced =
      !shown->came && had.most < GS_METER_UNSLICED_NS && GS_METER_KNEE * shown->total < GS_METER_UNSLICED_NS;
  bool within = shown->longest && had.beside < GS_METER_CLOCK_NS && shown->total < had.most - stalled;
  if (late)
    found_late(meter, shown, had.least);
  if (!late && shown->whole && shown->came && gs_meter_beside(meter)) {
    gs_meter_settle_later(meter, (struct gs_unsettled){shown->begin, shown->done, *segment, true, false, 0});
    return;
  }
  if (segment->clouded)
    took = gs_meter_fit(meter, segment, shown->total, 0, room + had.most);
  else if (late)
    took = minimum(before, room) + had.likely;
  else if (within)
    took = shown->likely;
  else if (shown->whole && had.beside < GS_METER_CLOCK_NS)
    balance_seen(meter, shown, took = maximum(had.most - stalled, 0));
  else if (shown->whole && had.about && had.beside >= GS_METER_SLICE_NS)
    took = maximum(had.likely - stalled, 0); /* one length is no deviation from the mean that others make up for */
  else
    took = gs_meter_fit(meter, segment, shown->likely, maximum(had.likely - stalled, 0),
                        room + maximum(had.most - stalled, 0));
  if (shown->whole && !within && (had.beside < GS_METER_CLOCK_NS || unsliced))
    learn_whole(meter, shown, took);
  else if (shown->whole && !shown->came && had.least > 0.7 * had.most && gs_segment_function(segment))
    gs_function_seen(gs_segment_function(segment), took / (segment->launches - (segment->seen_until > 0)),
                     segment->burst);
  charge(meter, queue, shown, shown->begin, shown->done, took);
  if (shown->whole) {
    queue->run.to = shown->done;
    queue->run.charged += took;
  }
}

void gs_charge_segment(struct gs_meter *meter, struct gs_queue *queue, const struct gs_shown *shown) {
  if (shown->alone ? !gs_segment_trusted(shown->segment) : !gs_segment_known_alone(shown->segment))
    charge_unknown(meter, shown);
  else if (shown->alone)
    charge_alone(meter, queue, shown);
  else
    charge_beside(meter, queue, shown);
  if (shown->lag > GS_METER_LAG_NS)
    gs_segment_supports(shown->segment);
  else
    gs_segment_refutes(shown->segment, maximum(after(shown->done, shown->begin) - shown->segment->stalled, 0));
}
