/* What the meter believes to be in flight: for the bound, the drain and the question whether a stream moves at all. */
#include "meter.h"

static double minimum(double a, double b) { return a < b ? a : b; }
static double maximum(double a, double b) { return a > b ? a : b; }

/* What of the oldest mark's work is done by now although the device has not said so. Without it the next of kernels as long as
 * the bound would be let in only when the one before is over, and the device would wait for it every time. */
static double underway(const struct gs_queue *queue, uint64_t now) {
  const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
  double own = gs_segment_now(&oldest->segment);
  double left = oldest->expected > now ? (double)(oldest->expected - now) : 0;
  return left < own ? own - left : 0;
}

double gs_segment_now(const struct gs_segment *segment) {
  double total = segment->other;
  for (uint32_t i = 0; i < segment->kinds; i++) {
    const struct gs_kind *kind = &segment->kind[i];
    total += kind->launches * (kind->function->key == kind->key ? kind->function->estimate : GS_METER_GUESS_NS);
  }
  return total;
}

double gs_queue_inflight(const struct gs_queue *queue, double bound, uint64_t now) {
  double rest = queue->inflight;
  if (queue->head == queue->tail) {
    rest = queue->end > now ? minimum(rest, (double)(queue->end - now)) : 0;
    if (rest == 0) return 0;
  } else {
    rest = maximum(rest - underway(queue, now), 0);
  }
  return rest + queue->unobserved * (bound / GS_METER_RISK_SHARE);
}

uint64_t gs_queue_expected_end(const struct gs_queue *queue, uint64_t now) {
  if (queue->inflight <= 0) return 0; /* only copies, if anything */
  if (queue->head != queue->tail) {
    const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
    if (now > oldest->expected) {
      /* Late already: the longer it is late, the longer it will take. */
      uint64_t late = now - oldest->expected, rest = (uint64_t)queue->inflight;
      return now + (late / 2 > rest ? late / 2 : rest);
    }
    return queue->end;
  }
  return queue->end > now ? queue->end : 0;
}

bool gs_queue_stuck(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t patience, uint64_t now) {
  const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
  uint64_t due = oldest->expected, own;
  if (queue->head == queue->tail) return false;
  own = (uint64_t)gs_segment_now(&oldest->segment); /* of an unknown function much more may be known by now */
  if (queue->anchored && queue->previous_done + own > due) due = queue->previous_done + own;
  return now > due && gs_meter_resident(meter, due - own, now, 1) > (double)(own + (own > patience ? own : patience));
}

uint64_t gs_meter_pace(struct gs_meter *meter, uint64_t key, uint64_t most) {
  const struct gs_function *function = gs_meter_function(meter, key);
  uint64_t pace = (uint64_t)(function->estimate / 8);
  return function->observed == 0 || pace > most ? most : pace;
}
