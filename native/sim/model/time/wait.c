/* Waiting for all work of a context or a device. */
#include "sim/model/model.h"

void (*sim_synchronized)(void);

struct all_of {
  const struct sim_ctx *ctx; /* NULL: all contexts of device */
  CUdevice device;
  uint64_t seq;
};

static bool concerns(const struct all_of *all, const struct sim_ctx *ctx) {
  return all->ctx ? ctx == all->ctx || ctx->green_of == all->ctx : ctx->device == all->device;
}

static bool all_done(const void *arg) {
  const struct all_of *all = arg;
  for (const struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (const struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
      if (concerns(all, ctx) && stream->head && stream->head->seq <= all->seq)
        return false;
  return true;
}

/* The latest of the streams' bounds. For streams that received work after the wait began, only the part before it
 * counts. */
static uint64_t all_bound(const void *arg, uint64_t now) {
  const struct all_of *all = arg;
  uint64_t latest = now;
  for (const struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (const struct sim_stream *stream = ctx->streams; stream; stream = stream->next) {
      if (!concerns(all, ctx) || stream->head == NULL || stream->head->seq > all->seq)
        continue;
      const struct sim_item *last = stream->tail->seq <= all->seq ? stream->tail : stream->head;
      uint64_t when = sim_bound(stream, last->compute_sum, last->copy_sum, now, 4);
      if (when > latest)
        latest = when;
    }
  return latest;
}

CUresult sim_ctx_wait(struct sim_ctx *ctx) {
  sim_lock();
  struct all_of all = {ctx, ctx->device, sim_seq()};
  bool blocking = (ctx->flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
  sim_unlock();
  sim_wait(ctx->device, blocking, &(struct sim_condition){all_done, all_bound, &all});
  sim_tell_synchronized();
  return sim_ctx_fault(ctx);
}

void sim_device_wait(CUdevice device) {
  sim_lock();
  struct all_of all = {NULL, device, sim_seq()};
  bool open = sim_devices[device].open;
  sim_unlock();
  if (open)
    sim_wait(device, false, &(struct sim_condition){all_done, all_bound, &all});
}
