#include "interposer/memory/pools/pool_map.h"

#include "interposer/memory/books/charge.h"
#include "interposer/memory/pools/pool_life.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/process/greens.h"

/* ---- with the lock of the pools' tables held --------------------------------------------------------------------- */

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

static void remove_faded(struct gs_block *block) {
  struct gs_pool *pool = gs_pool_of(block->pool);
  if (pool) {
    pool->faded--;
    pool->faded_bytes -= block->bytes;
  }
  gs_table_remove(&gs_books()->faded, block);
}

static void add_faded(struct gs_pool *pool, const struct gs_block *block) {
  pool->faded++;
  pool->faded_bytes += block->bytes;
  gs_table_add(&gs_books()->faded, block);
}

static struct gs_chunk *add_chunk(struct gs_pool *pool, uint64_t address, uint64_t bytes, uint64_t whole) {
  static uint64_t numbers;
  pool->last_chunk = (struct gs_chunk){.address = address,
                                       .bytes = bytes,
                                       .pool = pool->number,
                                       .number = ++numbers,
                                       .whole = whole,
                                       .trusted = pool->doubts};
  gs_table_add(&gs_books()->chunks, &pool->last_chunk);
  return gs_table_find(&gs_books()->chunks, address);
}

void gs_map_remove_chunk(struct gs_chunk *chunk) {
  struct gs_pool *pool = gs_pool_of(chunk->pool);
  gs_table_remove(&gs_books()->chunks, chunk);
  if (pool)
    pool->last_chunk = (struct gs_chunk){0};
}

/* The piece in which the address lies, or NULL. */
static struct gs_chunk *chunk_at(struct gs_pool *pool, uint64_t address) {
  struct gs_table *chunks = &gs_books()->chunks;
  struct gs_chunk *chunk;
  uint32_t from = 0;
  if (address - pool->last_chunk.address < pool->last_chunk.bytes)
    return gs_table_find(chunks, pool->last_chunk.address);
  while ((chunk = gs_table_next(chunks, &from)) &&
         (chunk->pool != pool->number || address - chunk->address >= chunk->bytes))
    ;
  if (chunk)
    pool->last_chunk = *chunk;
  return chunk;
}

static void count_live(struct gs_pool *pool, const struct gs_block *block, int by) {
  struct gs_chunk *chunk = block->chunk ? gs_table_find(&gs_books()->chunks, block->chunk) : NULL;
  if (!chunk || chunk->number != block->chunk_number)
    return;
  chunk->live += (uint32_t)by;
  chunk->trusted = pool->doubts;
}

/* Removes the entries of this range, because the pool has given it back to the device. */
static void clear_range(uint64_t at, uint64_t bytes) {
  uint32_t from = 0;
  for (struct gs_block *block; (block = gs_table_next(&gs_books()->faded, &from));)
    if (overlap(block->address, block->bytes, at, bytes)) {
      remove_faded(block);
      --from; /* another has moved here */
    }
  from = 0;
  for (struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (overlap(chunk->address, chunk->bytes, at, bytes)) {
      gs_map_remove_chunk(chunk);
      --from;
    }
}

/* Whether the pool may have given memory back since it was last queried, hidden by its growth. */
static bool may_have_shrunk(const struct gs_pool *pool) {
  return pool->yielding > 0 || pool->seen > pool->threshold || gs_contexts_ending();
}

/* Reduces the piece to the part that exists in either case: if it is still the same, or if the pool gave it back and
 * grew at this address by another one of at least `least` bytes. */
static struct gs_chunk *cut(struct gs_pool *pool, struct gs_chunk *chunk, uint64_t address, uint64_t least) {
  uint64_t rest = chunk->address + chunk->bytes - address, whole = chunk->whole < least ? chunk->whole : least;
  gs_map_remove_chunk(chunk);
  return add_chunk(pool, address, rest < least ? rest : least, whole);
}

/* The piece in which a block was made, after a call that made the pool grow by `growth`; NULL: not known. While a pool
 * grows by one piece it may give back another, which its total does not show. A piece without live blocks may then no
 * longer exist; a new one may even lie where it was. If the total is the same, a new piece that begins where the old
 * one did is no smaller. */
static struct gs_chunk *chunk_made_in(struct gs_pool *pool, uint64_t address, uint64_t bytes, uint64_t growth) {
  struct gs_chunk *chunk = growth ? NULL : chunk_at(pool, address);
  bool ending = gs_contexts_ending(), hidden = may_have_shrunk(pool);
  if (chunk && chunk->live > 0 && !ending)
    return chunk;
  bool doubted = chunk && (ending || gs_map_doubted(pool, chunk));
  pool->doubts += hidden || !(growth || chunk);
  if (growth) {
    clear_range(address, growth);
    return add_chunk(pool, address, growth, growth);
  }
  if (chunk && (doubted || (hidden && chunk->address != address)))
    return cut(pool, chunk, address, gs_round_up(bytes, pool->cap ? GS_DEVICE_PAGE : GS_POOL_STEP));
  return chunk;
}

static void clear_faded(uint64_t pool) {
  uint32_t from = 0;
  for (struct gs_block *block; (block = gs_table_next(&gs_books()->faded, &from));)
    if (block->pool == pool) {
      remove_faded(block);
      --from;
    }
}

static void clear_chunks(uint64_t pool) {
  uint32_t from = 0;
  for (struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (chunk->pool == pool) {
      gs_map_remove_chunk(chunk);
      --from;
    }
}

/* Walks over the faded blocks of all pools only if at least half of them are this pool's. */
void gs_map_settled(struct gs_pool *pool) {
  pool->fading = 0;
  if (2 * pool->faded >= gs_books()->faded.used)
    clear_faded(pool->number);
}

/* The place of a freed block is in use again, or its first `bytes` are. */
static void reuse(uint64_t address, uint64_t bytes) {
  struct gs_block *found = gs_table_find(&gs_books()->faded, address);
  if (!found)
    return;
  struct gs_block rest = *found;
  struct gs_pool *pool = gs_pool_of(rest.pool);
  remove_faded(found);
  if (pool && rest.bytes > bytes) {
    rest.address += bytes;
    rest.bytes -= bytes;
    add_faded(pool, &rest);
  }
}

/* Takes a block out of use. Returns its pool, or NULL. */
static struct gs_pool *end_block(struct gs_block *block) {
  struct gs_pool *pool = gs_pool_of(block->pool);
  if (pool) {
    if (block->frees == 0)
      count_live(pool, block, -1);
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

/* ------------------------------------------------------------------------------------------------------------------ */

void gs_map_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t growth, CUcontext context) {
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
  struct gs_chunk *chunk = chunk_made_in(known, address, block.bytes, growth);
  if (chunk) {
    chunk->live++;
    chunk->trusted = known->doubts;
    block.chunk = chunk->address;
    block.chunk_number = chunk->number;
  }
  reuse(address, block.bytes);
  known->calls--;
  known->blocks++;
  known->made++;
  known->live += block.bytes;
  block.number = ++numbers;
  gs_table_add(&gs_books()->blocks, &block);
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
}

bool gs_map_frees(uint64_t address, struct gs_block *block) {
  gs_pools_lock();
  struct gs_block *found = gs_table_find(&gs_books()->blocks, address);
  if (found) {
    struct gs_pool *pool = gs_pool_of(found->pool);
    if (pool && found->frees == 0)
      count_live(pool, found, -1);
    found->frees++;
    if (pool)
      pool->freeing++;
    *block = *found;
  }
  gs_pools_unlock();
  return found != NULL;
}

static void not_freed(struct gs_block *block) {
  struct gs_pool *pool = gs_pool_of(block->pool);
  block->frees--;
  if (pool && block->frees == 0)
    count_live(pool, block, 1);
  if (pool)
    pool->freeing--;
}

/* Records a block that was freed in stream order. */
static enum gs_map_end fade(struct gs_pool *pool, const struct gs_block *block) {
  if (pool->destroyed) {
    pool->awaited++;
    return GS_MAP_AWAITED;
  }
  pool->freed++;
  pool->fading += block->bytes;
  reuse(block->address, block->bytes);
  add_faded(pool, block);
  return GS_MAP_FREED;
}

enum gs_map_end gs_map_freed(const struct gs_block *block, const struct gs_block *after, bool success) {
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  enum gs_map_end answer = GS_MAP_NOT_FREED;
  gs_pools_lock();
  struct gs_block *found = gs_table_find(&gs_books()->blocks, block->address);
  if (found && found->number == block->number && !success) {
    not_freed(found);
  } else if (found && found->number == block->number) { /* else another call has freed it */
    struct gs_pool *pool = end_block(found);
    answer = pool && after ? fade(pool, after) : GS_MAP_FREED;
    if (pool)
      end = gs_pool_end_if_empty(pool);
  }
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
  return answer;
}

bool gs_map_ended(CUcontext context, uint32_t *at) {
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  struct gs_block *found;
  gs_pools_lock();
  while ((found = gs_table_next(&gs_books()->blocks, at)) && found->context != context)
    ;
  if (found) {
    struct gs_pool *pool = end_block(found);
    --*at; /* another has moved here */
    if (pool) {
      pool->doubts++; /* the driver ended it a while ago */
      end = gs_pool_end_if_empty(pool);
    }
  }
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
  return found != NULL;
}

static bool same_stream(const struct gs_block *a, const struct gs_block *b) {
  return a->stream == b->stream && a->context == b->context && a->thread == b->thread;
}

unsigned gs_map_forget(uint64_t pool, struct gs_block *streams, unsigned room) {
  unsigned count = 0, i;
  uint32_t from = 0;
  gs_pools_lock();
  for (const struct gs_block *block; count <= room && (block = gs_table_next(&gs_books()->faded, &from));) {
    for (i = 0; i < count && i < room && !same_stream(&streams[i], block);)
      i++;
    if (block->pool != pool || i < count)
      continue;
    if (count < room)
      streams[count] = *block;
    count++;
  }
  clear_faded(pool);
  clear_chunks(pool);
  gs_pools_unlock();
  return count;
}
