/* Memory pools: cuMemAllocAsync and related functions.
 *
 * A pool holds chunks. Each chunk is one piece of device memory, charged when the pool grows, and is divided into
 * blocks in address order. A freed block is `fading` until the stream reaches the free operation; until then only the
 * same stream may reuse it, because its later work runs after the free anyway. Chunks without live blocks are returned
 * to the device in three cases: the pool holds more than its release threshold when the program synchronises, the pool
 * is trimmed, or the device has no memory for another allocation. A destroyed pool keeps its memory until the last
 * block is freed, as documented for cuMemPoolDestroy. */
#include <stdlib.h>
#include <string.h>

#include "sim/memory/pools/pools.h"

enum block_state { BLOCK_FREE, BLOCK_USED, BLOCK_FADING };

struct block {
  struct chunk *chunk;
  struct block *before, *after; /* neighbours in the chunk */
  uint64_t base, bytes;         /* a multiple of SIM_ALLOC_ROUND */
  enum block_state state;
  struct sim_stream *faded_on;
  uint64_t generation; /* + 1 at each use: lets a queued free detect that the block has been reused */
};

struct chunk {
  struct CUmemPoolHandle_st *pool;
  struct chunk *next;
  struct sim_pages pages;
  struct sim_block shared; /* once a pointer into it was exported */
  struct block *blocks;
  uint64_t live; /* blocks that are not free */
};

/* Guarded by sim_ranges_lock. */
static struct {
  struct CUmemPoolHandle_st *pools;
  struct block *spare; /* unused block structs. Never freed, because a queued free may still refer to them */
} all;

static bool on_device(const struct CUmemPoolHandle_st *pool) {
  return pool->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CUdevice sim_pool_device(const struct CUmemPoolHandle_st *pool) { return on_device(pool) ? pool->location.id : 0; }

static struct block *block_new(struct chunk *chunk, uint64_t base, uint64_t bytes) {
  struct block *block = all.spare;
  if (block)
    all.spare = block->after;
  else
    block = calloc(1, sizeof *block);
  if (block)
    *block = (struct block){.chunk = chunk, .base = base, .bytes = bytes, .generation = block->generation + 1};
  return block;
}

static void block_drop(struct block *block) {
  block->generation++;
  block->chunk = NULL;
  block->after = all.spare;
  all.spare = block;
}

void sim_pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep) {
  struct chunk **link = &pool->chunks;
  while (*link) {
    struct chunk *chunk = *link;
    if (chunk->live || pool->reserved <= keep || pool->reserved - chunk->pages.bytes < keep) {
      link = &chunk->next;
      continue;
    }
    *link = chunk->next;
    pool->reserved -= chunk->pages.bytes;
    bool kept = sim_charge_end(&chunk->shared, sim_pool_device(pool), on_device(pool) ? chunk->pages.bytes : 0);
    sim_pages_free(&chunk->pages, kept);
    block_drop(chunk->blocks);
    free(chunk);
  }
}

/* Called after a synchronisation: returns memory beyond each pool's release threshold. */
static void give_back(void) {
  sim_ranges_lock();
  for (struct CUmemPoolHandle_st *pool = all.pools; pool; pool = pool->next)
    if (pool->reserved > pool->threshold && !pool->destroyed)
      sim_pool_trim(pool, pool->threshold);
  sim_ranges_unlock();
}

void sim_pool_start(struct CUmemPoolHandle_st *pool, CUmemLocation location, uint64_t max) {
  enum { READ_WRITE = 3 };
  *pool = (struct CUmemPoolHandle_st){.location = location, .max = max, .reuse = {1, 1, 1}};
  if (on_device(pool))
    pool->access[location.id] = READ_WRITE;
  pool->next = all.pools;
  all.pools = pool;
  __atomic_store_n(&sim_synchronized, give_back, __ATOMIC_RELEASE);
}

bool sim_pool_known(CUmemoryPool handle) {
  for (struct CUmemPoolHandle_st *pool = all.pools; pool; pool = pool->next)
    if (pool == handle)
      return !pool->destroyed;
  return false;
}

static void raise_high(uint64_t value, uint64_t *high) {
  if (value > *high)
    *high = value;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Growth in multiples of the step, or in the smallest sufficient unit if the pool's size limit does not leave a whole
 * step. */
static CUresult growth_of(const struct CUmemPoolHandle_st *pool, uint64_t bytes, uint64_t *growth) {
  *growth = sim_round_up(bytes, SIM_POOL_STEP);
  if (!pool->max || pool->reserved + *growth <= pool->max)
    return CUDA_SUCCESS;
  *growth = sim_round_up(bytes, SIM_VMM_GRANULARITY);
  return pool->reserved + *growth <= pool->max ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult chunk_pages(struct CUmemPoolHandle_st *pool, uint64_t growth, struct sim_pages *pages) {
  CUresult result = on_device(pool) ? sim_memory_reserve(sim_pool_device(pool), growth) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    return result;
  result = sim_pages_new(sim_pool_device(pool), growth, false, pages);
  if (result != CUDA_SUCCESS && on_device(pool))
    sim_memory_release(sim_pool_device(pool), growth);
  return result;
}

static CUresult chunk_add(struct CUmemPoolHandle_st *pool, uint64_t bytes) {
  uint64_t growth;
  CUresult result = growth_of(pool, bytes, &growth);
  if (result != CUDA_SUCCESS)
    return result;
  struct chunk *chunk = calloc(1, sizeof *chunk);
  struct block *block = chunk ? block_new(chunk, 0, growth) : NULL;
  result = block ? chunk_pages(pool, growth, &chunk->pages) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) {
    if (block)
      block_drop(block);
    free(chunk);
    return result;
  }
  block->base = (uint64_t)(uintptr_t)chunk->pages.at;
  chunk->pool = pool;
  chunk->blocks = block;
  chunk->next = pool->chunks;
  pool->chunks = chunk;
  pool->reserved += growth;
  raise_high(pool->reserved, &pool->reserved_high);
  return CUDA_SUCCESS;
}

static void trim_device(CUdevice device) {
  for (struct CUmemPoolHandle_st *pool = all.pools; pool; pool = pool->next)
    if (on_device(pool) && sim_pool_device(pool) == device && !pool->destroyed)
      sim_pool_trim(pool, 0);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* True for a free block that is large enough, or a block of exactly this size that fades on the same stream. */
static bool usable(const struct block *block, uint64_t bytes, const struct sim_stream *stream) {
  return block->state == BLOCK_FREE
             ? block->bytes >= bytes
             : block->state == BLOCK_FADING && block->faded_on == stream && block->bytes == bytes;
}

static struct block *smallest_usable(const struct CUmemPoolHandle_st *pool, uint64_t bytes,
                                     const struct sim_stream *stream) {
  struct block *best = NULL;
  for (struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
    for (struct block *block = chunk->blocks; block; block = block->after)
      if (usable(block, bytes, stream) && (!best || block->bytes < best->bytes))
        best = block;
  return best;
}

static void block_use(struct block *block, uint64_t bytes) {
  struct CUmemPoolHandle_st *pool = block->chunk->pool;
  struct block *rest = block->state == BLOCK_FREE && block->bytes > bytes
                           ? block_new(block->chunk, block->base + bytes, block->bytes - bytes)
                           : NULL;
  if (rest) {
    rest->before = block;
    rest->after = block->after;
    if (rest->after)
      rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
  }
  if (block->state == BLOCK_FREE) {
    pool->used += block->bytes;
    block->chunk->live++;
    raise_high(pool->used, &pool->used_high);
  }
  block->state = BLOCK_USED;
  block->generation++;
}

void sim_pool_end(struct CUmemPoolHandle_st *pool) {
  sim_pool_trim(pool, 0);
  struct CUmemPoolHandle_st **link = &all.pools;
  while (*link != pool)
    link = &(*link)->next;
  *link = pool->next;
  free(pool);
}

static void merge_after(struct block *block) {
  struct block *other = block->after;
  if (!other || other->state != BLOCK_FREE || block->state != BLOCK_FREE)
    return;
  block->bytes += other->bytes;
  block->after = other->after;
  if (block->after)
    block->after->before = block;
  block_drop(other);
}

static void block_free(struct block *block) {
  struct CUmemPoolHandle_st *pool = block->chunk->pool;
  pool->used -= block->bytes;
  block->chunk->live--;
  block->state = BLOCK_FREE;
  block->generation++;
  merge_after(block);
  if (block->before)
    merge_after(block->before);
  if (pool->destroyed && pool->used == 0)
    sim_pool_end(pool);
}

CUmemoryPool sim_pool_of_block(const void *block) { return ((const struct block *)block)->chunk->pool; }

const struct sim_pages *sim_pool_pages(uint64_t address) {
  for (const struct CUmemPoolHandle_st *pool = all.pools; pool; pool = pool->next)
    for (const struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
      if (address - (uint64_t)(uintptr_t)chunk->pages.at < chunk->pages.bytes)
        return &chunk->pages;
  return NULL;
}

CUresult sim_pool_block_place(void *block, int *fd, uint64_t *offset, struct sim_block *shared) {
  const struct block *at = block;
  struct chunk *chunk = at->chunk;
  const struct sim_pages *pages = &chunk->pages;
  *fd = pages->fd;
  *offset = pages->offset + (at->base - (uint64_t)(uintptr_t)pages->at);
  CUresult result = sim_block_make(&chunk->shared, sim_pool_device(chunk->pool), pages->bytes, -1);
  *shared = chunk->shared;
  return result;
}

void sim_pool_free_now(struct sim_range *range) {
  struct block *block = range->owner;
  sim_range_remove(range);
  block_free(block);
}

void sim_pools_ctx_destroyed(struct sim_ctx *ctx) {
  sim_ranges_lock();
  trim_device(ctx->device);
  sim_ranges_unlock();
}

void sim_pools_sum(CUdevice device, struct sim_sum *sum) {
  for (const struct CUmemPoolHandle_st *pool = all.pools; pool; pool = pool->next)
    for (const struct chunk *chunk = pool->chunks; chunk && on_device(pool); chunk = chunk->next)
      if (sim_pool_device(pool) == device)
        sim_sum_add(sum, &chunk->shared, chunk->pages.bytes);
}

/* ---- allocation -------------------------------------------------------------------------------------------------- */

/* One allocation attempt. Requires the lock. */
static CUresult take(struct CUmemPoolHandle_st *pool, uint64_t bytes, struct sim_stream *stream, CUdeviceptr *address) {
  uint64_t rounded = sim_round_up(bytes, SIM_ALLOC_ROUND);
  struct block *block = smallest_usable(pool, rounded, stream);
  if (!block) {
    CUresult result = chunk_add(pool, rounded);
    if (result != CUDA_SUCCESS)
      return result;
    block = smallest_usable(pool, rounded, stream);
  }
  const struct sim_range range = {.base = block->base,
                                  .bytes = bytes,
                                  .pages = {.fd = -1},
                                  .kind = SIM_RANGE_POOL,
                                  .device = sim_pool_device(pool),
                                  .ctx = sim_ctx_owner(sim_stream_ctx(stream)),
                                  .owner = block};
  if (!sim_range_add(&range))
    return CUDA_ERROR_OUT_OF_MEMORY;
  block_use(block, rounded);
  *address = range.base;
  return CUDA_SUCCESS;
}

/* If the device is full, tries again after releasing unused pool memory, and a third time after all queued frees. */
CUresult sim_pool_take(struct CUmemPoolHandle_st *pool, uint64_t bytes, struct sim_stream *stream,
                       CUdeviceptr *address) {
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  CUdevice device = 0;
  for (int attempt = 0; attempt < 3 && result == CUDA_ERROR_OUT_OF_MEMORY; attempt++) {
    if (attempt == 2)
      sim_device_wait(device);
    sim_ranges_lock();
    if (attempt > 0)
      trim_device(device);
    else if (sim_pool_known(pool)) /* another thread may have destroyed it */
      device = sim_pool_device(pool);
    result = sim_pool_known(pool) ? take(pool, bytes, stream, address) : CUDA_ERROR_INVALID_VALUE;
    sim_ranges_unlock();
  }
  return result;
}

struct fade {
  struct block *block;
  uint64_t generation;
};

static void run_fade(void *payload) {
  const struct fade *fade = payload;
  sim_ranges_lock();
  if (fade->block->generation == fade->generation && fade->block->state == BLOCK_FADING)
    block_free(fade->block);
  sim_ranges_unlock();
}

CUresult sim_pool_fade(struct sim_stream *stream, CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = sim_range_at(address);
  struct block *block = range && range->kind == SIM_RANGE_POOL ? range->owner : NULL;
  struct fade fade = {block, 0};
  if (block) {
    sim_range_remove(range);
    block->state = BLOCK_FADING;
    block->faded_on = stream;
    fade.generation = ++block->generation;
  }
  sim_ranges_unlock();
  if (!block)
    return CUDA_ERROR_INVALID_VALUE;
  const struct sim_op op = {.resource = SIM_INSTANT,
                            .run = run_fade,
                            .node_type = SIM_NODE_NONE,
                            .payload = &fade,
                            .payload_bytes = sizeof fade};
  CUresult result = sim_submit(stream, &op);
  if (result != CUDA_SUCCESS)
    run_fade(&fade); /* the stream no longer exists, so nothing can use the block */
  return result;
}
