/* The layout of a pool, as far as the program's own calls reveal it. A grant with less than one step of growth left can
 * still use free memory of its pools, if it is certain that the pool need not grow: a growth that does not fit must not
 * happen even for a moment. Where the map is not certain, it answers no. */
#ifndef GPUSHARE_POOL_MAP_H
#define GPUSHARE_POOL_MAP_H

#include "interposer/memory/books.h"

enum { GS_BLOCK_ROUND = 512 /* a pool's blocks are multiples of it */ };

/* An allocation of `bytes` returned address and made the pool grow by `growth`: the block lies at the start of the new
 * piece and ends with context. */
void gs_map_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t growth, CUcontext context);
/* A block is about to be freed: removes it from the books, because its address may be reused, but keeps its place
 * occupied. False: no block is known at this address. Must be followed by one of the three functions below. */
bool gs_map_take(uint64_t address, struct gs_block *block);
void gs_map_faded(const struct gs_block *block, CUstream stream); /* freed in stream order */
void gs_map_gone(const struct gs_block *block);                   /* freed */
void gs_map_put_back(const struct gs_block *block);               /* the driver refused */
/* Removes one of the blocks that ended with context from the books. *at: where to look for the next (start with 0).
 * False: there is none. */
bool gs_map_ended(CUcontext context, uint32_t *at, struct gs_block *block);
/* Whether the pool, whose sizes the driver reports as `reserved` and `used`, has room for `bytes` more on stream. */
bool gs_map_has_room(uint64_t pool, uint64_t bytes, CUstream stream, uint64_t reserved, uint64_t used);
/* The same, decided from the counts only: faster, and more often false. */
bool gs_map_plainly_has_room(uint64_t pool, uint64_t bytes, uint64_t reserved, uint64_t used);
void gs_map_forget(uint64_t pool);

#endif
