/* Whether a pool has room, decided by all of its places. */
#include <sys/mman.h>

#include "interposer/memory/pool_charge.h"
#include "interposer/memory/pool_life.h"
#include "interposer/memory/pool_map.h"

struct span {
  uint64_t at, bytes;
  enum { LIVE, BEING_FREED, FADING } state;
  CUstream stream; /* of one that fades */
};

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

static void put(struct span *spans, size_t room, size_t *count, const struct gs_block *block, bool faded) {
  if (*count < room)
    spans[*count] = (struct span){.at = block->address,
                                  .bytes = block->bytes,
                                  .state = faded          ? FADING
                                           : block->frees ? BEING_FREED
                                                          : LIVE,
                                  .stream = block->stream};
  ++*count;
}

static size_t collect(const struct gs_pool *pool, struct span *spans, size_t room) {
  size_t count = 0;
  uint32_t from = 0;
  for (const struct gs_block *block; (block = gs_table_next(&gs_books()->blocks, &from));)
    if (block->pool == pool->number)
      put(spans, room, &count, block, false);
  from = 0;
  for (const struct gs_block *block; pool->fading > 0 && (block = gs_table_next(&gs_books()->faded, &from));)
    if (block->pool == pool->number)
      put(spans, room, &count, block, true);
  return count;
}

/* The same stream may reuse at once exactly what it freed. */
static bool given_back(const struct span *spans, size_t count, size_t i, uint64_t bytes, CUstream stream) {
  return spans[i].state == FADING && spans[i].stream == stream && stream != CU_STREAM_PER_THREAD &&
         spans[i].bytes == bytes && (i == 0 || spans[i - 1].at + spans[i - 1].bytes <= spans[i].at) &&
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

/* A call that frees a block may have done so, although it has not returned. */
static bool lived_in(const struct gs_chunk *chunk, const struct span *spans, size_t count, bool all_fade) {
  uint64_t end = chunk->address + chunk->bytes;
  for (size_t i = first_from(spans, count, chunk->address); i < count && spans[i].at < end; i++)
    if (spans[i].state == LIVE || (spans[i].state == FADING && all_fade))
      return true;
  return false;
}

/* The pool gave pieces back to the device; those without a block in use may be among them. all_fade: the blocks that were
 * freed all still fade, which holds their pieces too. */
static void drop_empty(uint64_t pool, const struct span *spans, size_t count, bool all_fade) {
  uint32_t from = 0;
  for (struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (chunk->pool == pool && !lived_in(chunk, spans, count, all_fade)) {
      gs_map_remove_chunk(chunk);
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
 * least the average size. Freed blocks count if their stream may not have reached the free. */
bool gs_map_plainly_has_room(const struct gs_pool *pool, uint64_t bytes) {
  uint64_t fading = pool->fading < pool->faded_bytes ? pool->fading : pool->faded_bytes, used = pool->live + fading;
  uint64_t small = fading / GS_BLOCK_ROUND, most = pool->seen / GS_POOL_GRAIN;
  uint64_t places = (pool->chunks < most ? pool->chunks : most) + (uint64_t)pool->blocks +
                    (small < pool->faded ? small : pool->faded);
  return pool->chunks > 0 && pool->seen > used && (pool->seen - used) / places >= gs_round_up(bytes, GS_BLOCK_ROUND);
}

bool gs_map_has_room(uint64_t pool, uint64_t bytes, CUstream stream, uint64_t reserved, bool exact) {
  bytes = gs_round_up(bytes, GS_BLOCK_ROUND);
  bool room = false;
  gs_pools_lock();
  struct gs_pool *known = gs_pool_of(pool);
  size_t count = known ? collect(known, NULL, 0) : 0, size = (count + 1) * sizeof(struct span);
  struct span *spans = known ? gs_private_map(size) : NULL;
  if (spans) {
    collect(known, spans, count);
    sort(spans, count);
    if (known->shrunk || reserved < known->seen) {
      drop_empty(pool, spans, count, exact && reserved >= known->seen && known->fading == known->faded_bytes);
      known->shrunk = false;
      known->seen = reserved;
    }
    room = look(pool, bytes, stream, spans, count);
    munmap(spans, size);
  }
  gs_pools_unlock();
  return room;
}
