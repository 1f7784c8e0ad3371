/* Device memory that a context takes without an explicit allocation: for its programs, local memory of threads, and the
 * buffers that cuCtxSetLimit sizes. The initial amounts of a new context are part of the context's own cost. */
#include "sim/program/implicit.h"

#include <string.h>

#include "sim/memory/memory.h"
#include "sim/model/card.h"

enum {
  CHUNK = 2097152, /* code, local memory and buffers are allocated in multiples of this */
  IMAGE_ROUND = 4096,
  STACK_ROUND = 16,   /* so that a warp's local memory is a multiple of 512 bytes */
  STACK_MAX = 524288, /* maximum local memory of one thread */
  RESIDENT_THREADS = SIM_MULTIPROCESSORS * SIM_THREADS,
  /* the device runtime, according to the programming guide's chapter on dynamic parallelism: */
  SYNC_LEVEL_BYTES = 860000000, /* state of parent grids, for each depth of synchronisation: the guide's maximum */
  SYNC_DEPTH_MAX = 24,
  LAUNCH_BYTES = 4096 + 512 /* a pending launch: parameters, and the description of the grid */
};

static const size_t default_limit[16] = {1024, 1 << 20, 8 << 20, 2, 2048, 128};

static CUresult charge(struct sim_ctx *ctx, uint64_t *charged, uint64_t bytes) {
  CUresult result = bytes > *charged ? sim_memory_reserve(ctx->device, bytes - *charged) : CUDA_SUCCESS;
  if (result)
    return result;
  if (bytes < *charged)
    sim_memory_release(ctx->device, *charged - bytes);
  *charged = bytes;
  return CUDA_SUCCESS;
}

static uint64_t images_bytes(uint64_t images) { return sim_round_up(images, CHUNK); }

CUresult sim_code_load(struct sim_ctx *ctx, uint64_t bytes) {
  uint64_t images = ctx->implicit.images + sim_round_up(bytes, IMAGE_ROUND);
  CUresult result = charge(ctx, &ctx->implicit.code_charged, images_bytes(images));
  if (result == CUDA_SUCCESS)
    ctx->implicit.images = images;
  return result;
}

void sim_code_unload(struct sim_ctx *ctx, uint64_t bytes) {
  ctx->implicit.images -= sim_round_up(bytes, IMAGE_ROUND);
  charge(ctx, &ctx->implicit.code_charged, images_bytes(ctx->implicit.images));
}

static uint64_t stacks_bytes(uint64_t per_thread) {
  return sim_round_up(sim_round_up(per_thread, STACK_ROUND) * RESIDENT_THREADS, CHUNK);
}

CUresult sim_stack_need(struct sim_ctx *ctx, uint64_t bytes_per_thread) {
  if (bytes_per_thread <= ctx->implicit.stack)
    return CUDA_SUCCESS;
  uint64_t first = stacks_bytes(default_limit[CU_LIMIT_STACK_SIZE]);
  CUresult result = charge(ctx, &ctx->implicit.stack_charged, stacks_bytes(bytes_per_thread) - first);
  if (result == CUDA_SUCCESS)
    ctx->implicit.stack = bytes_per_thread;
  return result;
}

static uint64_t buffer_bytes(CUlimit limit, uint64_t value) {
  uint64_t each = limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH             ? SYNC_LEVEL_BYTES
                  : limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT ? LAUNCH_BYTES
                                                                       : 1;
  return sim_round_up(value * each, CHUNK);
}

static CUresult buffer_set(struct sim_ctx *ctx, CUlimit limit, size_t value) {
  uint64_t first = buffer_bytes(limit, default_limit[limit]), bytes = buffer_bytes(limit, value);
  return charge(ctx, &ctx->implicit.buffer_charged[limit], bytes > first ? bytes - first : 0);
}

CUresult sim_limit_set(struct sim_ctx *ctx, CUlimit limit, size_t value) {
  CUresult result = CUDA_SUCCESS;
  if (limit == CU_LIMIT_STACK_SIZE && value > STACK_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && value > SYNC_DEPTH_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  bool buffer = limit >= CU_LIMIT_PRINTF_FIFO_SIZE && limit <= CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT;
  if (buffer && value > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  if (limit == CU_LIMIT_STACK_SIZE)
    result = sim_stack_need(ctx, value);
  if (buffer)
    result = buffer_set(ctx, limit, value);
  if (result == CUDA_SUCCESS)
    ctx->limit[limit] = value;
  sim_unlock();
  return result;
}

void sim_implicit_begin(struct sim_ctx *ctx) {
  memcpy(ctx->limit, default_limit, sizeof ctx->limit);
  ctx->implicit = (struct sim_implicit){.stack = default_limit[CU_LIMIT_STACK_SIZE]};
}

uint64_t sim_implicit_bytes(const struct sim_ctx *ctx) {
  uint64_t bytes = ctx->implicit.code_charged + ctx->implicit.stack_charged;
  for (int limit = CU_LIMIT_PRINTF_FIFO_SIZE; limit <= CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT; limit++)
    bytes += ctx->implicit.buffer_charged[limit];
  return bytes;
}

void sim_implicit_end(struct sim_ctx *ctx) {
  sim_memory_release(ctx->device, sim_implicit_bytes(ctx));
  ctx->implicit = (struct sim_implicit){0};
}
