/* Others come to the device and leave it, and this process hears of it a little later. What it launched meanwhile is
 * charged then. */
#include "interposer/meter/lengths.h"

static void charge(struct gs_meter *meter, const struct gs_unsettled *one) {
  struct gs_had had = gs_meter_had(meter, one->from, one->to, true, one->estimate);
  struct gs_function *function = one->function;
  double took = had.likely, each = took / one->launches;
  gs_timeline_add(meter, one->to - (uint64_t)took, one->to, took, 1);
  if (!function || function->key != one->key)
    return;
  bool exact = had.beside < GS_METER_CLOCK_NS;
  if (exact && gs_function_far(function, each)) {
    gs_purse_found(meter, took - one->estimate);
    return;
  }
  if (!exact && !function->exact && one->to - one->from > GS_METER_UNSLICED_NS)
    function->shared = true;
  else if (exact || !function->exact)
    gs_function_learn(function, each, one->stands * one->launches, exact && one->launches == 1);
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
    if (gs_meter_beside(meter) && now < one->to + GS_METER_SLICE_NS)
      meter->pending[kept++] = *one;
    else
      charge(meter, one);
  }
  meter->unsettled = kept;
}

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
