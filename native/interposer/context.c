/* Contexts. Each costs device memory that nobody asked for by an allocation: limits->device[].context_bytes, reserved before the
 * driver makes one. Everything allocated in a context goes with it. */
#include "books.h"
#include "context.h"
#include "device.h"
#include "files.h"
#include "pool_charge.h"

static void contexts_changed(uint32_t by) {
  __atomic_fetch_add(&gs_process->contexts, by, __ATOMIC_RELAXED);
  gs_kernels_forget();
}

static void refuse_device(CUdevice device) {
  static uint32_t said;
  if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) == 0)
    gs_say("device %d is not part of this grant: set CUDA_VISIBLE_DEVICES to the grant's devices", device);
}

CUresult gs_context_reserve(CUdevice device, int *ordinal, uint64_t *bytes) {
  *ordinal = gs_device_ordinal(device);
  *bytes = 0;
  if (*ordinal == GS_NO_DEVICE) {
    int count = 0;
    if (device < 0 || gs_real.cuDeviceGetCount(&count) != CUDA_SUCCESS || device >= count)
      return CUDA_SUCCESS; /* no such device: the driver says so */
    refuse_device(device);
    return CUDA_ERROR_NOT_PERMITTED;
  }
  *bytes = gs_process->limits->device[*ordinal].context_bytes;
  return gs_book_room(1) && gs_reserve(*ordinal, *bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Contexts of one device are made and ended one at a time: a handle comes back as soon as the driver ended its context, and the
 * books must not take the new one's entries for the old one's. */
static CUresult begin(const CUcontext *out, CUdevice device, int *ordinal, uint64_t *bytes) {
  *ordinal = GS_NO_DEVICE;
  *bytes = 0;
  if (!out)
    return CUDA_SUCCESS; /* the driver's to refuse */
  CUresult result = gs_context_reserve(device, ordinal, bytes);
  if (result == CUDA_SUCCESS && *ordinal != GS_NO_DEVICE)
    gs_lock(&gs_process->context_lock[*ordinal]);
  return result;
}

static CUresult end_create(CUresult result, CUcontext *context, int ordinal, uint64_t bytes) {
  if (ordinal == GS_NO_DEVICE)
    return result;
  if (result != CUDA_SUCCESS) {
    gs_unlock(&gs_process->context_lock[ordinal]);
    gs_give_back(ordinal, bytes);
    gs_files_mention("cuCtxCreate", result);
    return result;
  }
  gs_book_put(&(struct gs_entry){.key = (uintptr_t)*context,
                                 .kind = GS_BOOK_CONTEXT,
                                 .ordinal = ordinal,
                                 .bytes = bytes,
                                 .context = *context});
  contexts_changed(1);
  gs_unlock(&gs_process->context_lock[ordinal]);
  gs_time_start(ordinal);
  return result;
}

CUresult gs_cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  CUresult result;
  int ordinal;
  uint64_t bytes;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuCtxCreate(pctx, flags, dev) : result;
  result = begin(pctx, dev, &ordinal, &bytes);
  if (result != CUDA_SUCCESS)
    return result;
  return end_create(gs_real.cuCtxCreate(pctx, flags, dev), pctx, ordinal, bytes);
}

CUresult gs_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  CUresult result;
  int ordinal;
  uint64_t bytes;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuCtxCreate_v2(pctx, flags, dev) : result;
  result = begin(pctx, dev, &ordinal, &bytes);
  if (result != CUDA_SUCCESS)
    return result;
  return end_create(gs_real.cuCtxCreate_v2(pctx, flags, dev), pctx, ordinal, bytes);
}

CUresult gs_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags, CUdevice dev) {
  CUresult result;
  int ordinal;
  uint64_t bytes;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev) : result;
  result = begin(pctx, dev, &ordinal, &bytes);
  if (result != CUDA_SUCCESS)
    return result;
  return end_create(gs_real.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev), pctx, ordinal, bytes);
}

CUresult gs_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
  CUresult result;
  int ordinal;
  uint64_t bytes;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev) : result;
  result = begin(pctx, dev, &ordinal, &bytes);
  if (result != CUDA_SUCCESS)
    return result;
  return end_create(gs_real.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev), pctx, ordinal, bytes);
}

/* What died with a context, after the driver ended it. */
static void context_gone(CUcontext context, int ordinal) {
  contexts_changed(UINT32_MAX);
  gs_greens_gone(context);
  gs_device_context_forget();
  gs_pools_context_gone(context);
  gs_book_drop_context(context);
  if (__atomic_load_n(&gs_process->pools[ordinal], __ATOMIC_RELAXED))
    gs_pools_settle(ordinal, true);
}

static bool created_here(CUcontext context, int *ordinal) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_CONTEXT, (uintptr_t)context);
  if (entry)
    *ordinal = entry->ordinal;
  gs_book_unlock();
  return entry != NULL;
}

static CUresult destroy(CUcontext context, CUresult (*end)(CUcontext context)) {
  CUresult result;
  int ordinal = GS_NO_DEVICE;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? end(context) : result;
  bool ours = created_here(context, &ordinal);
  if (!ours)
    return end(context);
  gs_time_context_gone(context, ordinal);
  gs_lock(&gs_process->context_lock[ordinal]);
  result = end(context);
  if (result == CUDA_SUCCESS)
    context_gone(context, ordinal);
  gs_unlock(&gs_process->context_lock[ordinal]);
  return result;
}

static CUresult destroy_v1(CUcontext context) { return gs_real.cuCtxDestroy(context); }
static CUresult destroy_v2(CUcontext context) { return gs_real.cuCtxDestroy_v2(context); }

CUresult gs_cuCtxDestroy(CUcontext ctx) { return destroy(ctx, destroy_v1); }

CUresult gs_cuCtxDestroy_v2(CUcontext ctx) { return destroy(ctx, destroy_v2); }

/* Ends the context with its last attachment; which one that is, only the driver knows. */
CUresult gs_cuCtxDetach(CUcontext ctx) {
  CUresult result;
  int ordinal = GS_NO_DEVICE;
  unsigned int version;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuCtxDetach(ctx) : result;
  bool ours = created_here(ctx, &ordinal);
  if (ours)
    gs_time_context_gone(ctx, ordinal);
  result = gs_real.cuCtxDetach(ctx);
  if (ours && result == CUDA_SUCCESS && gs_real.cuCtxGetApiVersion(ctx, &version) != CUDA_SUCCESS)
    context_gone(ctx, ordinal);
  return result;
}

/* ---- primary contexts: one per device, counted by the driver ----------------------------------------------------------------- */

static bool active(CUdevice device) {
  unsigned int flags;
  int is = 0;
  return gs_real.cuDevicePrimaryCtxGetState(device, &flags, &is) == CUDA_SUCCESS && is;
}

void gs_primary_made(int ordinal, CUcontext primary) {
  gs_process->primary[ordinal] = primary;
  contexts_changed(1);
}

void gs_primary_settle(CUdevice device, int ordinal) {
  CUcontext primary = gs_process->primary[ordinal];
  if (!primary || active(device))
    return;
  gs_process->primary[ordinal] = NULL;
  gs_give_back(ordinal, gs_process->limits->device[ordinal].context_bytes);
  context_gone(primary, ordinal);
}

CUresult gs_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuDevicePrimaryCtxRetain(pctx, dev) : result;
  int ordinal = gs_device_ordinal(dev);
  uint64_t bytes = 0;
  if (!pctx)
    return gs_real.cuDevicePrimaryCtxRetain(pctx, dev); /* which refuses */
  if (ordinal == GS_NO_DEVICE) {
    result = gs_context_reserve(dev, &ordinal, &bytes);
    return result == CUDA_SUCCESS ? gs_real.cuDevicePrimaryCtxRetain(pctx, dev) : result;
  }
  gs_lock(&gs_process->context_lock[ordinal]);
  CUcontext *primary = &gs_process->primary[ordinal];
  bool fresh = *primary == NULL;
  result = fresh ? gs_context_reserve(dev, &ordinal, &bytes) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    result = gs_real.cuDevicePrimaryCtxRetain(pctx, dev);
    if (result != CUDA_SUCCESS)
      gs_give_back(ordinal, bytes);
    else if (fresh)
      gs_primary_made(ordinal, *pctx);
  }
  gs_unlock(&gs_process->context_lock[ordinal]);
  if (result == CUDA_SUCCESS && fresh)
    gs_time_start(ordinal);
  gs_files_mention("cuDevicePrimaryCtxRetain", result);
  return result;
}

/* Release and reset: the driver says whether the context lived on. */
static CUresult let_go(CUdevice device, CUresult (*act)(CUdevice device)) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? act(device) : result;
  int ordinal = gs_device_ordinal(device);
  if (ordinal == GS_NO_DEVICE)
    return act(device);
  gs_lock(&gs_process->context_lock[ordinal]);
  CUcontext primary = gs_process->primary[ordinal];
  gs_unlock(&gs_process->context_lock[ordinal]);
  /* marks and events of the time half must not outlive it; a release that is not the last costs a new start of metering */
  if (primary)
    gs_time_context_gone(primary, ordinal);
  gs_lock(&gs_process->context_lock[ordinal]);
  result = act(device);
  if (result == CUDA_SUCCESS)
    gs_primary_settle(device, ordinal);
  gs_unlock(&gs_process->context_lock[ordinal]);
  return result;
}

static CUresult release_v1(CUdevice device) { return gs_real.cuDevicePrimaryCtxRelease(device); }
static CUresult release_v2(CUdevice device) { return gs_real.cuDevicePrimaryCtxRelease_v2(device); }
static CUresult reset_v1(CUdevice device) { return gs_real.cuDevicePrimaryCtxReset(device); }
static CUresult reset_v2(CUdevice device) { return gs_real.cuDevicePrimaryCtxReset_v2(device); }

CUresult gs_cuDevicePrimaryCtxRelease(CUdevice dev) { return let_go(dev, release_v1); }
CUresult gs_cuDevicePrimaryCtxRelease_v2(CUdevice dev) { return let_go(dev, release_v2); }
CUresult gs_cuDevicePrimaryCtxReset(CUdevice dev) { return let_go(dev, reset_v1); }
CUresult gs_cuDevicePrimaryCtxReset_v2(CUdevice dev) { return let_go(dev, reset_v2); }
