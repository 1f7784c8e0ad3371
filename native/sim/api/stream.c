/* Streams: handles, the default streams, synchronisation. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/api/green.h"
#include "sim/graph/capture.h"
#include "sim/memory/memory.h"

static struct sim_kind stream_kind = {sizeof(struct sim_stream), 0x73747265, NULL};
static uint64_t stream_ids;

/* The calling thread's own default streams, one per context it used. */
struct own_stream {
  uint64_t ctx_id;
  struct sim_stream *stream;
  struct own_stream *next;
};
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

void *sim_handle_new(struct sim_kind *kind) {
  void *handle = kind->free_list;
  if (handle)
    kind->free_list = *(void **)((char *)handle + sizeof(void *));
  else
    handle = malloc(kind->bytes);
  if (handle == NULL)
    return NULL;
  memset(handle, 0, kind->bytes);
  *(uint32_t *)handle = kind->magic;
  return handle;
}

void sim_handle_free(struct sim_kind *kind, void *handle) {
  *(uint32_t *)handle = 0;
  *(void **)((char *)handle + sizeof(void *)) = kind->free_list;
  kind->free_list = handle;
}

struct sim_stream *sim_stream_new(struct sim_ctx *ctx, unsigned flags, int priority) {
  struct sim_stream *stream = sim_handle_new(&stream_kind);
  if (stream == NULL)
    return NULL;
  stream->ctx = ctx;
  stream->flags = flags;
  stream->priority = priority;
  stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
  stream->id = ++stream_ids;
  stream->next = ctx->streams;
  ctx->streams = stream;
  return stream;
}

static void stream_free(struct sim_stream *stream) {
  free(stream->cap_deps);
  free(stream->cap_edges);
  sim_handle_free(&stream_kind, stream);
}

void sim_streams_free(struct sim_ctx *ctx) {
  for (struct sim_stream *stream = ctx->streams, *next; stream; stream = next) {
    next = stream->next;
    if (stream->capture)
      sim_capture_stream_gone(stream);
    stream_free(stream);
  }
  ctx->streams = ctx->legacy = NULL;
}

void sim_streams_sweep(void) {
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (struct sim_stream **at = &ctx->streams; *at;) {
      struct sim_stream *stream = *at;
      if (!stream->gone || stream->head || stream->kicked || stream->chain_kicked) {
        at = &stream->next;
        continue;
      }
      *at = stream->next;
      stream_free(stream);
    }
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static void stream_destroy(struct sim_stream *stream) {
  if (stream->capture)
    sim_capture_stream_gone(stream);
  stream->gone = true;
  stream->magic = 0;
  sim_streams_sweep();
}

/* At a thread's end its own streams go; a context destroyed meanwhile has taken them along. */
static void own_streams_end(void *arg) {
  if (sim_ready() != CUDA_SUCCESS)
    return;
  sim_lock();
  for (struct own_stream *own = arg, *next; own; own = next) {
    next = own->next;
    for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
      if (ctx->id == own->ctx_id)
        own->stream->gone = true;
    free(own);
  }
  sim_streams_sweep();
  sim_unlock();
}

static void own_key_make(void) { pthread_key_create(&own_key, own_streams_end); }

/* sim_lock held */
static struct sim_stream *own_stream(struct sim_ctx *ctx) {
  pthread_once(&own_once, own_key_make);
  struct own_stream *first = pthread_getspecific(own_key);
  for (struct own_stream *own = first; own; own = own->next)
    if (own->ctx_id == ctx->id)
      return own->stream;
  struct own_stream *own = malloc(sizeof *own);
  if (own == NULL)
    return NULL;
  *own = (struct own_stream){ctx->id, sim_stream_new(ctx, 0, 0), first};
  if (own->stream == NULL || pthread_setspecific(own_key, own) != 0) {
    free(own);
    return NULL;
  }
  return own->stream;
}

CUresult sim_stream_get(CUstream handle, bool per_thread, struct sim_stream **stream) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    struct sim_ctx *ctx;
    result = sim_ctx_need(&ctx);
    if (result)
      return result;
    sim_lock();
    *stream = handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread) ? own_stream(ctx) : ctx->legacy;
    sim_unlock();
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  *stream = (struct sim_stream *)handle;
  return (*stream)->magic == stream_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

struct sim_ctx *sim_stream_ctx(const struct sim_stream *stream) { return stream->ctx; }

/* ---- submission and waiting, as the other files use them --------------------------------------------------------- */

bool sim_stream_capturing(struct sim_stream *stream) { return stream->capture != NULL; }

CUresult sim_submit(struct sim_stream *stream, const struct sim_op *op) {
  sim_lock();
  CUresult result = CUDA_SUCCESS;
  if (stream->capture)
    result = sim_capture_append(stream, op);
  else if ((result = sim_capture_implicit(stream)) == CUDA_SUCCESS && sim_enqueue(stream, op, false, true) == 0)
    result = CUDA_ERROR_OUT_OF_MEMORY;
  sim_unlock();
  return result;
}

/* Synchronous calls are illegal on a capturing stream and end its capture. sim_lock held. */
static CUresult may_wait(struct sim_stream *stream) {
  if (stream->capture) {
    sim_capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return sim_capture_implicit(stream);
}

CUresult sim_submit_and_wait(struct sim_stream *stream, const struct sim_op *op) {
  sim_lock();
  CUresult result = may_wait(stream);
  uint64_t seq = result ? 0 : sim_enqueue(stream, op, true, true);
  sim_unlock();
  if (result)
    return result;
  if (seq == 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_wait_seq(stream, seq);
  return CUDA_SUCCESS;
}

CUresult sim_stream_wait(struct sim_stream *stream) {
  sim_lock();
  CUresult result = may_wait(stream);
  uint64_t seq = sim_seq();
  sim_unlock();
  if (result)
    return result;
  sim_wait_seq(stream, seq);
  sim_pools_synchronized();
  return CUDA_SUCCESS;
}

/* ---- driver API -------------------------------------------------------------------------------------------------- */

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
  stream_destroy(stream);
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
  result = may_wait(stream);
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
  CUgreenCtx part = sim_green_of((const struct sim_ctx *)found);
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
