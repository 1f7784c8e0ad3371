/* What was launched beside others is charged, or corrected, once more is known. Others come to the device and leave it,
 * and this process learns it a little later. How long launches are that were never seen before is shown by the next
 * ones. */
#include "interposer/meter/lengths.h"

enum { UNKNOWN_NS = 250000000 /* so long a charge may still be corrected */ };

static bool known(const struct gs_unsettled *one) { return !one->unknown || gs_segment_known_alone(&one->segment); }

static void learn(struct gs_meter *meter, const struct gs_segment *segment, double took, double estimate, bool exact,
                  bool sliced) {
  struct gs_function *function = gs_segment_function(segment);
  double each = took / segment->launches;
  if (!function)
    return;
  if (exact && gs_function_far(function, each))
    gs_purse_found(meter, took - estimate);
  else if (!exact && !function->exact && sliced)
    function->shared = true;
  else if (exact || !function->exact)
    gs_function_learn(function, each, maximum(segment->weight, 1) * segment->launches, exact && segment->launches == 1);
}

static void charge(struct gs_meter *meter, const struct gs_unsettled *one) {
  const struct gs_segment *segment = &one->segment;
  double estimate = maximum(gs_segment_now(segment) + segment->excess, 0);
  struct gs_had had = gs_meter_had(meter, one->from, one->to, one->came, estimate + segment->stalled);
  double took = maximum(had.likely - segment->stalled, 0);
  if (!one->unknown) {
    gs_timeline_add(meter, one->to - (uint64_t)took, one->to, took, 1);
    learn(meter, segment, took, estimate, had.beside<GS_METER_CLOCK_NS, one->to - one->from> GS_METER_UNSLICED_NS);
    return;
  }
  if (!known(one))
    took = maximum(had.least - segment->stalled, one->charged);
  gs_timeline_fill(meter, one->from, one->to, took - one->charged);
  gs_meter_refund(meter, one->charged - took);
}

void gs_meter_settle_later(struct gs_meter *meter, struct gs_unsettled later) {
  if (meter->unsettled == GS_METER_UNSETTLED) {
    charge(meter, &meter->pending[0]);
    meter->unsettled--;
    for (uint32_t i = 0; i < meter->unsettled; i++)
      meter->pending[i] = meter->pending[i + 1];
  }
  meter->pending[meter->unsettled++] = later;
}

void gs_meter_settle(struct gs_meter *meter, uint64_t now) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < meter->unsettled; i++) {
    const struct gs_unsettled *one = &meter->pending[i];
    if (known(one) ? gs_meter_beside(meter) && now < one->to + GS_METER_SLICE_NS : now < one->to + UNKNOWN_NS)
      meter->pending[kept++] = *one;
    else
      charge(meter, one);
  }
  meter->unsettled = kept;
  gs_meter_explain(meter, now);
}

void gs_meter_end(struct gs_meter *meter) { gs_meter_settle(meter, UINT64_MAX); }

void gs_meter_turn(struct gs_meter *meter, uint32_t others, uint64_t from) {
  /* Turns that were expected to begin later did not take place. */
  while (meter->turns > 0 && meter->turn[(meter->turns - 1) % GS_METER_TURNS].from >= from)
    meter->turns--;
  /* read without the lock, to decide whether to call this */
  __atomic_store_n(&meter->others, others, __ATOMIC_RELAXED);
  if (meter->turns > 0 && meter->turn[(meter->turns - 1) % GS_METER_TURNS].others == others)
    return;
  meter->turn[meter->turns++ % GS_METER_TURNS] = (struct gs_turn){from, others};
  gs_meter_settle(meter, from);
}
