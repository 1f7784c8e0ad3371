/* Green contexts: parts of a device's multiprocessors with streams of their own. Memory, programs and cost are those of
 * the primary context, which each green context keeps alive. */
#include "hooks.h"
#include "interposer/hooks/contexts/contexts.h"
#include "interposer/memory/books/books.h"
#include "interposer/memory/books/charge.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/process/passage.h"
#include "interposer/residency/leaving.h"
#include "interposer/time/gate/start.h"
#include "interposer/time/marks/contexts.h"

/* The driver returns the primary context's handle when it is retained. */
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
  gs_lock(&gs_process->gone_lock);
  gs_context_replaced(context);
  gs_green_add(context, gs_process->primary[ordinal], ordinal);
  /* a thread that guessed the handle may have allocated in it already */
  gs_books_move_context(context, gs_process->primary[ordinal]);
  gs_movable_context_gone(context, gs_process->primary[ordinal]);
  gs_unlock(&gs_process->gone_lock);
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
  if (!gs_green_room())
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!__atomic_load_n(&gs_process->primary[ordinal], __ATOMIC_ACQUIRE))
    gs_await_memory();
  gs_settled_begin();
  gs_lock(&gs_process->context_lock[ordinal]);
  bool fresh = gs_process->primary[ordinal] == NULL;
  result = fresh ? gs_context_reserve(dev, &ordinal, &bytes) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    result = gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags);
    if (result != CUDA_SUCCESS)
      gs_give_back(ordinal, bytes);
    else
      gs_primary_is(ordinal, fresh ? primary_of(dev) : gs_process->primary[ordinal]);
    if (result == CUDA_SUCCESS)
      note(*phCtx, ordinal);
  }
  gs_unlock(&gs_process->context_lock[ordinal]);
  gs_settled_end();
  if (result == CUDA_SUCCESS && fresh)
    gs_time_start(ordinal);
  return result;
}

CUresult gs_cuGreenCtxDestroy(CUgreenCtx hCtx) {
  CUresult result;
  CUcontext context = NULL;
  struct gs_green green, now;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuGreenCtxDestroy(hCtx) : result;
  if (!hCtx || gs_real.cuCtxFromGreenCtx(&context, hCtx) != CUDA_SUCCESS || !gs_green_find(context, &green))
    return gs_real.cuGreenCtxDestroy(hCtx);
  gs_settled_begin();
  struct gs_ending primary = gs_primary_ending(green.ordinal); /* which may end with it */
  result = gs_real.cuGreenCtxDestroy(hCtx);
  gs_lock(&gs_process->gone_lock);
  if (result == CUDA_SUCCESS && gs_green_find(context, &now) && now.number == green.number)
    gs_green_gone(&green);
  gs_unlock(&gs_process->gone_lock);
  gs_primary_ended(&primary, result);
  gs_settled_end();
  return result;
}
