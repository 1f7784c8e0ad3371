/* The blocks of pools. */
#ifndef GPUSHARE_MEMORY_POOL_BLOCKS_H
#define GPUSHARE_MEMORY_POOL_BLOCKS_H

#include "interposer/memory/books.h"

/* A block of a pool was freed, now or (stream not NULL) in the order of *stream; its entry is out of the books. */
void gs_pool_block_freed(const struct gs_block *block, const CUstream *stream);
/* Blocks end with the context of the stream they were allocated in. */
void gs_pools_context_gone(CUcontext context);

#endif
