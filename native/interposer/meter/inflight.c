/* What the meter believes to be in flight: for the bound, for the drain, and to decide whether a stream makes
 * progress. */
#include "interposer/meter/functions.h"

void gs_queue_landed(struct gs_meter *meter, struct gs_queue *queue, double estimate, uint32_t unobserved) {
  estimate = minimum(estimate, queue->inflight);
  queue->inflight -= estimate;
  meter->inflight = maximum(meter->inflight - estimate, 0);
  unobserved = unobserved < queue->unobserved ? unobserved : queue->unobserved;
  queue->unobserved -= unobserved;
  meter->unobserved -= unobserved < meter->unobserved ? unobserved : meter->unobserved;
}

void gs_meter_undo(struct gs_meter *meter, struct gs_queue *queue, const struct gs_function *function,
                   double estimate) {
  struct gs_segment *open = &queue->open;
  bool unobserved = function->observed == 0 && open->unobserved > 0;
  if (open->launches == 0)
    return;
  open->launches--;
  open->unobserved -= unobserved;
  open->stands = 0;
  open->estimate = maximum(open->estimate - estimate, 0);
  for (uint32_t i = 0; i < open->kinds; i++)
    if (open->kind[i].function == function && open->kind[i].launches > 0)
      open->kind[i].launches--;
  gs_queue_landed(meter, queue, estimate, unobserved);
  queue->end -= queue->end > (uint64_t)estimate ? (uint64_t)estimate : 0;
}

/* The part of the oldest mark's work that must be done by now although the device has not reported it. Without it, when
 * kernels are as long as the bound, each would be let through only after the previous one has ended, and the device
 * would idle in between. */
static double underway(const struct gs_queue *queue, uint64_t now) {
  const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
  double own = gs_segment_now(&oldest->segment);
  double left = oldest->expected > now ? (double)(oldest->expected - now) : 0;
  return left < own ? own - left : 0;
}

double gs_queue_inflight(const struct gs_queue *queue, double bound, uint64_t now) {
  double rest = queue->inflight;
  if (queue->head == queue->tail) {
    rest = queue->end > now ? minimum(rest, (double)(queue->end - now)) : 0;
    if (rest == 0)
      return 0;
  } else {
    rest = maximum(rest - underway(queue, now), 0);
  }
  return rest + queue->unobserved * (bound / GS_METER_RISK_SHARE);
}

/* When the work of the oldest mark began: as expected when the mark was recorded, or later, when the preceding work was
 * done. Its length is computed anew, since an unknown function may have been observed since. */
static uint64_t begin_of_oldest(const struct gs_queue *queue, uint64_t *own) {
  const struct gs_mark *oldest = &queue->ring[queue->tail % GS_METER_RING];
  uint64_t begin;
  *own = (uint64_t)gs_segment_now(&oldest->segment);
  begin = oldest->expected > *own ? oldest->expected - *own : 0;
  return queue->anchored && queue->previous_done > begin ? queue->previous_done : begin;
}

uint64_t gs_queue_expected_end(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t now) {
  uint64_t rest = (uint64_t)maximum(queue->inflight, 0), own, begin, had, end;
  if (rest == 0)
    return 0; /* only copies, if anything */
  if (queue->head == queue->tail)
    return queue->end > now ? queue->end : 0;
  begin = begin_of_oldest(queue, &own);
  had = now > begin ? (uint64_t)gs_meter_resident(meter, begin, now, 1) : 0;
  if (had > own) /* already late: the later it is, the longer it is expected to take */
    return now + GS_METER_OVERDUE_NS +
           (uint64_t)maximum((double)(had - own) / 2, rest > own ? (double)(rest - own) : 0);
  end = (now > begin ? now : begin) + (own - had) + (rest > own ? rest - own : 0);
  return end > queue->end ? end : queue->end;
}

bool gs_queue_stuck(const struct gs_meter *meter, const struct gs_queue *queue, uint64_t patience, uint64_t now) {
  uint64_t begin, own;
  if (queue->head == queue->tail)
    return false;
  begin = begin_of_oldest(queue, &own);
  return now > begin + own && now > meter->done_at &&
         gs_meter_resident(meter, begin, now, 1) > (double)(own + (own > patience ? own : patience)) &&
         gs_meter_resident(meter, meter->done_at, now, 1) > (double)patience;
}
