/* The layout of a pool, as far as the program's own calls reveal it. A grant with less than one step of growth left can
 * still use free memory of its pools, if it is certain that the pool need not grow: a growth that does not fit must not
 * happen even for a moment. Where the map is not certain, it answers no. */
#ifndef GPUSHARE_POOL_MAP_H
#define GPUSHARE_POOL_MAP_H

#include "interposer/memory/books/books.h"

/* An announced allocation of `bytes` has returned address, after the pool grew by `growth`: the block lies at the start
 * of the new piece and ends with context. */
void gs_map_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t growth, CUcontext context);
/* A call is about to free a block, which is in use until the call has returned. False: no block is known at this
 * address. Must be followed by gs_map_freed. */
bool gs_map_frees(uint64_t address, struct gs_block *block);
enum gs_map_end { GS_MAP_NOT_FREED, GS_MAP_FREED, GS_MAP_AWAITED };
/* That call has returned. after: the block with the stream and context of a free in stream order; NULL: it is free now.
 * AWAITED: its pool is destroyed, and ends when gs_pool_awaited is called for this free. */
enum gs_map_end gs_map_freed(const struct gs_block *block, const struct gs_block *after, bool success);
/* Removes one of the blocks that ended with context from the books. *at: where to look for the next (start with 0).
 * False: there is none. */
bool gs_map_ended(CUcontext context, uint32_t *at);
/* Copies one block for each stream in which a free of the pool may not have happened yet, at most `room`, and forgets
 * the pool's layout. Returns the number of these streams; `room` + 1: more than `room`. */
unsigned gs_map_forget(uint64_t pool, struct gs_block *streams, unsigned room);
/* An allocation from a pool that may not grow over its charge. */
struct gs_wanted {
  uint64_t pool, bytes;
  uint64_t need; /* the most that the pool grows by if it has no free place */
  CUstream stream;
  CUcontext context;
};
enum gs_room {
  GS_NO_ROOM,
  GS_ROOM_TO_GROW_FINELY, /* no free place is known; below its cap the pool can grow only by the bytes in whole pages */
  GS_ROOM                 /* there is a free place; if the pool gives it back, it grows by no more than that */
};
/* Whether a pool that has reserved `reserved` bytes has room. exact: the pool's `fading` is the driver's current
 * figure. Walks over all blocks of the process if the pool has that many free bytes at all. */
enum gs_room gs_map_room(const struct gs_wanted *wanted, uint64_t reserved, bool exact);

/* ---- with the lock of the pools' tables held ---- */

/* No free in stream order is queued any more. */
void gs_map_settled(struct gs_pool *pool);
void gs_map_remove_chunk(struct gs_chunk *chunk);
/* Whether the piece may no longer exist. */
static inline bool gs_map_doubted(const struct gs_pool *pool, const struct gs_chunk *chunk) {
  return chunk->live == 0 && chunk->trusted != pool->doubts;
}

#endif
