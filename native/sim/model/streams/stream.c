/* Looking up streams by handle, submitting work to them and waiting for it. */
#include <pthread.h>
#include <stdlib.h>

#include "sim/model/capture.h"
#include "sim/model/time/streams.h"

/* The calling thread's per-thread default streams, one per context it has used. */
struct own_stream {
  uint64_t ctx_id;
  struct sim_stream *stream;
  struct own_stream *next;
};
static pthread_key_t own_key;
__thread bool sim_per_thread;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

/* Destroys a thread's streams when it ends. Streams of a context that was destroyed earlier are already gone. */
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

CUresult sim_stream_get(CUstream handle, struct sim_stream **stream) {
  CUresult result = CUDA_SUCCESS;
  if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    struct sim_ctx *ctx;
    result = sim_ctx_need(&ctx);
    if (result)
      return result;
    sim_lock();
    *stream = handle == CU_STREAM_PER_THREAD || (handle == NULL && sim_per_thread) ? own_stream(ctx) : ctx->legacy;
    sim_unlock();
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  *stream = (struct sim_stream *)handle;
  return sim_stream_known(*stream) ? sim_ctx_fault((*stream)->ctx) : CUDA_ERROR_INVALID_HANDLE;
}

struct sim_ctx *sim_stream_ctx(const struct sim_stream *stream) { return stream->ctx; }

bool sim_stream_capturing(struct sim_stream *stream) { return stream->capture != NULL; }

CUresult sim_submit(struct sim_stream *stream, const struct sim_op *op) {
  sim_lock();
  CUresult result = CUDA_SUCCESS;
  if (stream->capture)
    result = stream->capture->append(stream, op);
  else if ((result = sim_capture_implicit(stream)) == CUDA_SUCCESS && sim_enqueue(stream, op, false, true) == 0)
    result = CUDA_ERROR_OUT_OF_MEMORY;
  sim_unlock();
  return result;
}

CUresult sim_stream_may_wait(struct sim_stream *stream) {
  if (stream->capture) {
    sim_capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return sim_capture_implicit(stream);
}

CUresult sim_submit_and_wait(struct sim_stream *stream, const struct sim_op *op) {
  sim_lock();
  CUresult result = sim_stream_may_wait(stream);
  uint64_t seq = result ? 0 : sim_enqueue(stream, op, true, true);
  sim_unlock();
  if (result)
    return result;
  if (seq == 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_wait_seq(stream, seq);
  return sim_ctx_fault(stream->ctx);
}

CUresult sim_stream_wait(struct sim_stream *stream) {
  sim_lock();
  CUresult result = sim_stream_may_wait(stream);
  uint64_t seq = sim_seq();
  sim_unlock();
  if (result)
    return result;
  sim_wait_seq(stream, seq);
  sim_tell_synchronized();
  return sim_ctx_fault(stream->ctx);
}
