/* Primary contexts: one per device, counted by the driver. */
#include "hooks.h"
#include "interposer/hooks/contexts/contexts.h"
#include "interposer/os/files/files.h"
#include "interposer/process/answers.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"
#include "interposer/process/refused.h"
#include "interposer/process/trace.h"
#include "interposer/time/gate/start.h"

static bool active(CUdevice device) {
  unsigned int flags;
  int is = 0;
  return gs_real.cuDevicePrimaryCtxGetState(device, &flags, &is) == CUDA_SUCCESS && is;
}

static uint64_t id_of(CUcontext context) {
  unsigned long long id = 0;
  return gs_real_has(GS_INDEX_cuCtxGetId) && gs_real.cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
}

static void primary_gone(int ordinal) {
  gs_lock(&gs_process->gone_lock);
  gs_context_gone(gs_process->primary[ordinal], ordinal);
  gs_process->primary[ordinal] = NULL;
  gs_unlock(&gs_process->gone_lock);
}

/* A new primary context gets the same handle again: only the id distinguishes them. */
void gs_primary_is(int ordinal, CUcontext primary) {
  CUcontext known = gs_process->primary[ordinal];
  uint64_t id = id_of(primary);
  if (known == primary && (id == 0 || id == gs_process->primary_id[ordinal]))
    return;
  if (known)
    primary_gone(ordinal);
  gs_process->primary[ordinal] = primary;
  gs_process->primary_id[ordinal] = id;
  gs_contexts_changed(1);
}

struct gs_ending gs_primary_ending(int ordinal) {
  gs_lock(&gs_process->context_lock[ordinal]);
  struct gs_ending ending = {gs_process->primary[ordinal], ordinal, gs_process->primary_id[ordinal]};
  gs_unlock(&gs_process->context_lock[ordinal]);
  if (ending.context)
    gs_context_ending(&ending);
  return ending;
}

/* With context_lock. */
static void settle(int ordinal) {
  CUcontext primary = gs_process->primary[ordinal];
  if (!primary)
    return;
  if (active(gs_device_of(ordinal))) {
    gs_primary_is(ordinal, primary);
    return;
  }
  primary_gone(ordinal);
  gs_give_back(ordinal, gs_process->limits->device[ordinal].context_bytes);
}

void gs_primary_ended(const struct gs_ending *ending, CUresult result) {
  int ordinal = ending->ordinal;
  gs_lock(&gs_process->context_lock[ordinal]);
  if (result == CUDA_SUCCESS)
    settle(ordinal);
  bool lives = gs_process->primary[ordinal] == ending->context && gs_process->primary_id[ordinal] == ending->number;
  gs_unlock(&gs_process->context_lock[ordinal]);
  if (ending->context)
    gs_context_ended(ending, lives);
}

/* *fresh: there was none, and the driver has made it. */
static CUresult retain(CUcontext *out, CUdevice device, bool *fresh) {
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
    result = reserved == 0 ? gs_real.cuDevicePrimaryCtxRetain(out, device) : CUDA_ERROR_OUT_OF_MEMORY;
    if (reserved == 0 && result != CUDA_SUCCESS)
      gs_give_back(ordinal, bytes);
    else if (reserved == 0)
      gs_primary_is(ordinal, *out);
    gs_unlock(&gs_process->context_lock[ordinal]);
    gs_settled_end();
  } while (gs_context_again(reserved, result, ordinal, &patience));
  return gs_refused(result);
}

CUresult gs_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
  CUresult result;
  bool fresh;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuDevicePrimaryCtxRetain(pctx, dev) : result;
  gs_answered(CUDA_SUCCESS);
  int ordinal = gs_device_ordinal(dev);
  if (pctx && gs_elsewhere(dev))
    return gs_refuse_elsewhere(dev);
  if (!pctx || ordinal == GS_NO_DEVICE)
    return gs_real.cuDevicePrimaryCtxRetain(pctx, dev); /* which refuses */
  result = retain(pctx, dev, &fresh);
  if (result == CUDA_SUCCESS && fresh) {
    gs_trace(GS_TRACE_CONTEXT_MADE, ordinal, gs_process->limits->device[ordinal].context_bytes, gs_held(ordinal));
    gs_time_start(ordinal);
  }
  gs_files_mention("cuDevicePrimaryCtxRetain", result);
  return result;
}

/* Release and reset: the driver knows whether the context still exists. */
CUresult gs_do_primary_end(const struct gs_call *call, CUdevice device) {
  int ordinal = gs_device_ordinal(device);
  if (ordinal == GS_NO_DEVICE)
    return gs_call(call);
  gs_settled_begin();
  struct gs_ending ending = gs_primary_ending(ordinal);
  CUresult result = gs_call(call);
  gs_primary_ended(&ending, result);
  gs_settled_end();
  return result;
}
