/* The API of streams. */
#include "sim/model/time/streams.h"

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (leastPriority)
    *leastPriority = SIM_LEAST_PRIORITY;
  if (greatestPriority)
    *greatestPriority = SIM_GREATEST_PRIORITY;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (phStream == NULL || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  struct sim_stream *stream = sim_stream_new(ctx, flags, sim_priority(priority));
  sim_unlock();
  if (stream == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *phStream = (CUstream)stream;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
  return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream hStream) {
  struct sim_stream *stream;
  if (hStream == NULL || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = sim_stream_get(hStream, &stream);
  if (result)
    return result;
  sim_lock();
  sim_stream_destroy(stream);
  sim_unlock();
  return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream handle) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  return result ? result : sim_stream_wait(stream);
}
CUresult cuStreamSynchronize(CUstream hStream) { return synchronize(hStream); }

static CUresult query(CUstream handle) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  sim_spin(sim_hello.query_ns);
  sim_lock();
  result = sim_stream_may_wait(stream);
  if (result == CUDA_SUCCESS) {
    sim_advance(sim_now());
    result = sim_ctx_fault(stream->ctx);
    if (result == CUDA_SUCCESS && !sim_stream_done(stream, sim_seq()))
      result = CUDA_ERROR_NOT_READY;
  }
  sim_unlock();
  return result;
}
CUresult cuStreamQuery(CUstream hStream) { return query(hStream); }

static CUresult get_priority(CUstream handle, int *priority) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (priority == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetPriority(CUstream hStream, int *priority) { return get_priority(hStream, priority); }

static CUresult get_flags(CUstream handle, unsigned *flags) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (flags == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags) { return get_flags(hStream, flags); }

static CUresult get_id(CUstream handle, unsigned long long *id) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (id == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId) { return get_id(hStream, streamId); }

static CUresult get_ctx(CUstream handle, CUcontext *ctx) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (ctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *ctx = (CUcontext)stream->ctx;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx) { return get_ctx(hStream, pctx); }

static CUresult get_ctx_v2(CUstream handle, CUcontext *ctx, CUgreenCtx *green) {
  CUcontext found = NULL;
  CUresult result = get_ctx(handle, &found);
  if (result)
    return result;
  if (ctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgreenCtx part = (CUgreenCtx)((const struct sim_ctx *)found)->green;
  *ctx = part && green ? NULL : found;
  if (green)
    *green = part;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx) {
  return get_ctx_v2(hStream, pCtx, pGreenCtx);
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx) {
  CUcontext ctx;
  if (phCtx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  return get_ctx_v2(hStream, &ctx, phCtx);
}

static CUresult get_device(CUstream handle, CUdevice *device) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (device == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *device = stream->ctx->device;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device) { return get_device(hStream, device); }
