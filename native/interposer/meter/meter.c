/* Launches, and the marks that are recorded behind them. */
#include <stddef.h>
#include <string.h>

#include "interposer/meter/functions.h"

/* ---- launches ---- */

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

static double mark_every(const struct gs_meter *meter, const struct gs_queue *queue) {
  double most = meter->mark_most_ns > 0 ? meter->mark_most_ns : GS_METER_MARK_NS;
  uint64_t enough = GS_METER_MARK_NS << queue->silent / GS_METER_SILENT;
  return minimum((double)gs_meter_every(GS_METER_MARK_PRICE * gs_meter_mark_ns(meter), enough), most);
}

uint32_t gs_meter_launch(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t now,
                         uint32_t lease) {
  struct gs_segment *open = &queue->open;
  double estimate = function->estimate;
  uint32_t plan = 0;
  bool first = !queue->anchored && queue->head == queue->tail && open->launches == 0;
  bool close = gs_meter_close(meter, now), shared;
  if (lease != meter->lease) {
    meter->leased_at = meter->lease ? now : 0;
    meter->lease = lease;
  }
  shared = meter->others > 0 || now < meter->leased_at + GS_METER_TAIL_NS;
  if (first) {
    plan |= GS_PLAN_START;
    if (function->observed >= GS_METER_TRUSTED) /* known, but not how long it takes here */
      plan |= GS_PLAN_MARK;
    queue->end = now;
    queue->launched_before = meter->launched;
  } else if (now >= queue->end) {
    if (open->launches > 0 && now - queue->end > GS_METER_GAP_NS)
      meter->doubted = now + GS_METER_DOUBT_NS;
    open->idle += (double)(now - queue->end);
    queue->end = now;
    if (close || gs_meter_own_mark(meter, estimate))
      plan |= GS_PLAN_MARK;
  }
  if (!first)
    plan |= gs_meter_plan_sample(meter, queue, function, now);
  if (plan & GS_PLAN_SAMPLE)
    queue->sampled_shared = shared;
  gs_meter_latest(meter, queue, now);
  queue->planned = now;
  gs_meter_count(meter, now, 1 + queue->repeated);
  queue->repeated = 0;
  queue->end += (uint64_t)estimate;
  meter->end = (meter->end > now ? meter->end : now) + (uint64_t)estimate;
  __atomic_store_n(&queue->launches, queue->launches + 1, __ATOMIC_RELAXED);
  if (open->launches == 0) {
    open->first = now;
    open->before = open->idle;
    open->lease = lease;
    open->shared = shared;
  }
  open->estimate += estimate;
  open->launches++;
  queue->inflight += estimate;
  meter->inflight += estimate;
  meter->launched += estimate;
  if (function->observed == 0) {
    open->unobserved++;
    queue->unobserved++;
    meter->unobserved++;
  }
  count_kind(open, function, estimate, 1);
  /* A new function is observed after 1, 2, 4, 8 launches. */
  double mark = mark_every(meter, queue);
  if (close && (open->estimate >= GS_METER_CAREFUL_MARK_NS || now - queue->closed >= GS_METER_CAREFUL_MARK_NS))
    plan |= GS_PLAN_MARK;
  if (gs_meter_take_choice(meter, queue, now)) {
    open->stands = close ? 1 : gs_meter_check_every(meter) / meter->pace;
    plan |= GS_PLAN_MARK;
  }
  if (open->estimate >= mark || open->idle > 4 * mark ||
      (function->observed < GS_METER_TRUSTED && open->launches >= 1u << function->observed))
    plan |= GS_PLAN_MARK;
  /* Whatever else went into the stream may still be in front of the launch. */
  if ((close || (plan & GS_PLAN_MARK && open->launches == 1)) && __atomic_load_n(&queue->clouded, __ATOMIC_RELAXED))
    plan |= GS_PLAN_START;
  return plan;
}

void gs_meter_repeated(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function, uint64_t key,
                       uint32_t n) {
  struct gs_segment *open = &queue->open;
  bool known = function->key == key;
  double estimate = n * (known ? function->estimate : GS_METER_GUESS_NS);
  if (open->launches == 0) {
    open->first = queue->closed;
    open->lease = meter->lease;
    open->shared = meter->others > 0 || queue->closed < meter->leased_at + GS_METER_TAIL_NS;
  }
  gs_meter_latest(meter, queue, queue->planned > meter->latest_at ? queue->planned : meter->latest_at);
  queue->repeated += n;
  queue->unchosen -= n < queue->unchosen ? n : queue->unchosen;
  queue->end += (uint64_t)estimate;
  meter->end += (uint64_t)estimate;
  open->estimate += estimate;
  open->launches += n;
  queue->inflight += estimate;
  meter->inflight += estimate;
  meter->launched += estimate;
  if (known) {
    count_kind(open, function, estimate, n);
  } else {
    open->other += estimate;
    open->guessed = true;
  }
}

/* ---- marks ---- */

struct gs_mark *gs_meter_mark(struct gs_meter *meter, struct gs_queue *queue, bool start, uint64_t now) {
  struct gs_mark *mark;
  if (queue->head - queue->tail >= GS_METER_RING)
    return NULL;
  mark = &queue->ring[queue->head % GS_METER_RING];
  mark->event = NULL;
  mark->recorded = mark->recorded_by = mark->unready = now;
  mark->start = start;
  mark->state = GS_MARK_RECORDING;
  if (start) {
    memset(&mark->segment, 0, sizeof mark->segment);
  } else {
    if (now > queue->end) {
      queue->open.idle += (double)(now - queue->end);
      queue->end = now;
    }
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
