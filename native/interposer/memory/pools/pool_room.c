/* Decides whether a pool has room, from all of its places. */
#include <sys/mman.h>

#include "interposer/memory/pools/pool_charge.h"
#include "interposer/memory/pools/pool_life.h"
#include "interposer/memory/pools/pool_map.h"

/* A block, or a piece of the pool. */
struct span {
  uint64_t at, bytes;
  uint64_t whole; /* of a piece: gs_chunk */
  uint64_t taken; /* of a piece: bytes of its blocks */
  bool fades;
  CUstream stream; /* of a block that fades, with its context */
  CUcontext context;
};

/* The pieces of a pool in the order of their addresses, and the blocks in each. */
struct layout {
  struct span *pieces, *blocks;
  uint32_t *ends; /* by piece: where its blocks end; they begin where those of the piece before end */
  size_t npieces, nblocks;
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

/* The piece in which the address lies; npieces: none. */
static size_t piece_of(const struct layout *layout, uint64_t address) {
  size_t low = 0, high = layout->npieces;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (layout->pieces[middle].at <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low > 0 && address - layout->pieces[low - 1].at < layout->pieces[low - 1].bytes ? low - 1 : layout->npieces;
}

/* Calls act for each block of the pool that occupies memory. */
static void each_block(struct layout *layout, const struct gs_pool *pool,
                       void (*act)(struct layout *layout, size_t piece, const struct gs_block *block, bool fades)) {
  for (int fades = 0; fades <= (pool->fading > 0); fades++) {
    struct gs_table *table = fades ? &gs_books()->faded : &gs_books()->blocks;
    uint32_t from = 0;
    for (const struct gs_block *block; (block = gs_table_next(table, &from));) {
      size_t piece = block->pool == pool->number ? piece_of(layout, block->address) : layout->npieces;
      if (piece < layout->npieces)
        act(layout, piece, block, fades);
    }
  }
}

static void count(struct layout *layout, size_t piece, const struct gs_block *block, bool fades) {
  (void)fades;
  layout->pieces[piece].taken += block->bytes;
  layout->ends[piece]++;
  layout->nblocks++;
}

/* Fills the piece's blocks from their end downwards. */
static void put(struct layout *layout, size_t piece, const struct gs_block *block, bool fades) {
  layout->blocks[--layout->ends[piece]] = (struct span){
      .at = block->address, .bytes = block->bytes, .fades = fades, .stream = block->stream, .context = block->context};
}

static size_t count_pieces(uint64_t pool) {
  size_t count = 0;
  uint32_t from = 0;
  for (const struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    count += chunk->pool == pool;
  return count;
}

/* False: out of memory, or no piece is known. Whatever this returns, the caller unmaps *map unless it is NULL. */
static bool lay_out(struct layout *layout, const struct gs_pool *pool, size_t *bytes, void **map) {
  size_t pieces = count_pieces(pool->number), blocks = pool->blocks + pool->faded, i = 0;
  uint32_t from = 0, end = 0;
  *bytes = (pieces + blocks) * sizeof(struct span) + (pieces + 1) * sizeof(uint32_t);
  *map = pieces > 0 ? gs_private_map(*bytes) : NULL;
  if (!*map)
    return false;
  *layout = (struct layout){.pieces = *map, .npieces = pieces};
  layout->blocks = layout->pieces + pieces;
  layout->ends = (uint32_t *)(void *)(layout->blocks + blocks);
  for (const struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (chunk->pool == pool->number)
      layout->pieces[i++] = (struct span){.at = chunk->address, .bytes = chunk->bytes, .whole = chunk->whole};
  sort(layout->pieces, pieces);
  each_block(layout, pool, count);
  for (i = 0; i < pieces; i++)
    end = layout->ends[i] += end;
  layout->ends[pieces] = end;
  return layout->nblocks <= blocks;
}

/* The same stream may reuse at once exactly what it freed. */
static bool given_back(const struct span *blocks, size_t count, size_t i, const struct gs_wanted *wanted) {
  const struct span *block = &blocks[i];
  return block->fades && block->stream == wanted->stream && block->context == wanted->context &&
         wanted->stream != CU_STREAM_PER_THREAD && block->bytes == wanted->bytes &&
         (i == 0 || blocks[i - 1].at + blocks[i - 1].bytes <= block->at) &&
         (i + 1 == count || block->at + block->bytes <= blocks[i + 1].at);
}

/* Whether the piece has a place for the wanted bytes. blocks: those in it. */
static bool room_in(const struct span *piece, struct span *blocks, size_t count, const struct gs_wanted *wanted) {
  uint64_t free_from = piece->at, end = piece->at + piece->bytes, used = 0;
  for (size_t i = 0; i < count; i++)
    used += blocks[i].fades ? 0 : blocks[i].bytes;
  if (piece->bytes < wanted->bytes || used > piece->bytes - wanted->bytes)
    return false;
  sort(blocks, count);
  for (size_t i = 0; i < count; i++) {
    if ((blocks[i].at > free_from && blocks[i].at - free_from >= wanted->bytes) || given_back(blocks, count, i, wanted))
      return true;
    if (blocks[i].at + blocks[i].bytes > free_from)
      free_from = blocks[i].at + blocks[i].bytes;
  }
  return end > free_from && end - free_from >= wanted->bytes;
}

/* Whether there is certainly a place: n blocks leave at most n + 1 gaps, and the largest gap has at least the average
 * size. To be called before `put`. */
static bool plainly_room_in(const struct layout *layout, size_t i, const struct gs_wanted *wanted) {
  const struct span *piece = &layout->pieces[i];
  uint64_t places = layout->ends[i] - (i > 0 ? layout->ends[i - 1] : 0) + 1;
  return piece->bytes > piece->taken && (piece->bytes - piece->taken) / places >= wanted->bytes;
}

/* Pieces of less than `least` bytes do not count. */
static bool look(const struct gs_pool *pool, const struct gs_wanted *wanted, uint64_t least) {
  struct layout layout;
  size_t bytes;
  void *map;
  bool room = false;
  if (lay_out(&layout, pool, &bytes, &map)) {
    for (size_t i = 0; i < layout.npieces && !room; i++)
      room = layout.pieces[i].whole >= least && plainly_room_in(&layout, i, wanted);
    if (!room)
      each_block(&layout, pool, put);
    for (size_t i = 0; i < layout.npieces && !room; i++)
      room = layout.pieces[i].whole >= least &&
             room_in(&layout.pieces[i], layout.blocks + layout.ends[i], layout.ends[i + 1] - layout.ends[i], wanted);
  }
  if (map)
    munmap(map, bytes);
  return room;
}

/* Forgets the pieces that may no longer exist. all_fade: all queued frees are still outstanding, which keeps the pieces
 * of their blocks too. */
static void drop_doubted(const struct gs_pool *pool, bool all_fade) {
  struct gs_table *chunks = &gs_books()->chunks;
  struct gs_chunk *chunk;
  uint32_t from = 0;
  for (const struct gs_block *block; all_fade && (block = gs_table_next(&gs_books()->faded, &from));)
    if ((chunk = gs_table_find(chunks, block->chunk)) && chunk->number == block->chunk_number)
      chunk->fades = true;
  for (from = 0; (chunk = gs_table_next(chunks, &from));) {
    bool doubted = chunk->pool == pool->number && gs_map_doubted(pool, chunk), fades = chunk->fades;
    chunk->fades = false;
    if (doubted && fades) {
      chunk->trusted = pool->doubts;
    } else if (doubted) {
      gs_map_remove_chunk(chunk);
      --from; /* another has moved here */
    }
  }
}

/* Bytes in pieces that are at least as large as what the pool may grow by. */
static uint64_t in_large_pieces(uint64_t pool, uint64_t need) {
  uint64_t bytes = 0;
  uint32_t from = 0;
  for (const struct gs_chunk *chunk; (chunk = gs_table_next(&gs_books()->chunks, &from));)
    if (chunk->pool == pool && chunk->whole >= need)
      bytes += chunk->whole;
  return bytes;
}

/* The pool may give any piece back in mid-call. Then it must not be able to grow by more than that piece: because the
 * piece is large enough; because the charge is at the cap; or because the large pieces alone leave no room for a whole
 * step below the cap, so that the pool grows in fine steps until one of those is given back. */
enum gs_room gs_map_room(const struct gs_wanted *wanted, uint64_t reserved, bool exact) {
  enum gs_room room = GS_NO_ROOM;
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(wanted->pool);
  if (pool && pool->bytes >= reserved &&
      !gs_contexts_ending()) { /* else blocks may be gone that the books still have */
    pool->doubts += reserved < pool->seen;
    drop_doubted(pool, exact && reserved >= pool->seen && pool->fading == pool->faded_bytes);
    pool->seen = reserved;
    bool fine = pool->cap &&
                (wanted->need > pool->cap || in_large_pieces(pool->number, wanted->need) > pool->cap - wanted->need);
    uint64_t least = fine || (pool->cap && pool->bytes >= pool->cap) ? 0 : wanted->need;
    bool free = reserved >= pool->live && reserved - pool->live >= wanted->bytes;
    room = free && look(pool, wanted, least) ? GS_ROOM : fine ? GS_ROOM_TO_GROW_FINELY : GS_NO_ROOM;
  }
  gs_pools_unlock();
  return room;
}
