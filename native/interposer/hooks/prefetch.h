/* Calls that choose where managed memory is placed. */
#ifndef GPUSHARE_HOOKS_PREFETCH_H
#define GPUSHARE_HOOKS_PREFETCH_H

#include "interposer/hooks/copies.h"
#include "interposer/process/process.h"

static inline CUmemLocation gs_device_place(CUdevice device) {
  return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

struct gs_around_prefetch {
  struct gs_around_copy copy;
};
CUresult gs_before_prefetch(struct gs_around_prefetch *around, const CUmemLocation *places, size_t count,
                            CUstream stream);
CUresult gs_after_prefetch(struct gs_around_prefetch *around, CUresult result);

CUresult gs_before_advise(CUmem_advise advice, CUmemLocation place);

#endif
