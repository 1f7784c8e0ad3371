/* Calls that allocate from the driver's memory pools and ask for the current pool. */
#ifndef GPUSHARE_HOOKS_POOLS_H
#define GPUSHARE_HOOKS_POOLS_H

#include "interposer/hooks/call.h"
#include "interposer/process/process.h"

/* pool: NULL means the current pool of the stream's device, unless the program named the pool (named). */
CUresult gs_do_pool_alloc(const struct gs_call *call, CUdeviceptr *address, size_t bytes, bool named, CUmemoryPool pool,
                          CUstream stream);
CUresult gs_do_pool_attribute(const struct gs_call *call, CUmemoryPool pool, CUmemPool_attribute attribute);
CUresult gs_do_get_pool(const struct gs_call *call, CUmemoryPool *pool, const CUmemLocation *location,
                        CUmemAllocationType type);

#endif
