/* Launches, and the marks that are recorded behind them. */
#include <stddef.h>
#include <string.h>

#include "interposer/meter/lengths.h"

enum { LOST_NS = 1000000000 /* a bracket still open after this time: its thread has ended */ };

static void count_kind(struct gs_segment *segment, struct gs_function *function, double estimate, uint32_t n) {
  uint32_t i;
  for (i = 0; i < segment->kinds; i++)
    if (segment->kind[i].function == function && segment->kind[i].key == function->key)
      break;
  if (i == GS_METER_KINDS) {
    segment->other += estimate;
    segment->guessed |= function->observed < GS_METER_TRUSTED;
    return;
  }
  if (i == segment->kinds) {
    segment->kind[i] = (struct gs_kind){function, function->key, 0};
    segment->kinds++;
  }
  segment->kind[i].launches += n;
}

/* Notes that the queue has the last launch, made at `at`. */
static void note_latest(struct gs_meter *meter, const struct gs_queue *queue, uint64_t at) {
  if (meter->latest != queue) {
    meter->latest = queue;
    meter->other_at = meter->latest_at;
    meter->others_end = meter->others_end > meter->latest_end ? meter->others_end : meter->latest_end;
    if (meter->sampling != queue && meter->joined == 0)
      meter->joined = at;
  }
  meter->latest_at = at;
  meter->latest_end = queue->end;
}

/* The first launch of the open segment is made at `at`, or later. */
static void begin_segment(struct gs_meter *meter, struct gs_queue *queue, uint64_t at) {
  queue->open.first = at;
  queue->open.lease = meter->lease;
  queue->open.burst = gs_meter_burst(meter, at);
  queue->open.shared = meter->others > 0 || at < meter->leased_at + GS_METER_TAIL_NS;
}

static void book(struct gs_meter *meter, struct gs_queue *queue, double estimate, uint32_t n) {
  queue->end += (uint64_t)estimate;
  queue->open.estimate += estimate;
  queue->open.launches += n;
  queue->inflight += estimate;
  meter->inflight += estimate;
  meter->launched += estimate;
}

/* The queue is believed to have been empty since `end`. */
static void was_empty(struct gs_meter *meter, struct gs_queue *queue, uint64_t now) {
  enum { UNSEEN_NS = 250000000 };
  if (queue->open.launches > 0) {
    if (now - queue->end > GS_METER_GAP_NS) { /* but nobody saw it: launches may take longer than is known */
      if (now > meter->unseen_until)
        meter->unseen_since = queue->end;
      meter->unseen_until = now + UNSEEN_NS;
    }
    queue->open.idle += (double)(now - queue->end);
  }
  queue->end = now;
}

/* Estimated work per mark. */
static double mark_every(const struct gs_meter *meter) {
  double price = GS_METER_INCOME * gs_meter_mark_ns(meter), every = maximum(price, GS_METER_MARK_NS);
  return meter->mark_most_ns > 0 ? minimum(every, meter->mark_most_ns) : every;
}

/* Whether a launch onto an empty queue gets a mark behind it, which measures it: 1 ms pays for any mark. */
static bool long_enough(const struct gs_meter *meter, double estimate) {
  double price = GS_METER_INCOME * gs_meter_mark_ns(meter);
  return estimate >= minimum(maximum(price, GS_METER_ALONE_NS), 4.0 * GS_METER_ALONE_NS);
}

/* How the launch is measured. empty: the queue is believed to be. */
static uint32_t plan_measure(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t now,
                             bool empty, bool shared) {
  bool unknown = gs_function_unknown(function), lengthy = empty && long_enough(meter, function->estimate);
  double weight = 0;
  bool put_off = queue->put_off, again = queue->again > 0 && !put_off, chosen = gs_purse_chosen(meter, queue, &weight);
  /* A bracket would also measure work of other streams on the device. */
  bool alone = now >= meter->end || meter->inflight < queue->inflight + 1;
  /* This stream was idle where it was believed to be at work. */
  alone |= again && now >= meter->others_end && (meter->latest == queue || now >= meter->latest_end);
  bool free = !__atomic_load_n(&queue->bracketing, __ATOMIC_ACQUIRE) || now - queue->last_bracket > LOST_NS;
  free = free && (!queue->sampled || empty); /* the last one is done, as far as is known */
  /* While others may have the device, only a bracket shows when a launch onto an empty queue began. */
  bool beside = chosen && empty && shared;
  bool wanted = unknown || again || put_off || beside || (chosen && !lengthy && gs_purse_usual(meter));
  meter->gap = 0; /* it is of no matter for launches that repeat this one */
  /* After repeated launches nobody knows whether the queue is empty, and most launches that are chosen come right after
   * some: the next one is measured in its place. */
  bool later = wanted && chosen && !unknown && queue->repeated > 0;
  queue->put_off = later && !again;
  if (later) {
    queue->again = weight;
    queue->open.weight = 0;
    return 0;
  }
  bool bracket = wanted && alone && free && !queue->repeated && (!lengthy || unknown || beside) &&
                 (again || queue->end < now + GS_METER_LATE_NS) && (unknown || !shared || queue->open.launches == 0);
  queue->open.weight = lengthy || unknown ? 1 : chosen ? weight : 0;
  if (bracket) {
    function->tries += function->tries < GS_METER_TRIES;
    queue->sampled_weight = chosen && !unknown && !lengthy ? weight : 1;
    queue->sampled_shared = shared;
    queue->sampled_burst = gs_meter_burst(meter, now);
    queue->sampled_clear = meter->inflight < 1;
    queue->sampled_other = meter->latest == queue ? meter->other_at : meter->latest_at;
    meter->sampling = queue;
    meter->joined = 0;
    queue->last_bracket = now;
    __atomic_store_n(&queue->bracketing, true, __ATOMIC_RELAXED);
    return GS_PLAN_SAMPLE | GS_PLAN_HOLD;
  }
  if (!chosen && !lengthy)
    return 0;
  return GS_PLAN_MARK;
}

uint32_t gs_meter_launch(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t now,
                         uint32_t lease) {
  struct gs_segment *open = &queue->open;
  double estimate = function->estimate, every;
  uint32_t plan = 0;
  bool first = !queue->anchored && queue->head == queue->tail && open->launches == 0, empty = now >= queue->end;
  if (lease != meter->lease) {
    meter->leased_at = meter->lease ? now : 0;
    meter->lease = lease;
  }
  if (meter->unsettled || gs_meter_unexplained(meter))
    gs_meter_settle(meter, now);
  gs_purse_earn(meter, now, 1 + queue->repeated);
  if (first) {
    /* Something else may be in front of it; or it shows more: how its context's clock runs, how long the function is. */
    if (queue->unclocked || gs_function_unknown(function) || __atomic_load_n(&queue->clouded, __ATOMIC_RELAXED)) {
      plan |= function->observed >= GS_METER_TRUSTED ? GS_PLAN_START | GS_PLAN_MARK : GS_PLAN_START;
    } else {
      queue->anchored = true;
      queue->previous_done = now;
    }
    queue->end = now;
    queue->launched_before = meter->launched;
  } else if (empty) {
    was_empty(meter, queue, now);
  }
  if (open->launches == 0)
    begin_segment(meter, queue, now);
  open->last = now;
  open->onto_empty = empty;
  plan |=
      plan_measure(meter, queue, function, now, empty, meter->others > 0 || now < meter->leased_at + GS_METER_TAIL_NS);
  queue->latest = gs_queue_latest(queue, now) + (uint64_t)estimate;
  queue->planned = now;
  queue->bracket_done = 0;
  queue->repeated = 0;
  queue->repeated_ns = 0;
  meter->end = (meter->end > now ? meter->end : now) + (uint64_t)estimate;
  __atomic_store_n(&queue->launches, queue->launches + 1, __ATOMIC_RELAXED);
  book(meter, queue, estimate, 1);
  note_latest(meter, queue, now);
  if (function->observed == 0) {
    open->unobserved++;
    queue->unobserved++;
    meter->unobserved++;
  }
  count_kind(open, function, estimate, 1);
  every = mark_every(meter);
  /* A new function is observed after 1, 2, 4, 8 launches. */
  if (open->estimate >= every || open->idle > 4 * every ||
      (function->observed < GS_METER_TRUSTED && open->launches >= 1u << function->observed))
    plan |= GS_PLAN_MARK;
  /* Whatever else went into the stream may still be in front of the launch. */
  if (plan & GS_PLAN_MARK && open->launches == 1 && __atomic_load_n(&queue->clouded, __ATOMIC_RELAXED))
    plan |= GS_PLAN_START;
  return plan;
}

void gs_meter_started(struct gs_queue *queue, uint64_t now) {
  if (queue->open.launches == 1)
    queue->open.first = now;
}

void gs_meter_repeated(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t key,
                       uint32_t n) {
  struct gs_segment *open = &queue->open;
  bool known = function->key == key;
  double estimate = n * (known ? function->estimate : GS_METER_GUESS_NS);
  if (open->launches == 0)
    begin_segment(meter, queue, queue->closed);
  open->last = 0;
  queue->repeated += n;
  queue->repeated_ns += estimate;
  queue->due = maximum(queue->due - n * gs_purse_chance(meter), 1e-9);
  meter->end += (uint64_t)estimate;
  book(meter, queue, estimate, n);
  note_latest(meter, queue, queue->planned > meter->latest_at ? queue->planned : meter->latest_at);
  if (known) {
    count_kind(open, function, estimate, n);
  } else {
    open->other += estimate;
    open->guessed = true;
  }
}

void gs_meter_undo(struct gs_meter *meter, struct gs_queue *queue, const struct gs_function *function,
                   double estimate) {
  struct gs_segment *open = &queue->open;
  bool unobserved = function->observed == 0 && open->unobserved > 0;
  if (open->launches == 0)
    return;
  open->launches--;
  open->last = 0;
  open->unobserved -= unobserved;
  open->weight = 0;
  open->estimate = maximum(open->estimate - estimate, 0);
  for (uint32_t i = 0; i < open->kinds; i++)
    if (open->kind[i].function == function && open->kind[i].launches > 0)
      open->kind[i].launches--;
  gs_queue_landed(meter, queue, estimate, unobserved);
  queue->end -= queue->end > (uint64_t)estimate ? (uint64_t)estimate : 0;
}

/* ---- marks ---- */

struct gs_mark *gs_meter_mark(struct gs_meter *meter, struct gs_queue *queue, bool start, uint64_t now) {
  struct gs_mark *mark;
  if (queue->head - queue->tail >= GS_METER_RING)
    return NULL;
  mark = &queue->ring[queue->head % GS_METER_RING];
  mark->event = NULL;
  mark->charged = 0;
  mark->recorded = mark->recorded_by = mark->unready = now;
  mark->start = start;
  mark->state = GS_MARK_RECORDING;
  if (start) {
    memset(&mark->segment, 0, sizeof mark->segment);
  } else {
    if (now > queue->end)
      queue->end = now;
    mark->segment = queue->open;
    mark->segment.clouded = __atomic_load_n(&queue->clouded, __ATOMIC_RELAXED);
    if (queue->open.launches == 1)
      mark->segment.made = __atomic_load_n(&queue->made, __ATOMIC_RELAXED);
    mark->segment.share = minimum(1, queue->open.estimate / maximum(meter->launched - queue->launched_before, 1));
    queue->launched_before = meter->launched;
    memset(&queue->open, 0, sizeof queue->open);
    __atomic_store_n(&queue->segments, queue->segments + 1, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&queue->clouded, false, __ATOMIC_RELAXED);
  mark->expected = queue->end;
  mark->after_all = meter->end;
  queue->closed = now;
  queue->head++;
  __atomic_store_n(&meter->marks, meter->marks + 1, __ATOMIC_RELAXED);
  return mark;
}

struct gs_mark *gs_meter_oldest(struct gs_queue *queue) {
  return queue->head == queue->tail ? NULL : &queue->ring[queue->tail % GS_METER_RING];
}
