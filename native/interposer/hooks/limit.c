#include "interposer/hooks/limit.h"

#include "interposer/process/device.h"
#include "interposer/process/greens.h"

CUresult gs_before_limit(struct gs_around_limit *around, CUlimit limit, size_t value) {
  CUresult result = CUDA_SUCCESS;
  around->growing.grows = false;
  if (!gs_enter(&result))
    return result;
  int ordinal = gs_current_device();
  CUcontext context = gs_owner_current();
  bool sizes = limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
  if (!sizes || ordinal == GS_NO_DEVICE || !context || (limit == CU_LIMIT_STACK_SIZE && value > GS_STACK_MAX))
    return CUDA_SUCCESS; /* nothing to charge, or an error for the driver to report */
  return gs_implicit_begin(&around->growing, context, ordinal, (uint32_t)limit, value);
}

CUresult gs_after_limit(struct gs_around_limit *around, CUresult result) {
  gs_implicit_end(&around->growing, result == CUDA_SUCCESS);
  return result;
}
