/* Contexts created by the program, and the calling thread's context stack. */
#include "sim/api/contexts/contexts.h"
#include "sim/model/capture.h"

static CUresult ctx_create(CUcontext *out, unsigned flags, CUdevice device, unsigned api_version) {
  if (out == NULL || !sim_ctx_flags_valid(flags))
    return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  if (!sim_ctx_may_push())
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  struct sim_ctx *ctx = sim_ctx_new(device);
  CUresult result = ctx ? sim_ctx_raise(ctx, flags) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result && ctx)
    sim_ctx_free(ctx);
  sim_unlock();
  if (result)
    return result;
  ctx->api_version = api_version;
  sim_ctx_push(ctx);
  *out = (CUcontext)ctx;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) { return ctx_create(pctx, flags, dev, 3010); }
CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  return ctx_create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
  if (paramsArray || numParams)
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return ctx_create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
  if (ctxCreateParams && (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
    return CUDA_ERROR_NOT_SUPPORTED;
  return ctx_create(pctx, flags, dev, 3020);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  struct sim_ctx *ctx;
  if (handle == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (ctx->primary || ctx->green_of)
    return CUDA_ERROR_INVALID_CONTEXT; /* a primary context is released, not destroyed */
  uint64_t id = ctx->id;
  sim_ctx_wait(ctx);
  if (!sim_ctx_claim_end(ctx, id))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (sim_ctx_current() == ctx)
    sim_ctx_pop();
  sim_ctx_fell(ctx);
  return CUDA_SUCCESS;
}
CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pctx == NULL || flags)
    return CUDA_ERROR_INVALID_VALUE;
  ctx->refs++;
  *pctx = (CUcontext)ctx;
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext handle) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (ctx->refs == 0)
    return cuCtxDestroy_v2(handle);
  ctx->refs--;
  return CUDA_SUCCESS;
}

/* ---- the stack --------------------------------------------------------------------------------------------------- */

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  struct sim_ctx *ctx;
  if (handle == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  return sim_ctx_push(ctx) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
  struct sim_ctx *top = sim_ctx_top();
  if (!sim_ctx_pop())
    return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx)
    *pctx = (CUcontext)top;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext handle) {
  struct sim_ctx *ctx;
  if (handle == NULL) {
    sim_ctx_pop();
    return CUDA_SUCCESS;
  }
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  sim_ctx_set(ctx);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
  if (pctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pctx = (CUcontext)sim_ctx_top();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  sim_lock();
  bool capturing = ctx->captures > 0;
  for (struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
    if (stream->capture)
      sim_capture_invalidate(stream->capture);
  sim_unlock();
  return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : sim_ctx_wait(ctx);
}
CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }
