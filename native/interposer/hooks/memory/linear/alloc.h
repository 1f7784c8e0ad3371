/* cuMemAlloc, cuMemFree. */
#ifndef GPUSHARE_HOOKS_ALLOC_H
#define GPUSHARE_HOOKS_ALLOC_H

#include "interposer/hooks/call.h"
#include "interposer/process/process.h"

/* Handlers of the families of cuMemAlloc and cuMemFree. */
CUresult gs_do_alloc(const struct gs_call *call, struct gs_out address, size_t bytes);
CUresult gs_do_free(const struct gs_call *call, CUdeviceptr address);
CUresult gs_do_free_async(const struct gs_call *call, CUdeviceptr address, CUstream stream);

#endif
