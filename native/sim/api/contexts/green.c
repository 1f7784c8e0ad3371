/* Green contexts: partitions of a device's multiprocessors. Kernels take as long on a partition as on the whole
 * simulated device; a green context only has streams of its own. */
#include <string.h>

#include "sim/api/contexts/contexts.h"
#include "sim/model/card.h"
#include "sim/model/handle.h"
#include "sim/model/time/streams.h"

enum { PARTITION_MIN = 4, PARTITION_STEP = 2, SPLIT_FLAGS = 3, SPLIT_FINE = 1 };

struct sim_description {
  uint32_t magic;
  unsigned sms;
};
static struct sim_kind description_kind = {sizeof(struct sim_description), 0x64657363, NULL};
static struct sim_kind green_kind = {sizeof(struct sim_green), 0x6772656e, NULL};

static CUresult green_get(CUgreenCtx handle, struct sim_green **green) {
  *green = (struct sim_green *)handle;
  if (*green == NULL || (*green)->magic != green_kind.magic)
    return CUDA_ERROR_INVALID_CONTEXT;
  return (*green)->ctx ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* ---- resources --------------------------------------------------------------------------------------------------- */

static CUresult describe(CUdevResource *resource, int type, unsigned sms) {
  if (resource == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM)
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  memset(resource, 0, sizeof *resource);
  resource->type = CU_DEV_RESOURCE_TYPE_SM;
  resource->sm = (CUdevSmResource){sms, PARTITION_MIN, PARTITION_STEP};
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type) {
  return sim_device_valid(device) ? describe(resource, type, SIM_MULTIPROCESSORS) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type) {
  struct sim_green *green;
  CUresult result = green_get(hCtx, &green);
  return result ? result : describe(resource, type, green->sms);
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_get(hCtx, &ctx);
  return result ? result : describe(resource, type, ctx->green ? ctx->green->sms : SIM_MULTIPROCESSORS);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups, const CUdevResource *input,
                                     CUdevResource *remaining, unsigned int useFlags, unsigned int minCount) {
  if (nbGroups == NULL || input == NULL || useFlags & ~(unsigned)SPLIT_FLAGS)
    return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM)
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  unsigned whole = input->sm.smCount;
  if (whole == 0 || whole > SIM_MULTIPROCESSORS || minCount > whole)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned least = useFlags & SPLIT_FINE ? 1 : PARTITION_MIN, step = useFlags & SPLIT_FINE ? 1 : PARTITION_STEP;
  unsigned each = ((minCount > least ? minCount : least) + step - 1) / step * step, groups = whole / each;
  if (groups == 0)
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (result && *nbGroups < groups)
    groups = *nbGroups;
  for (unsigned i = 0; result && i < groups; i++)
    describe(&result[i], CU_DEV_RESOURCE_TYPE_SM, each);
  if (remaining)
    describe(remaining, CU_DEV_RESOURCE_TYPE_SM, whole - groups * each);
  if (remaining && whole == groups * each)
    remaining->type = 0; /* no multiprocessors remain */
  *nbGroups = groups;
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources, unsigned int nbResources) {
  unsigned sms = 0;
  if (phDesc == NULL || resources == NULL || nbResources == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < nbResources; i++) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM)
      return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    sms += resources[i].sm.smCount;
  }
  if (sms == 0 || sms > SIM_MULTIPROCESSORS)
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  sim_lock();
  struct sim_description *made = sim_handle_new(&description_kind); /* never freed: the API has no function for it */
  sim_unlock();
  if (made == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  made->sms = sms;
  *phDesc = (CUdevResourceDesc)made;
  return CUDA_SUCCESS;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  const struct sim_description *description = (const struct sim_description *)desc;
  struct sim_ctx *ctx;
  if (phCtx == NULL || description == NULL || description->magic != description_kind.magic ||
      flags != CU_GREEN_CTX_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  CUresult result = sim_ctx_green_new(dev, &ctx);
  if (result)
    return result;
  sim_lock();
  struct sim_green *green = sim_handle_new(&green_kind);
  if (green) {
    *green = (struct sim_green){green->magic, description->sms, ctx};
    ctx->green = green;
  }
  sim_unlock();
  if (green == NULL) {
    sim_ctx_green_end(ctx);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *phCtx = (CUgreenCtx)green;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  struct sim_green *green = NULL;
  CUresult result = green_get(hCtx, &green);
  if (result && result != CUDA_ERROR_CONTEXT_IS_DESTROYED)
    return result;
  struct sim_ctx *ctx = green->ctx;
  sim_lock();
  if (ctx)
    ctx->green = NULL;
  sim_handle_free(&green_kind, green);
  sim_unlock();
  return ctx ? sim_ctx_green_end(ctx) : result;
}

CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx) {
  struct sim_green *green;
  CUresult result = green_get(hCtx, &green);
  if (result)
    return result;
  if (pContext == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pContext = (CUcontext)green->ctx;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId) {
  struct sim_green *green;
  CUresult result = green_get(greenCtx, &green);
  if (result)
    return result;
  if (greenCtxId == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *greenCtxId = green->ctx->id;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) {
  struct sim_green *green;
  CUresult result = green_get(greenCtx, &green);
  if (result)
    return result;
  if (phStream == NULL || flags != CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  struct sim_stream *stream = sim_stream_new(green->ctx, flags, priority);
  sim_unlock();
  if (stream == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *phStream = (CUstream)stream;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
  struct sim_green *green;
  CUresult result = green_get(hCtx, &green);
  return result ? result : cuCtxRecordEvent((CUcontext)green->ctx, hEvent);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
  struct sim_green *green;
  CUresult result = green_get(hCtx, &green);
  return result ? result : cuCtxWaitEvent((CUcontext)green->ctx, hEvent);
}
