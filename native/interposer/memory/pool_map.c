#include "interposer/memory/pool_map.h"

#include <sys/mman.h>

#include "interposer/memory/pool_charge.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"

struct span {
  uint64_t at, bytes;
  bool live;
  CUstream stream; /* of one that fades */
};

/* ---- with the lock of the pools' tables held --------------------------------------------------------------------- */

static struct gs_pool *find(uint64_t pool) { return gs_table_find(&gs_books()->pools, pool); }

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

static void remove_block(struct gs_block *block) {
  struct gs_pool *pool = find(block->pool);
  if (pool && block->fades)
    pool->faded--;
  gs_table_remove(&gs_books()->blocks, block);
}

static void add_chunk(const struct gs_chunk *chunk) {
  struct gs_pool *pool = find(chunk->pool);
  gs_table_add(&gs_books()->chunks, chunk);
  if (pool)
    pool->chunks++;
}

static void remove_chunk(struct gs_chunk *chunk) {
  struct gs_pool *pool = find(chunk->pool);
  gs_table_remove(&gs_books()->chunks, chunk);
  if (pool)
    pool->chunks--;
}

/* Removes the entries of this range, because the pool has given it back to the device. */
static void clear_range(uint64_t at, uint64_t bytes) {
  uint32_t from = 0;
  for (struct gs_block *block; (block = gs_table_next(&gs_books()->blocks, &from));)
    if (block->fades && overlap(block->address, block->bytes, at, bytes)) {
      remove_block(block);
      --from; /* another has moved here */
    }
  from = 0;
  for (struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (overlap(chunk->address, chunk->bytes, at, bytes)) {
      remove_chunk(chunk);
      --from;
    }
}

static void clear_faded(uint64_t pool) {
  uint32_t from = 0;
  for (struct gs_block *block; (block = gs_table_next(&gs_books()->blocks, &from));)
    if (block->fades && block->pool == pool) {
      remove_block(block);
      --from;
    }
}

static void clear_chunks(uint64_t pool) {
  uint32_t from = 0;
  for (struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (chunk->pool == pool) {
      remove_chunk(chunk);
      --from;
    }
}

/* The block at address that is being freed, or the one that is in use; or NULL. */
static struct gs_block *block_at(uint64_t address, bool fades) {
  struct gs_block *block = gs_table_find(&gs_books()->blocks, address);
  return block && block->fades == fades ? block : NULL;
}

static void unfade(uint64_t address) {
  struct gs_block *block = block_at(address, true);
  if (block)
    remove_block(block);
}

/* Counts a block that is in use from now on, or no longer. */
static void count_live(const struct gs_block *block, bool lives) {
  struct gs_pool *pool = find(block->pool);
  if (pool)
    pool->live += lives ? block->bytes : -block->bytes;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void lock(void) { gs_table_lock(&gs_books()->pools); }
static void unlock(void) { gs_table_unlock(&gs_books()->pools); }

void gs_map_forget(uint64_t pool) {
  lock();
  clear_faded(pool);
  clear_chunks(pool);
  unlock();
}

void gs_map_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t growth, CUcontext context) {
  struct gs_block block = {.address = address,
                           .bytes = gs_round_up(bytes, GS_BLOCK_ROUND),
                           .pool = pool,
                           .context = gs_context_owner(context)};
  lock();
  if (growth) {
    clear_range(address, growth);
    add_chunk(&(struct gs_chunk){address, growth, pool});
  }
  unfade(address);
  struct gs_pool *known = find(pool);
  if (known)
    known->blocks++;
  count_live(&block, true);
  gs_table_add(&gs_books()->blocks, &block);
  unlock();
}

bool gs_map_take(uint64_t address, struct gs_block *block) {
  lock();
  struct gs_block *found = block_at(address, false);
  if (found) {
    struct gs_pool *pool = find(found->pool);
    *block = *found;
    count_live(block, false);
    found->context = NULL;
    found->stream = CU_STREAM_PER_THREAD;
    found->fades = true;
    if (pool)
      pool->faded++;
  }
  unlock();
  return found != NULL;
}

void gs_map_faded(const struct gs_block *block, CUstream stream) {
  lock();
  struct gs_block *fading = block_at(block->address, true);
  if (fading)
    fading->stream = stream;
  unlock();
}

bool gs_map_ended(CUcontext context, uint32_t *at, struct gs_block *block) {
  struct gs_table *blocks = &gs_books()->blocks;
  struct gs_block *found;
  lock();
  while ((found = gs_table_next(blocks, at)) && (found->fades || found->context != context))
    ;
  if (found) {
    *block = *found;
    gs_table_remove(blocks, found);
    --*at; /* another has moved here */
    count_live(block, false);
  }
  unlock();
  return found != NULL;
}

void gs_map_gone(const struct gs_block *block) {
  lock();
  unfade(block->address);
  unlock();
}

void gs_map_put_back(const struct gs_block *block) {
  lock();
  unfade(block->address);
  gs_table_add(&gs_books()->blocks, block);
  count_live(block, true);
  unlock();
}

/* ---- is there room ----------------------------------------------------------------------------------------------- */

static bool before(const struct span *a, const struct span *b) { return a->at < b->at; }

static void sift(struct span *spans, size_t from, size_t count) {
  for (size_t child; (child = 2 * from + 1) < count; from = child) {
    if (child + 1 < count && before(&spans[child], &spans[child + 1]))
      child++;
    if (!before(&spans[from], &spans[child]))
      return;
    struct span swapped = spans[from];
    spans[from] = spans[child];
    spans[child] = swapped;
  }
}

/* Sorts in place: the C library's sort may call malloc. */
static void sort(struct span *spans, size_t count) {
  for (size_t from = count / 2; from-- > 0;)
    sift(spans, from, count);
  for (size_t end = count; end-- > 1;) {
    struct span swapped = spans[0];
    spans[0] = spans[end];
    spans[end] = swapped;
    sift(spans, 0, end);
  }
}

static size_t collect(uint64_t pool, struct span *spans, size_t room) {
  size_t count = 0;
  uint32_t from = 0;
  for (const struct gs_block *block; (block = gs_table_next(&gs_books()->blocks, &from));)
    if (block->pool == pool && count++ < room)
      spans[count - 1] = (struct span){block->address, block->bytes, !block->fades, block->stream};
  return count;
}

/* The same stream may reuse at once exactly what it freed. */
static bool given_back(const struct span *spans, size_t count, size_t i, uint64_t bytes, CUstream stream) {
  return !spans[i].live && spans[i].stream == stream && stream != CU_STREAM_PER_THREAD && spans[i].bytes == bytes &&
         (i == 0 || spans[i - 1].at + spans[i - 1].bytes <= spans[i].at) &&
         (i + 1 == count || spans[i].at + bytes <= spans[i + 1].at);
}

static size_t first_from(const struct span *spans, size_t count, uint64_t at) {
  size_t low = 0;
  while (low < count) {
    size_t middle = low + (count - low) / 2;
    if (spans[middle].at < at)
      low = middle + 1;
    else
      count = middle;
  }
  return low;
}

static bool room_in(const struct gs_chunk *chunk, const struct span *spans, size_t count, uint64_t bytes,
                    CUstream stream) {
  uint64_t free_from = chunk->address, end = chunk->address + chunk->bytes;
  for (size_t i = first_from(spans, count, chunk->address); i < count && spans[i].at < end; i++) {
    if ((spans[i].at > free_from && spans[i].at - free_from >= bytes) || given_back(spans, count, i, bytes, stream))
      return true;
    if (spans[i].at + spans[i].bytes > free_from)
      free_from = spans[i].at + spans[i].bytes;
  }
  return end > free_from && end - free_from >= bytes;
}

static bool lived_in(const struct gs_chunk *chunk, const struct span *spans, size_t count) {
  uint64_t end = chunk->address + chunk->bytes;
  for (size_t i = first_from(spans, count, chunk->address); i < count && spans[i].at < end; i++)
    if (spans[i].live)
      return true;
  return false;
}

/* The pool gave pieces back to the device; those without a block in use may be among them. */
static void drop_empty(uint64_t pool, const struct span *spans, size_t count) {
  uint32_t from = 0;
  for (struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (chunk->pool == pool && !lived_in(chunk, spans, count)) {
      remove_chunk(chunk);
      --from;
    }
}

static bool look(uint64_t pool, uint64_t bytes, CUstream stream, const struct span *spans, size_t count) {
  uint32_t from = 0;
  for (struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (chunk->pool == pool && room_in(chunk, spans, count, bytes, stream))
      return true;
  return false;
}

/* The free memory has no more places than there are pieces and blocks that can precede it, so the largest place has at
 * least the average size. Freed blocks count if their stream has not reached the free: their bytes are still in use. */
bool gs_map_plainly_has_room(uint64_t pool, uint64_t bytes, uint64_t reserved, uint64_t used) {
  struct gs_pool known;
  uint64_t places = 0;
  if (gs_table_copy(&gs_books()->pools, pool, &known) && known.chunks > 0) {
    uint64_t fading = used > known.live ? (used - known.live) / GS_BLOCK_ROUND : 0;
    places = known.chunks + (uint64_t)known.blocks + (fading < known.faded ? fading : known.faded);
  }
  return places > 0 && reserved > used && (reserved - used) / places >= gs_round_up(bytes, GS_BLOCK_ROUND);
}

bool gs_map_has_room(uint64_t pool, uint64_t bytes, CUstream stream, uint64_t reserved, uint64_t used) {
  bytes = gs_round_up(bytes, GS_BLOCK_ROUND);
  bool room = false;
  lock();
  struct gs_pool *known = find(pool);
  if (known && known->live == used) /* nothing fades any more */
    clear_faded(pool);
  size_t count = collect(pool, NULL, 0), size = (count + 1) * sizeof(struct span);
  struct span *spans = known ? gs_private_map(size) : NULL;
  if (spans) {
    collect(pool, spans, count);
    sort(spans, count);
    if (known->shrunk || reserved < known->seen) {
      drop_empty(pool, spans, count);
      known->shrunk = false;
      known->seen = reserved;
    }
    room = look(pool, bytes, stream, spans, count);
    munmap(spans, size);
  }
  unlock();
  return room;
}
