#include "interposer/memory/implicit/kernels.h"

#include "interposer/memory/implicit/collectives.h"
#include "interposer/memory/implicit/library_code.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/process/passage/room.h"
#include "interposer/time/gate/collectives.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/repeat.h"
#include "interposer/time/streams/streams.h"

void gs_kernels_forget(void) {
  __atomic_fetch_add(&gs_process->kernel_generation, 1, __ATOMIC_RELAXED);
  if (gs_time())
    gs_repeat_end(gs_time());
}

/* Local memory of one thread of a kernel, in bytes; 0 if the driver does not say. The context is current. */
static uint64_t local_bytes(CUfunction function, bool of_library, int ordinal) {
  int bytes = 0;
  CUresult result = of_library ? gs_real.cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                                                              (CUkernel)function, gs_device_of(ordinal))
                               : gs_real.cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
  return result == CUDA_SUCCESS && bytes > 0 ? (uint64_t)bytes : 0;
}

CUresult gs_kernel_need(CUfunction function, CUcontext context, int *ordinal, uint64_t *stack) {
  CUcontext popped, current = gs_owner_current();
  bool of_library = false;
  *stack = 0;
  *ordinal = context ? gs_context_device(context) : GS_NO_DEVICE;
  if (!function || *ordinal == GS_NO_DEVICE)
    return CUDA_SUCCESS; /* nothing to charge, or an error for the driver to report */
  if (context != current && gs_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
    return CUDA_SUCCESS;
  /* querying may load the kernel, as its launch would */
  int previous = gs_time() ? gs_capture_mode_push() : -1;
  CUresult result = gs_kernel_placed(function, context, *ordinal, &of_library);
  if (result == CUDA_SUCCESS)
    *stack = local_bytes(function, of_library, *ordinal);
  if (gs_time())
    gs_capture_mode_pop(previous);
  if (context != current)
    gs_real.cuCtxPopCurrent_v2(&popped);
  return result;
}

/* The hash of a collective is never stored as known, so that each of its launches comes here. This other hash records
 * that what it needs is reserved. */
static uint64_t collective_hash(uint64_t hash) {
  return hash * 0xd6e8feb86659fd93u | 1; /* an odd constant with well-distributed bits */
}

CUresult gs_kernel_look_slow(struct gs_kernel_use *use, CUfunction function, CUstream stream, uint64_t hash) {
  int ordinal;
  uint64_t stack;
  *use = (struct gs_kernel_use){0};
  struct gs_time *time = gs_time();
  if (time && __atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) > 0 && gs_stream_capturing(stream))
    return CUDA_SUCCESS; /* it runs when its graph does */
  bool collective = gs_collective(function);
  CUresult result = CUDA_SUCCESS;
  use->kernel = hash = collective ? collective_hash(hash) : hash;
  if (!collective || !gs_kernel_known(hash)) {
    CUcontext context = gs_stream_owner(stream);
    bool before = gs_room_endless_begin();
    result = gs_kernel_need(function, context, &ordinal, &stack);
    if (result == CUDA_SUCCESS && stack > 0)
      result = gs_stack_begin(&use->stack, context, ordinal, stack);
    gs_room_endless_end(before);
  }
  if (result == CUDA_SUCCESS && collective) {
    use->collective = true;
    use->stream = stream;
    use->ordinal = gs_collective_device(stream);
    gs_collective_begin(use->ordinal, 1);
  }
  return result;
}

void gs_kernel_looked_slow(const struct gs_kernel_use *use, CUresult result) {
  gs_implicit_end(&use->stack, result == CUDA_SUCCESS);
  if (use->collective) {
    gs_repeat_of(use->stream)->left = 0; /* each collective is counted separately */
    gs_collective_end(use->ordinal, 1, result);
  }
  if (result == CUDA_SUCCESS)
    __atomic_store_n(gs_kernel_place(use->kernel), use->kernel, __ATOMIC_RELAXED);
}
