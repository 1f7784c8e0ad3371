/* Managed memory is charged when it is allocated, and must not move to a device that is not part of the grant. */
#include "interposer/hooks/prefetch.h"

#include "interposer/process/elsewhere.h"

static CUresult check(const CUmemLocation *places, size_t count) {
  CUresult result = CUDA_SUCCESS;
  CUdevice device;
  return gs_enter(&result) && gs_place_elsewhere(places, count, &device) ? gs_refuse_elsewhere(device) : result;
}

CUresult gs_before_prefetch(struct gs_around_prefetch *around, const CUmemLocation *places, size_t count,
                            CUstream stream) {
  CUresult result = check(places, count);
  return result == CUDA_SUCCESS ? gs_before_copy(&around->copy, GS_COPY_IN, 0, stream) : result;
}

CUresult gs_after_prefetch(struct gs_around_prefetch *around, CUresult result) {
  return gs_after_copy(&around->copy, result);
}

CUresult gs_before_advise(CUmem_advise advice, CUmemLocation place) {
  return check(&place, advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION); /* other advice does not place memory */
}
