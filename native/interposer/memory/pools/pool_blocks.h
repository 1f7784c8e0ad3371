/* Records what calls of the program do to pools and their blocks. */
#ifndef GPUSHARE_MEMORY_POOL_BLOCKS_H
#define GPUSHARE_MEMORY_POOL_BLOCKS_H

#include "interposer/memory/pools/pool_charge.h"
#include "interposer/memory/pools/pool_map.h"

/* A call that frees a block (gs_map_frees) has returned. stream: NULL if the free happens at once, else it happens in
 * the order of *stream. */
void gs_pool_block_freed(const struct gs_block *block, const CUstream *stream, bool success);
/* A call that destroys a pool (gs_pool_departs) has returned. */
void gs_pool_departed(const struct gs_departure *departure, bool destroyed);
/* Removes the blocks that end with the context of the stream in which they were allocated. */
void gs_pools_context_gone(CUcontext context);

#endif
