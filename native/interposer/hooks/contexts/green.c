/* Green contexts: parts of a device's multiprocessors with streams of their own. Memory, programs and cost are those of
 * the primary context, which each green context keeps alive. */
#include "hooks.h"
#include "interposer/hooks/contexts/contexts.h"
#include "interposer/memory/books/books.h"
#include "interposer/memory/books/charge.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"
#include "interposer/process/greens.h"
#include "interposer/process/passage/passage.h"
#include "interposer/process/refused.h"
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

/* *fresh: there was no primary context, and the driver has made it. */
static CUresult create(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice device, unsigned int flags, bool *fresh) {
  struct gs_patience patience = {0};
  int ordinal = gs_device_ordinal(device), reserved;
  uint64_t bytes;
  CUresult result;
  do {
    gs_settled_begin();
    gs_lock(&gs_process->context_lock[ordinal]);
    *fresh = gs_process->primary[ordinal] == NULL;
    bytes = 0;
    reserved = *fresh ? gs_context_reserve(device, &ordinal, &bytes) : 0;
    result = reserved == 0 ? gs_real.cuGreenCtxCreate(out, desc, device, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    if (reserved == 0 && result != CUDA_SUCCESS)
      gs_give_back(ordinal, bytes);
    if (result == CUDA_SUCCESS) {
      gs_primary_is(ordinal, *fresh ? primary_of(device) : gs_process->primary[ordinal]);
      note(*out, ordinal);
    }
    gs_unlock(&gs_process->context_lock[ordinal]);
    gs_settled_end();
  } while (gs_context_again(reserved, result, ordinal, &patience));
  return gs_refused(result);
}

CUresult gs_cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  CUresult result;
  bool fresh;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags) : result;
  int ordinal = gs_device_ordinal(dev);
  if (phCtx && gs_elsewhere(dev))
    return gs_refuse_elsewhere(dev);
  if (!phCtx || ordinal == GS_NO_DEVICE)
    return gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags); /* which refuses */
  if (!gs_green_room())
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = create(phCtx, desc, dev, flags, &fresh);
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
