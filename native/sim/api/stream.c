/* Streams as a program sees them. */
#include "sim/model/streams.h"

enum { GREATEST_PRIORITY = -5 };

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (leastPriority)
    *leastPriority = 0;
  if (greatestPriority)
    *greatestPriority = GREATEST_PRIORITY;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (phStream == NULL || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  if (priority > 0)
    priority = 0;
  if (priority < GREATEST_PRIORITY)
    priority = GREATEST_PRIORITY;
  sim_lock();
  struct sim_stream *stream = sim_stream_new(ctx, flags, priority);
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
  CUresult result = sim_stream_get(hStream, false, &stream);
  if (result)
    return result;
  sim_lock();
  sim_stream_destroy(stream);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream hStream) { return cuStreamDestroy_v2(hStream); }

static CUresult synchronize(CUstream handle, bool per_thread) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
  return result ? result : sim_stream_wait(stream);
}
CUresult cuStreamSynchronize(CUstream hStream) { return synchronize(hStream, false); }
CUresult cuStreamSynchronize_ptsz(CUstream hStream) { return synchronize(hStream, true); }

static CUresult query(CUstream handle, bool per_thread) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
  if (result)
    return result;
  sim_spin(sim_hello.query_ns);
  sim_lock();
  result = sim_stream_may_wait(stream);
  if (result == CUDA_SUCCESS) {
    sim_advance(sim_now());
    if (!sim_stream_done(stream, sim_seq()))
      result = CUDA_ERROR_NOT_READY;
  }
  sim_unlock();
  return result;
}
CUresult cuStreamQuery(CUstream hStream) { return query(hStream, false); }
CUresult cuStreamQuery_ptsz(CUstream hStream) { return query(hStream, true); }

static CUresult get_priority(CUstream handle, bool per_thread, int *priority) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
  if (result)
    return result;
  if (priority == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetPriority(CUstream hStream, int *priority) { return get_priority(hStream, false, priority); }
CUresult cuStreamGetPriority_ptsz(CUstream hStream, int *priority) { return get_priority(hStream, true, priority); }

static CUresult get_flags(CUstream handle, bool per_thread, unsigned *flags) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
  if (result)
    return result;
  if (flags == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags) { return get_flags(hStream, false, flags); }
CUresult cuStreamGetFlags_ptsz(CUstream hStream, unsigned int *flags) { return get_flags(hStream, true, flags); }

static CUresult get_id(CUstream handle, bool per_thread, unsigned long long *id) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
  if (result)
    return result;
  if (id == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId) { return get_id(hStream, false, streamId); }
CUresult cuStreamGetId_ptsz(CUstream hStream, unsigned long long *streamId) { return get_id(hStream, true, streamId); }

static CUresult get_ctx(CUstream handle, bool per_thread, CUcontext *ctx) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
  if (result)
    return result;
  if (ctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *ctx = (CUcontext)stream->ctx;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx) { return get_ctx(hStream, false, pctx); }
CUresult cuStreamGetCtx_ptsz(CUstream hStream, CUcontext *pctx) { return get_ctx(hStream, true, pctx); }

static CUresult get_ctx_v2(CUstream handle, bool per_thread, CUcontext *ctx, CUgreenCtx *green) {
  CUcontext found = NULL;
  CUresult result = get_ctx(handle, per_thread, &found);
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
  return get_ctx_v2(hStream, false, pCtx, pGreenCtx);
}
CUresult cuStreamGetCtx_v2_ptsz(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx) {
  return get_ctx_v2(hStream, true, pCtx, pGreenCtx);
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx) {
  CUcontext ctx;
  if (phCtx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  return get_ctx_v2(hStream, false, &ctx, phCtx);
}

static CUresult get_device(CUstream handle, bool per_thread, CUdevice *device) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
  if (result)
    return result;
  if (device == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *device = stream->ctx->device;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device) { return get_device(hStream, false, device); }
CUresult cuStreamGetDevice_ptsz(CUstream hStream, CUdevice *device) { return get_device(hStream, true, device); }
