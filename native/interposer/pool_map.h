/* What lies where in a pool, as far as the program's own calls tell. A grant with less than one step of growth left can still
 * use what its pools hold free, if it is certain that the pool need not grow for it: a growth that does not fit must not happen
 * even for a moment. Where this map does not know it says no. */
#ifndef GPUSHARE_POOL_MAP_H
#define GPUSHARE_POOL_MAP_H

#include "books.h"

enum { GS_BLOCK_ROUND = 512 /* a pool's blocks are multiples of it */ };

/* An allocation of `bytes` gave address and made the pool grow by `growth`: the block lies at the start of the new piece. */
void gs_map_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t growth);
/* A block that is out of the books was freed in the order of stream. */
void gs_map_faded(const struct gs_entry *block, CUstream stream);
/* The pool, `reserved` and `used` by the driver's figures, has a place for `bytes` more on stream. */
bool gs_map_has_room(uint64_t pool, uint64_t bytes, CUstream stream, uint64_t reserved, uint64_t used);
void gs_map_forget(uint64_t pool);

#endif
