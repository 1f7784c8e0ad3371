/* What memory a kernel finds when it runs. */
#include "sim/memory/memory.h"

bool sim_range_reached(const struct sim_ctx *ctx, const struct sim_range *range) {
  switch (range->kind) {
    case SIM_RANGE_MAPPED: return range->access & 1u << ctx->device;
    case SIM_RANGE_DEVICE: return range->device == ctx->device || ctx->peers & 1u << range->device;
    case SIM_RANGE_GRAPH: return range->attached > 0;
    case SIM_RANGE_ARRAY: return false;
    default: return true;
  }
}

/* Memory that begins at or before an address and is the same as a whole. id 0: there is none up to end. */
struct stretch {
  uint64_t id, end;
};

/* A pool's memory is there while the pool has it: what is freed in stream order may still be used before. */
static struct stretch stretch_at(const struct sim_ctx *ctx, uint64_t at) {
  const struct sim_pages *pages = sim_pool_pages(at);
  if (pages)
    return (struct stretch){(uint64_t)(uintptr_t)pages->at, (uint64_t)(uintptr_t)pages->at + pages->bytes};
  const struct sim_range *range = sim_range_even_dying(at);
  if (range)
    return (struct stretch){sim_range_reached(ctx, range) ? range->id : 0, range->base + range->bytes};
  const struct sim_range *next = sim_range_next(at);
  return (struct stretch){sim_pageable() && at >= SIM_PAGE, next ? next->base : UINT64_MAX};
}

uint64_t sim_memory_reach(const struct sim_ctx *ctx, CUdeviceptr address, uint64_t bytes) {
  const uint64_t prime = 0x100000001b3; /* FNV-1a over the ids */
  uint64_t identity = 0xcbf29ce484222325, end = address + bytes;
  if (bytes > SIM_ADDRESS_SPACE || address > SIM_ADDRESS_SPACE)
    return 0;
  sim_ranges_lock();
  for (uint64_t at = address; at < end && identity;) {
    struct stretch found = stretch_at(ctx, at);
    identity = found.id ? (identity ^ found.id) * prime : 0;
    at = found.end;
  }
  sim_ranges_unlock();
  return identity;
}
