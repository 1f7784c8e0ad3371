/* The blocks of pools. */
#ifndef GPUSHARE_MEMORY_POOL_BLOCKS_H
#define GPUSHARE_MEMORY_POOL_BLOCKS_H

#include "interposer/memory/books.h"

/* A block of a pool was freed, at once (stream is NULL) or in the order of *stream; it is no longer in the books. */
void gs_pool_block_freed(const struct gs_block *block, const CUstream *stream);
/* Removes the blocks that end with the context of the stream in which they were allocated. */
void gs_pools_context_gone(CUcontext context);

#endif
