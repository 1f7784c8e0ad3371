/* Green contexts: parts of a device's multiprocessors with streams of their own. Memory, programs and cost are those of the
 * primary context, which each keeps alive. */
#include "books.h"
#include "context.h"
#include "device.h"

/* The driver gives its handle to whoever retains it. */
static CUcontext primary_of(CUdevice device) {
  CUcontext primary = NULL;
  if (gs_real.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
    return NULL;
  gs_real.cuDevicePrimaryCtxRelease_v2(device);
  return primary;
}

static void note(CUgreenCtx green, int ordinal) {
  CUcontext context;
  if (gs_real.cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS)
    return;
  gs_book_put(&(struct gs_entry){.key = (uintptr_t)context,
                                 .kind = GS_BOOK_GREEN,
                                 .ordinal = GS_NO_DEVICE,
                                 .link = (uintptr_t)gs_process->primary[ordinal]});
  __atomic_fetch_add(&gs_process->greens, 1, __ATOMIC_RELEASE);
}

CUresult gs_cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags) : result;
  int ordinal = gs_device_ordinal(dev);
  uint64_t bytes = 0;
  if (!phCtx)
    return gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags); /* which refuses */
  if (ordinal == GS_NO_DEVICE) {
    result = gs_context_reserve(dev, &ordinal, &bytes);
    return result == CUDA_SUCCESS ? gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags) : result;
  }
  if (!gs_book_room(2))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_lock(&gs_process->context_lock[ordinal]);
  bool fresh = gs_process->primary[ordinal] == NULL;
  result = fresh ? gs_context_reserve(dev, &ordinal, &bytes) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    result = gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags);
    if (result != CUDA_SUCCESS)
      gs_give_back(ordinal, bytes);
    else if (fresh)
      gs_primary_made(ordinal, primary_of(dev));
    if (result == CUDA_SUCCESS)
      note(*phCtx, ordinal);
  }
  gs_unlock(&gs_process->context_lock[ordinal]);
  if (result == CUDA_SUCCESS && fresh)
    gs_time_start(ordinal);
  return result;
}

void gs_greens_gone(CUcontext primary) {
  if (__atomic_load_n(&gs_process->greens, __ATOMIC_ACQUIRE) == 0)
    return;
  gs_book_drop_link(GS_BOOK_GREEN, (uintptr_t)primary);
}

CUresult gs_cuGreenCtxDestroy(CUgreenCtx hCtx) {
  CUresult result;
  CUcontext context = NULL;
  struct gs_entry gone;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuGreenCtxDestroy(hCtx) : result;
  int ordinal = GS_NO_DEVICE;
  if (hCtx && gs_real.cuCtxFromGreenCtx(&context, hCtx) == CUDA_SUCCESS)
    ordinal = gs_context_device(context);
  if (ordinal == GS_NO_DEVICE)
    return gs_real.cuGreenCtxDestroy(hCtx);
  gs_time_context_gone(context, ordinal);
  if (gs_process->primary[ordinal]) /* which may end with it, see let_go in context.c */
    gs_time_context_gone(gs_process->primary[ordinal], ordinal);
  gs_lock(&gs_process->context_lock[ordinal]);
  result = gs_real.cuGreenCtxDestroy(hCtx);
  if (result == CUDA_SUCCESS) {
    gs_device_context_forget();
    gs_book_take(GS_BOOK_GREEN, (uintptr_t)context, &gone);
    gs_primary_settle(gs_device_of(ordinal), ordinal);
  }
  gs_unlock(&gs_process->context_lock[ordinal]);
  return result;
}
