/* The blocks of pools, and the frees in stream order that their streams may not have reached. */
#ifndef GPUSHARE_MEMORY_POOL_BLOCKS_H
#define GPUSHARE_MEMORY_POOL_BLOCKS_H

#include "interposer/memory/pools/pool_charge.h"

/* An announced allocation of `bytes` has returned address: a block that ends with context. grown: by how much the pool
 * grew for it, at least. */
void gs_block_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t grown, CUcontext context);
/* A call is about to free a block, which is in use until the call has returned. False: no block is known at this
 * address. Must be followed by gs_block_freed. */
bool gs_block_frees(uint64_t address, struct gs_block *block);
/* That call has returned. stream: NULL if the free happens at once, else it happens in the order of *stream. */
void gs_block_freed(const struct gs_block *block, const CUstream *stream, bool success);
/* A call that destroys a pool (gs_pool_departs) has returned. */
void gs_pool_departed(const struct gs_departure *departure, bool destroyed);
/* Removes the blocks that end with the context of the stream in which they were allocated. */
void gs_pools_context_gone(CUcontext context);

#endif
