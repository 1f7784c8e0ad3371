/* cuCtxSetLimit: buffers that the driver allocates from a context's memory. */
#ifndef GPUSHARE_HOOKS_LIMIT_H
#define GPUSHARE_HOOKS_LIMIT_H

#include "interposer/memory/implicit/implicit.h"
#include "interposer/process/process.h"

struct gs_around_limit {
  struct gs_growing growing;
};
CUresult gs_before_limit(struct gs_around_limit *around, CUlimit limit, size_t value);
CUresult gs_after_limit(struct gs_around_limit *around, CUresult result);

#endif
