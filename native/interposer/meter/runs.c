/* What work had of the device that went on beside others: a launch, or segments one behind the other. */
#include "interposer/meter/shown.h"

double gs_function_about(const struct gs_meter *meter, const struct gs_function *function, uint32_t n, uint64_t from,
                         uint64_t to) {
  double time = after(to, from), near = 0.1 * time, best = function->estimate;
  if (time - gs_meter_exclusive(meter, from, to) >= GS_METER_SLICE_NS) {
    time = gs_meter_resident(meter, from, to, 1);
    near = GS_METER_SLICE_NS / 2.0;
  }
  for (uint32_t c = 0; c < GS_METER_CLASSES; c++) {
    const struct gs_class *length = &function->length[c];
    double off = time - (double)n * length->mean;
    off = off < 0 ? -off : off;
    if (off >= near || length->spread >= 0.1 * length->mean || !gs_class_occurs(function, length))
      continue;
    near = off;
    best = length->mean;
  }
  return best;
}

struct gs_had gs_run_had(const struct gs_meter *meter, struct gs_queue *queue, const struct gs_shown *shown,
                         uint64_t from, double estimate) {
  const struct gs_function *function = gs_segment_function(shown->segment);
  uint32_t n = shown->segment->launches - (shown->segment->seen_until > 0);
  bool about = false;
  if (function && shown->whole && !shown->came && shown->total == n * function->estimate) {
    double length = gs_function_about(meter, function, n, from, shown->done);
    about = length != function->estimate;
    estimate += n * length - shown->total;
  }
  struct gs_had had = gs_meter_had(meter, from, shown->done, shown->came, estimate);
  had.about = about;
  struct gs_run *run = &queue->run;
  if (!shown->whole || shown->came || shown->begin > run->to + GS_METER_CLOCK_NS) {
    *run = (struct gs_run){from, 0, 0, shown->came};
    return had;
  }
  struct gs_had all = gs_meter_had(meter, run->from, shown->done, run->came, run->charged + estimate);
  had.least = maximum(had.least, minimum(all.least - run->charged, had.most));
  had.likely = minimum(maximum(all.likely - run->charged, had.least), had.most);
  return had;
}
