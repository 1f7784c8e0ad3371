#include "interposer/memory/pools/pool_blocks.h"

#include "interposer/memory/books/charge.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/memory/pools/async_free.h"
#include "interposer/os/latch.h"
#include "interposer/process/greens.h"
#include "interposer/time/streams/streams.h"

/* ---- with the lock of the pools' tables held --------------------------------------------------------------------- */

/* From now on the block keeps no piece of its pool. */
static void leave_piece(struct gs_pool *pool, const struct gs_block *block) {
  if (pool->piece.block == block->number)
    pool->piece.block = 0;
}

/* grown: by how much the pool grew for the block, which then lies at the start of the new piece. */
static void enter_piece(struct gs_pool *pool, const struct gs_block *block, uint64_t grown) {
  struct gs_pool_piece *piece = &pool->piece;
  uint64_t end = block->address + block->bytes;
  if (grown >= block->bytes)
    *piece = (struct gs_pool_piece){block->address, block->address + grown, end, block->number};
  else if (piece->block && block->address >= piece->at && end <= piece->end) {
    piece->block = block->number;
    piece->from = end > piece->from ? end : piece->from;
  }
}

/* Takes a block out of use. Returns its pool, or NULL. */
static struct gs_pool *end_block(struct gs_block *block) {
  struct gs_pool *pool = gs_pool_of(block->pool);
  if (pool) {
    leave_piece(pool, block);
    pool->live -= block->bytes;
    pool->freeing -= block->frees;
    if (pool->blocks > 0)
      pool->blocks--;
    if (pool->seen > pool->threshold)
      gs_pool_loosen(pool);
  }
  gs_table_remove(&gs_books()->blocks, block);
  return pool;
}

static const void *thread_of(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? &gs_self : NULL; }

/* Records that a block was freed in the order of a stream. */
static void queue_free(struct gs_pool *pool, uint64_t bytes, const struct gs_queued *in) {
  struct gs_table *all = &gs_books()->queued;
  const struct gs_queued *one = NULL;
  pool->freed++;
  pool->fading += bytes;
  while ((one = gs_table_same(all, in->pool, one)))
    if (one->stream == in->stream && one->context == in->context && one->thread == in->thread)
      return;
  if (pool->queued > GS_QUEUED_MAX)
    return;
  pool->queued++;
  gs_table_add(all, in);
}

/* ------------------------------------------------------------------------------------------------------------------ */

void gs_block_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t grown, CUcontext context) {
  static uint64_t numbers;
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  struct gs_block block = {.address = address,
                           .bytes = gs_round_up(bytes, GS_BLOCK_ROUND),
                           .pool = pool,
                           .context = gs_context_owner(context)};
  gs_pools_lock();
  struct gs_block *before = gs_table_find(&gs_books()->blocks, address);
  struct gs_pool *known = before ? end_block(before) : NULL; /* the call that freed it has not returned */
  if (known)
    end = gs_pool_end_if_empty(known);
  known = gs_pool_of(pool);
  known->calls--;
  known->blocks++;
  known->made++;
  known->live += block.bytes;
  block.number = ++numbers;
  enter_piece(known, &block, grown);
  gs_table_add(&gs_books()->blocks, &block);
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
}

bool gs_block_frees(uint64_t address, struct gs_block *block) {
  gs_pools_lock();
  struct gs_block *found = gs_table_find(&gs_books()->blocks, address);
  if (found) {
    struct gs_pool *pool = gs_pool_of(found->pool);
    found->frees++;
    if (pool) {
      pool->freeing++;
      leave_piece(pool, found);
    }
    *block = *found;
  }
  gs_pools_unlock();
  return found != NULL;
}

static void not_freed(struct gs_block *block) {
  struct gs_pool *pool = gs_pool_of(block->pool);
  block->frees--;
  if (pool)
    pool->freeing--;
}

/* in: the stream of a free in stream order, or NULL. Returns whether the block's pool is destroyed and now waits for
 * gs_pool_awaited. */
static bool end_freed(const struct gs_block *block, const struct gs_queued *in, bool success) {
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  bool awaited = false;
  gs_pools_lock();
  struct gs_block *found = gs_table_find(&gs_books()->blocks, block->address);
  if (found && found->number == block->number && !success) {
    not_freed(found);
  } else if (found && found->number == block->number) { /* else another call has freed it */
    struct gs_pool *pool = end_block(found);
    awaited = pool && in && pool->destroyed;
    if (awaited)
      pool->awaited++;
    else if (pool && in)
      queue_free(pool, block->bytes, in);
    if (pool)
      end = gs_pool_end_if_empty(pool);
  }
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
  return awaited;
}

void gs_block_freed(const struct gs_block *block, const CUstream *stream, bool success) {
  struct gs_queued in = {.pool = block->pool};
  if (stream && success) {
    gs_stream_of(*stream); /* so that it can be queried later */
    in.stream = *stream;
    in.context = gs_stream_owner(*stream);
    in.thread = thread_of(*stream);
  }
  if (end_freed(block, stream ? &in : NULL, success))
    gs_pool_free_queued(block->pool, *stream);
}

/* Whether the handle names the stream of the free, or at least an existing stream of its context. If it is another
 * stream, the free has happened: the driver does not reuse the handle before. */
static bool can_ask(const struct gs_queued *freed) {
  return freed->thread == thread_of(freed->stream) && gs_stream_known(freed->stream) &&
         gs_stream_owner(freed->stream) == freed->context;
}

void gs_pool_departed(const struct gs_departure *departure, bool destroyed) {
  struct gs_queued freed[GS_QUEUED_MAX + 1];
  bool queued = gs_pool_left(departure, destroyed);
  unsigned count = destroyed && departure->number ? gs_pool_take_queued(departure->number, freed) : 0;
  for (unsigned i = 0; queued && i < count; i++) {
    gs_pool_awaits(departure->number);
    if (i < GS_QUEUED_MAX && can_ask(&freed[i]))
      gs_pool_free_queued(departure->number, freed[i].stream);
    else /* waits for the whole context */
      gs_pool_free_lost(departure->number, freed[i].context);
  }
  if (queued)
    gs_pool_awaited(departure->number);
}

/* Removes one of the blocks that ended with context. *at: where to look for the next (start with 0). False: there is
 * none. */
static bool end_with(CUcontext context, uint32_t *at) {
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  struct gs_block *found;
  gs_pools_lock();
  while ((found = gs_table_next(&gs_books()->blocks, at)) && found->context != context)
    ;
  if (found) {
    struct gs_pool *pool = end_block(found);
    --*at; /* another has moved here */
    if (pool)
      end = gs_pool_end_if_empty(pool);
  }
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
  return found != NULL;
}

void gs_pools_context_gone(CUcontext context) {
  for (uint32_t at = 0; end_with(context, &at);)
    ;
  gs_frees_context_gone(context);
}
