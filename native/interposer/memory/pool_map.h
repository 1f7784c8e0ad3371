/* What lies where in a pool, as far as the program's own calls tell. A grant with less than one step of growth left can
 * still use what its pools hold free, if it is certain that the pool need not grow for it: a growth that does not fit
 * must not happen even for a moment. Where this map does not know it says no. */
#ifndef GPUSHARE_POOL_MAP_H
#define GPUSHARE_POOL_MAP_H

#include "interposer/memory/books.h"

enum { GS_BLOCK_ROUND = 512 /* a pool's blocks are multiples of it */ };

/* An allocation of `bytes` gave address and made the pool grow by `growth`: the block lies at the start of the new
 * piece and ends with context. */
void gs_map_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t growth, CUcontext context);
/* A block is about to be freed: out of the books, so that its address may come back, but its place is nobody's yet.
 * False: no block is known there. One of the three below follows. */
bool gs_map_take(uint64_t address, struct gs_block *block);
void gs_map_faded(const struct gs_block *block, CUstream stream); /* freed in the order of stream */
void gs_map_gone(const struct gs_block *block);                   /* freed */
void gs_map_put_back(const struct gs_block *block);               /* the driver refused */
/* One of the blocks that ended with context: out of the books, and *at is where to look for the next (start with 0).
 * False: there is none. */
bool gs_map_ended(CUcontext context, uint32_t *at, struct gs_block *block);
/* The pool, `reserved` and `used` by the driver's figures, has a place for `bytes` more on stream. */
bool gs_map_has_room(uint64_t pool, uint64_t bytes, CUstream stream, uint64_t reserved, uint64_t used);
/* The same, by counts alone: quick, and more often no. */
bool gs_map_plainly_has_room(uint64_t pool, uint64_t bytes, uint64_t reserved, uint64_t used);
void gs_map_forget(uint64_t pool);

#endif
