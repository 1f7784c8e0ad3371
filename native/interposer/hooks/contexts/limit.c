#include "interposer/hooks/contexts/limit.h"

#include "interposer/process/device.h"
#include "interposer/process/greens.h"

CUresult gs_before_limit(struct gs_around_limit *around, CUlimit limit, size_t value) {
  CUresult result = CUDA_SUCCESS;
  around->growing.grows = false;
  if (!gs_enter(&result))
    return result;
  int ordinal = gs_current_device();
  CUcontext context = gs_owner_current();
  size_t now;
  bool sizes = limit >= CU_LIMIT_STACK_SIZE && limit <= CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT;
  if (!sizes || ordinal == GS_NO_DEVICE || !context || (limit == CU_LIMIT_STACK_SIZE && value > GS_STACK_MAX) ||
      (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && value > GS_SYNC_DEPTH_MAX) ||
      gs_real.cuCtxGetLimit(&now, limit) != CUDA_SUCCESS)
    return CUDA_SUCCESS; /* nothing to charge, or an error for the driver to report */
  return gs_implicit_begin(&around->growing, context, ordinal, (uint32_t)limit, value);
}

CUresult gs_after_limit(struct gs_around_limit *around, CUresult result) {
  gs_implicit_end(&around->growing, result == CUDA_SUCCESS);
  return result;
}
