/* Creation and destruction of contexts of every kind. */
#include "sim/api/contexts/contexts.h"
#include "sim/api/contexts/coredump.h"
#include "sim/memory/memory.h"
#include "sim/model/model.h"
#include "sim/model/time/streams.h"
#include "sim/program/implicit.h"

uint64_t sim_ctx_cost(const struct sim_ctx *ctx) { return ctx->green_of ? 0 : sim_hello.context_bytes; }

CUresult sim_ctx_raise(struct sim_ctx *ctx, unsigned flags) {
  CUresult result = sim_memory_reserve(ctx->device, sim_ctx_cost(ctx));
  if (result)
    return result;
  result = sim_device_open(ctx->device);
  ctx->legacy = result ? NULL : sim_stream_new(ctx, 0, 0);
  if (ctx->legacy == NULL) {
    sim_memory_release(ctx->device, sim_ctx_cost(ctx));
    return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
  }
  ctx->legacy->legacy = true;
  ctx->legacy->blocking = false;
  ctx->flags = flags;
  ctx->ending = ctx->barred = false;
  ctx->api_version = SIM_CUDA_VERSION;
  ctx->peers = 0;
  sim_implicit_begin(ctx);
  sim_coredump_begin(ctx);
  sim_ctx_begin(ctx);
  return CUDA_SUCCESS;
}

bool sim_ctx_claim_end(struct sim_ctx *ctx, uint64_t id) {
  sim_lock();
  bool mine = ctx->alive && ctx->id == id && !ctx->ending;
  if (mine)
    ctx->ending = true;
  sim_unlock();
  return mine;
}

void sim_ctx_fell(struct sim_ctx *ctx) {
  sim_memory_ctx_destroyed(ctx);
  sim_lock();
  sim_streams_free(ctx); /* ends captures, which involves all contexts */
  sim_ctx_end(ctx);
  sim_implicit_end(ctx);
  sim_coredump_end(ctx);
  sim_memory_release(ctx->device, sim_ctx_cost(ctx));
  if (!ctx->primary)
    sim_ctx_free(ctx);
  sim_unlock();
}

bool sim_ctx_flags_valid(unsigned flags) {
  unsigned schedule = flags & CU_CTX_SCHED_MASK;
  return (flags & ~(unsigned)CU_CTX_FLAGS_MASK) == 0 &&
         (schedule == 0 || schedule == 1 || schedule == 2 || schedule == 4);
}
