#include "interposer/hooks/memory/stand_in.h"

bool gs_stands_for(CUdeviceptr address, struct gs_movable *at) {
  if (!gs_movable_find(address, at))
    return false;
  if (address - at->address >= at->asked)
    at->proxy = 0;
  return true;
}

CUdeviceptr gs_stand_in(CUdeviceptr address, uint64_t bytes) {
  struct gs_movable at;
  uint64_t most = UINT64_MAX - address; /* the driver refuses a range beyond that */
  uint64_t range = bytes == 0 ? 1 : bytes < most ? bytes : most;
  if (!gs_movable_overlaps(address, range))
    return address;
  return gs_stands_for(address, &at) ? at.proxy : 0;
}

CUresult gs_before_stand_in(CUdeviceptr *address, size_t bytes) {
  CUresult result = CUDA_SUCCESS;
  if (gs_enter(&result))
    *address = gs_stand_in(*address, bytes);
  return result;
}

CUresult gs_before_stand_in_pointer(void **address, size_t bytes) {
  CUdeviceptr asked = (uintptr_t)*address;
  CUresult result = gs_before_stand_in(&asked, bytes);
  *address = (void *)(uintptr_t)asked;
  return result;
}
