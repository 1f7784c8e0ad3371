/* Brackets: one launch between two events, and what that shows of it. */
#include <stddef.h>

#include "interposer/meter/lengths.h"

void gs_meter_sampling(struct gs_queue *queue, struct gs_function *function, uint32_t plan, uint64_t planned,
                       uint64_t began, uint64_t ended, uint64_t closed, enum gs_held held) {
  /* The device was idle until it had the launch, or until it was no longer held; but for the work before it. */
  uint64_t before = queue->end - (uint64_t)minimum(function->estimate, (double)queue->end);
  queue->sampled_idle = before > planned ? before : planned;
  double idle = plan & GS_PLAN_HOLD ? after(held == GS_HELD ? closed : ended, queue->sampled_idle) : 0;
  queue->sampled_held = held;
  queue->sampled_key = function->key;
  queue->sampled_host = (double)(ended - began);
  queue->sampled_whole = (double)(closed - planned);
  queue->sampled_from = planned;
  queue->sampled_ended = ended;
  queue->sampled_closed = closed;
  __atomic_store_n(&queue->sampled, function, __ATOMIC_RELEASE);
  __atomic_store_n(&queue->bracketing, false, __ATOMIC_RELEASE);
  queue->open.bracketed = planned;
  queue->sampled_first = queue->open.launches == 1;
  queue->open.held_until = 0;
  queue->open.stalled += idle;
  queue->end += (uint64_t)idle;
}

/* The segment of the bracketed launch; NULL: its mark was done before. */
static struct gs_segment *segment_of(struct gs_queue *queue) {
  struct gs_segment *segment = &queue->open;
  for (uint32_t i = queue->head; segment->bracketed != queue->sampled_from && i != queue->tail; i--)
    segment = &queue->ring[(i - 1) % GS_METER_RING].segment;
  return segment->bracketed == queue->sampled_from ? segment : NULL;
}

/* Whether other streams had launches during the bracket, which was over by `done`. */
static bool joined(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t done) {
  return meter->sampling != queue || (meter->joined > 0 && meter->joined < done);
}

/* Whether other streams' work may be in what a bracket shows: they had launches shortly before it, or since. Those before
 * are no matter if all that was launched then is known to be done. But where launches since are common, short samples
 * have fewer of them, and to count these alone would favour them: then those before count as well. */
static bool disturbed(struct gs_meter *meter, const struct gs_queue *queue, bool since) {
  enum { COMMON = 8 /* one in so many */ };
  if (queue->sampled_clear)
    meter->mixed += ((since ? 1 : 0) - meter->mixed) / (2 * COMMON);
  if (queue->sampled_clear && COMMON * meter->mixed < 1)
    return since;
  return since || queue->sampled_other + 2 * GS_METER_GAP_NS > queue->sampled_from;
}

/* What a launch can have taken whose bracket's stream was held too briefly: it may have begun after the first event was
 * reached, until its call returned, and ended before the second one was recorded. */
static double least_briefly(const struct gs_queue *queue, double elapsed, uint64_t begun) {
  if (!begun || begun + (uint64_t)elapsed < queue->sampled_closed + GS_METER_LAG_NS)
    return 0;
  return maximum(elapsed - after(queue->sampled_ended, begun), 0);
}

/* What a bracket showed. */
struct sample {
  double took;
  uint64_t begun; /* when the device reached it; 0: not known */
  bool slice;     /* the launch was there when the first event was reached, so it began in a slice of this process */
  bool held;      /* the time is the launch's */
  bool own;       /* and that of no other stream */
  bool shared;    /* others had a part of it */
  bool partial;   /* it does not show how long launches are on average */
  bool bounded;   /* the launch took no longer than that */
};

/* The launch is charged by what was seen of it until `done`, and no more by estimate. */
static void seen_until(const struct gs_queue *queue, struct gs_segment *segment, const struct gs_function *function,
                       uint64_t done) {
  if (!segment)
    return;
  gs_segment_without(segment, function);
  if (!queue->sampled_first)
    return;
  segment->seen_until = done;
  segment->stalled = 0;
}

/* The launch took `took` ns until `done`. It is charged that, in place of what it was charged while it was only seen at
 * work (gs_meter_had_work). alone: no other stream can have had work before it. If one had, the launch may have waited
 * for that, which is not charged a second time. */
static void charge_launch(struct gs_meter *meter, struct gs_queue *queue, struct gs_segment *segment, uint64_t done,
                          double took, bool alone) {
  bool seen = segment == &queue->open && segment->launches == 1 && queue->seen_to > queue->sampled_from;
  if (seen && alone) {
    gs_timeline_fill(meter, done - (uint64_t)took, done, took - queue->seen_charged);
    gs_meter_refund(meter, queue->seen_charged - took);
  } else {
    gs_timeline_add(meter, done - (uint64_t)took, done, took, 1);
  }
  if (!seen)
    return;
  segment->excess += queue->seen_charged;
  queue->seen_from = queue->seen_to;
  queue->seen_ns = queue->seen_charged = 0;
}

/* What the launch took. Others may have been on the device meanwhile. A stream that was held reaches the first event in
 * a time slice of this process, and the launch follows at once: a short one is done before the slice is. For any other
 * its length decides within bounds. */
static void look_beside(const struct gs_meter *meter, const struct gs_queue *queue, const struct gs_function *function,
                        uint32_t residents, struct sample *sample) {
  enum { SLICE_NS = GS_METER_SLICE_NS / 10 * 7 }; /* of the shortest one */
  double elapsed = sample->took;
  struct gs_had had = {elapsed, elapsed, elapsed, 0, false};
  if (sample->begun) {
    uint64_t done = sample->begun + (uint64_t)elapsed;
    double estimate = gs_function_about(meter, function, 1, sample->begun, done);
    had = gs_meter_had(meter, sample->begun, done, !sample->slice, estimate);
  } else if (queue->sampled_shared) {
    had = (struct gs_had){0, elapsed, minimum(function->estimate, elapsed), elapsed, false};
  }
  sample->shared = had.beside >= GS_METER_CLOCK_NS || residents > 1;
  /* Of launches about as long as a slice, the shorter ones are seen better, which would make the mean too short. */
  sample->partial = sample->shared && function->exact && 2 * function->estimate > SLICE_NS;
  if (sample->slice && elapsed < SLICE_NS)
    sample->shared = false;
  if (sample->shared)
    sample->took = had.likely;
}

/* Until when the bracket held the stream, and the device with it. */
static void note_hold(struct gs_queue *queue, struct gs_segment *segment, uint64_t begun) {
  uint64_t closed = queue->sampled_closed;
  if (!segment || begun <= closed || begun - closed >= GS_METER_GAP_NS)
    return;
  segment->held_until = begun; /* longer than the host's calls took */
  segment->stalled += after(begun, closed > queue->sampled_idle ? closed : queue->sampled_idle);
  queue->end += begun - closed;
}

/* Teaches the function's mean, and charges for others like it that nobody saw. */
static void learn_sample(struct gs_meter *meter, const struct gs_queue *queue, struct gs_function *function,
                         const struct sample *sample, double elapsed, bool far) {
  double missed = sample->took - function->estimate, weight = queue->sampled_weight;
  if (function->observed >= GS_METER_TRUSTED && !sample->shared &&
      -missed > function->estimate / 2 + GS_METER_KNEE * function->spread)
    gs_purse_found(meter, -missed * weight); /* others like it were charged too much */
  if (far) {
    gs_purse_found(meter, missed * weight);
    if (sample->own && !sample->shared)
      gs_function_classify(function, sample->took, weight);
    if (sample->own)
      gs_charge_unseen(meter, queue->sampled_from, missed * (weight - 1));
  } else if (sample->partial) {
    return;
  } else if (sample->shared && elapsed > GS_METER_UNSLICED_NS && !function->exact) {
    function->shared = true; /* how long it is follows only from what it had beside others */
  } else if (sample->bounded && !sample->shared && elapsed < function->estimate) {
    gs_function_learn(function, elapsed, weight, false); /* without these the mean would be too long */
  } else if (sample->shared ? !function->exact
                            : sample->own || (!function->exact && missed < GS_METER_KNEE * function->estimate)) {
    gs_function_learn(function, sample->took, weight, sample->own && !sample->shared);
  }
}

/* What the time between the two events shows by itself. */
static struct sample look(const struct gs_queue *queue, const struct gs_function *function, double elapsed,
                          uint64_t begun) {
  bool held = queue->sampled_held == GS_HELD, briefly = queue->sampled_held == GS_HELD_BRIEFLY;
  if (queue->sampled_held == GS_NOT_HELD) /* the device waited in between while the launch was made */
    elapsed = maximum(elapsed - queue->sampled_host, 0);
  double least = briefly ? least_briefly(queue, elapsed, begun) : elapsed;
  struct sample sample = {.took = elapsed, .begun = begun};
  sample.slice = held || (begun && begun >= queue->sampled_ended);
  sample.held = held || (briefly && 16 * (elapsed - least) < elapsed) ||
                (begun && 16 * after(queue->sampled_closed, begun) < elapsed);
  sample.bounded = briefly && !sample.held;
  if (sample.bounded && function && function->observed > 0)
    sample.took = minimum(maximum(gs_function_within(function, elapsed), least), elapsed);
  return sample;
}

void gs_meter_sampled(struct gs_meter *meter, struct gs_queue *queue, double elapsed_ns, uint64_t begun,
                      uint32_t residents) {
  struct gs_function *function = queue->sampled;
  struct gs_segment *segment = segment_of(queue);
  struct sample sample = look(queue, function, maximum(elapsed_ns, 0), begun);
  double elapsed = sample.took;
  uint64_t done = begun + (uint64_t)elapsed;
  bool seen = begun && sample.held;
  bool since = joined(meter, queue, begun ? done + GS_METER_CLOCK_NS : UINT64_MAX);
  sample.own = sample.held && !disturbed(meter, queue, since);
  __atomic_store_n(&queue->sampled, NULL, __ATOMIC_RELEASE);
  /* The program also waits while the stream is held. */
  gs_meter_bracketed(meter, queue->sampled_whole - queue->sampled_host +
                                (sample.held ? minimum(after(begun, queue->sampled_closed), GS_METER_LAG_NS) : 0));
  if (sample.held)
    note_hold(queue, segment, begun);
  if (seen && queue->planned == queue->sampled_from && queue->repeated == 0 && segment == &queue->open)
    queue->bracket_done = done;
  if (!function || function->key != queue->sampled_key)
    return;
  look_beside(meter, queue, function, residents, &sample);
  bool known = function->observed >= GS_METER_TRUSTED;
  bool delayed = residents > 1 && known && sample.shared && gs_is_late(sample.took, function->estimate);
  if (delayed) {
    if (seen)
      gs_siblings_note(meter, (struct gs_among){.from = begun,
                                                .to = done,
                                                .pending = sample.took,
                                                .own = maximum(function->estimate, queue->seen_charged),
                                                .residents = residents,
                                                .weight = queue->sampled_weight,
                                                .came = !sample.slice});
    sample.took = function->estimate;
  }
  bool far = !delayed && gs_function_far(function, sample.took);
  if (seen && (known || !sample.shared) && (far || delayed || queue->sampled_first)) {
    charge_launch(meter, queue, segment, done, sample.took, queue->sampled_clear && !since);
    queue->run = (struct gs_run){begun, done, sample.took, !sample.slice};
    seen_until(queue, segment, function, done);
  } else if ((sample.own || (sample.bounded && sample.took < function->estimate)) && segment && known) {
    gs_segment_without(segment, function);
    segment->other += sample.took;
  }
  if (delayed)
    return;
  if (sample.own && !sample.shared && !far)
    gs_function_seen(function, sample.took, queue->sampled_burst);
  learn_sample(meter, queue, function, &sample, elapsed, far);
}
