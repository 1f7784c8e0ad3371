#include "interposer/memory/pool_blocks.h"

#include "interposer/memory/async_free.h"
#include "interposer/memory/charge.h"
#include "interposer/memory/pool_charge.h"
#include "interposer/memory/pool_map.h"
#include "interposer/process/device.h"

void gs_pool_block_freed(const struct gs_block *block, const CUstream *stream) {
  struct gs_table *pools = &gs_books()->pools;
  struct gs_pool ended = {.ordinal = GS_NO_DEVICE};
  gs_table_lock(pools);
  struct gs_pool *pool = gs_table_find(pools, block->pool);
  bool destroyed = pool && pool->destroyed;
  if (pool && pool->blocks > 0)
    pool->blocks--;
  if (destroyed && pool->blocks == 0) {
    ended = *pool;
    gs_table_remove(pools, pool);
  }
  gs_table_unlock(pools);
  if (pool && !destroyed && stream)
    gs_map_faded(block, *stream);
  else
    gs_map_gone(block);
  if (ended.ordinal == GS_NO_DEVICE)
    return;
  if (stream)
    gs_free_queued(ended.ordinal, ended.bytes, *stream);
  else
    gs_give_back(ended.ordinal, ended.bytes);
}

void gs_pools_context_gone(CUcontext context) {
  struct gs_block block;
  for (uint32_t at = 0; gs_map_ended(context, &at, &block);)
    gs_pool_block_freed(&block, NULL);
}
