/* Calls that choose where managed memory and plain memory of the program are placed. */
#ifndef GPUSHARE_HOOKS_PREFETCH_H
#define GPUSHARE_HOOKS_PREFETCH_H

#include "interposer/hooks/call.h"
#include "interposer/process/process.h"

static inline CUmemLocation gs_device_place(CUdevice device) {
  return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult gs_do_prefetch(const struct gs_call *call, CUdeviceptr address, size_t bytes, CUmemLocation place,
                        unsigned int flags, CUstream stream);

/* A batch as the program describes it: place i applies to the addresses from index first[i] on. */
struct gs_batch {
  CUdeviceptr *address;
  size_t *bytes;
  size_t count;
  CUmemLocation *place;
  size_t *first;
  size_t places;
  unsigned long long flags;
  bool discard; /* the memory's contents may be lost */
};
CUresult gs_do_prefetch_batch(const struct gs_call *call, struct gs_batch batch, CUstream stream);

CUresult gs_do_advise(const struct gs_call *call, CUdeviceptr address, size_t bytes, CUmem_advise advice,
                      CUmemLocation place);

#endif
