#include "interposer/hooks/memory/sharing.h"

#include "interposer/process/passage/passage.h"
#include "interposer/residency/movable.h"

CUresult gs_refuse_moving(uint32_t *said, const char *what) {
  if (__atomic_exchange_n(said, 1, __ATOMIC_RELAXED) == 0)
    gs_say("%s does not work on memory that may leave the device while it is idle: ask for --idle-memory keep", what);
  return CUDA_ERROR_NOT_SUPPORTED;
}

/* Drivers give such handles for memory of cuMemAlloc alone. */
CUresult gs_do_ipc_export(const struct gs_call *call, const CUipcMemHandle *handle, CUdeviceptr address) {
  static uint32_t said;
  struct gs_movable at;
  if (!handle || !gs_movable_find(address, &at))
    return gs_call(call);
  return gs_refuse_moving(&said, "cuIpcGetMemHandle");
}

/* A file for another driver, which keeps the pages in place. Drivers give it for mapped memory as well. */
CUresult gs_do_range_handle(const struct gs_call *call, CUdeviceptr address) {
  struct gs_movable at;
  if (!gs_movable_find(address, &at))
    return gs_call(call);
  gs_touch_begin();
  CUresult result = gs_call(call);
  if (result == CUDA_SUCCESS)
    gs_movable_fix(address, GS_FIXED_EXPORTED);
  gs_touch_end();
  return result;
}
