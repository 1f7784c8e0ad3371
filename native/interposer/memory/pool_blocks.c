#include "interposer/memory/pool_blocks.h"

#include "interposer/memory/async_free.h"
#include "interposer/memory/charge.h"
#include "interposer/memory/pool_charge.h"
#include "interposer/memory/pool_map.h"
#include "interposer/process/device.h"

void gs_pool_block_freed(const struct gs_entry *block, const CUstream *stream) {
  struct gs_entry ended = {.ordinal = GS_NO_DEVICE};
  gs_book_lock();
  struct gs_entry *pool = gs_book_find(GS_BOOK_POOL, block->link);
  bool destroyed = pool && pool->flags & GS_POOL_DESTROYED;
  if (pool && pool->count > 0)
    pool->count--;
  if (destroyed && pool->count == 0) {
    ended = *pool;
    gs_book_remove(pool);
  }
  gs_book_unlock();
  if (pool && !destroyed && stream)
    gs_map_faded(block, *stream);
  else
    gs_map_gone(block);
  if (ended.ordinal == GS_NO_DEVICE)
    return;
  if (stream)
    gs_free_queued(&ended, *stream);
  else
    gs_give_back(ended.ordinal, ended.bytes);
}

void gs_pools_context_gone(CUcontext context) {
  struct gs_entry block;
  for (uint32_t at = 0; gs_map_ended(context, &at, &block);)
    gs_pool_block_freed(&block, NULL);
}
