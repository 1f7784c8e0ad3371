/* The earliest time at which work can be done. */
#include "sim/model/model.h"

static uint64_t end_after(const struct sim_item *item, uint64_t now) {
  uint64_t end = sim_item_end(item);
  return end > now ? end - now : 0;
}

uint64_t sim_bound(const struct sim_stream *stream, uint64_t compute_sum, uint64_t copy_sum, uint64_t now, int depth) {
  const struct sim_item *head = stream->head;
  if (head == NULL || head->compute_sum > compute_sum || head->copy_sum > copy_sum)
    return now;
  uint64_t compute = compute_sum - head->compute_sum, copy = copy_sum - head->copy_sum, start = now;
  if (sim_item_spins(head))
    return SIM_NEVER;
  if (head->resource == SIM_COMPUTE && !head->meet)
    compute += head->remaining;
  if (head->resource > SIM_COMPUTE && head->resource <= SIM_FRONT)
    copy += head->end == 0 ? head->duration : end_after(head, now);
  const struct sim_item *record = head->resource == SIM_WAIT_EVENT ? head->mark->item : NULL;
  if (record && depth > 0)
    start = sim_bound(record->stream, record->compute_sum, record->copy_sum, now, depth - 1);
  if (start == SIM_NEVER)
    return SIM_NEVER;
  if (compute > 0) {
    uint64_t got = sim_lane_when(&sim_devices[stream->ctx->device], compute);
    if (got == SIM_NEVER)
      return SIM_NEVER;
    if (got > start)
      start = got;
  }
  return start + copy;
}
