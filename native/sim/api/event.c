/* The API of events. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "sim/model/capture.h"
#include "sim/model/streams/shared_event.h"
#include "sim/model/time/streams.h"

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (phEvent == NULL || Flags & ~known)
    return CUDA_ERROR_INVALID_VALUE;
  if (Flags & CU_EVENT_INTERPROCESS && !(Flags & CU_EVENT_DISABLE_TIMING))
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  struct sim_shared_event *shared = Flags & CU_EVENT_INTERPROCESS ? sim_shared_event_new(ctx->device) : NULL;
  result = Flags & CU_EVENT_INTERPROCESS && !shared ? CUDA_ERROR_OUT_OF_MEMORY
                                                    : sim_event_new(sim_ctx_owner(ctx), Flags, shared, phEvent);
  sim_unlock();
  return result;
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  struct sim_event *event;
  CUresult result = sim_event_get(hEvent, &event);
  if (result)
    return result;
  sim_lock();
  sim_mark_release(event->mark);
  sim_event_uncapture(event);
  sim_event_free(event);
  sim_unlock();
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent hEvent, CUstream hStream) { return sim_event_record_by_handle(hEvent, hStream, 0); }
CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return sim_event_record_by_handle(hEvent, hStream, flags);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return sim_event_wait_by_handle(hStream, hEvent, Flags);
}

/* Returns the event's current mark, with a reference; NULL: never recorded. Querying a captured event is an error, and
 * any query is unsafe while a thread captures in global mode. */
static CUresult event_mark(CUevent handle, struct sim_event **event, struct sim_mark **mark) {
  CUresult result = sim_event_get(handle, event);
  if (result)
    return result;
  sim_lock();
  result = sim_capture_guard_locked();
  if (result == CUDA_SUCCESS && (*event)->capture) {
    sim_capture_invalidate((*event)->capture);
    result = CUDA_ERROR_CAPTURED_EVENT;
  }
  *mark = result ? NULL : (*event)->mark;
  if (*mark)
    (*mark)->refs++;
  sim_unlock();
  return result;
}

static void mark_drop(struct sim_mark *mark) {
  sim_lock();
  sim_mark_release(mark);
  sim_unlock();
}

CUresult cuEventQuery(CUevent hEvent) {
  struct sim_event *event;
  struct sim_mark *mark;
  CUresult result = event_mark(hEvent, &event, &mark);
  if (result)
    return result;
  sim_spin(sim_hello.query_ns);
  if (mark == NULL && !event->shared)
    return CUDA_SUCCESS;
  sim_lock();
  sim_advance(sim_now());
  if (event->shared) {
    result = sim_shared_event_done(event->shared) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    sim_unlock();
    return result;
  }
  result = mark->done ? sim_ctx_fault(event->ctx) : CUDA_ERROR_NOT_READY;
  sim_mark_release(mark);
  sim_unlock();
  return result;
}

static bool mark_done(const void *arg) { return ((const struct sim_mark *)arg)->done; }

static uint64_t mark_bound(const void *arg, uint64_t now) {
  const struct sim_item *item = ((const struct sim_mark *)arg)->item;
  return item ? sim_bound(item->stream, item->compute_sum, item->copy_sum, now, 4) : now;
}

CUresult cuEventSynchronize(CUevent hEvent) {
  struct sim_event *event;
  struct sim_mark *mark;
  CUresult result = event_mark(hEvent, &event, &mark);
  if (result || (mark == NULL && !event->shared))
    return result;
  bool blocking = event->flags & CU_EVENT_BLOCKING_SYNC;
  if (event->shared) {
    sim_shared_event_sync(event->shared, event->ctx->device, blocking);
  } else {
    sim_wait(mark->device, blocking, &(struct sim_condition){mark_done, mark_bound, mark});
    mark_drop(mark);
  }
  sim_tell_synchronized();
  return sim_ctx_fault(event->ctx);
}

/* Computed from model times, so the result does not depend on when the program asks. The API's resolution applies:
 * milliseconds in a float. */
CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
  struct sim_event *start, *end;
  CUresult result = sim_event_get(hStart, &start);
  if (result == CUDA_SUCCESS)
    result = sim_event_get(hEnd, &end);
  if (result)
    return result;
  if (pMilliseconds == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || start->ctx != end->ctx)
    return CUDA_ERROR_INVALID_HANDLE;
  sim_lock();
  sim_advance(sim_now());
  if (start->mark == NULL || end->mark == NULL || start->capture || end->capture)
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (!start->mark->done || !end->mark->done)
    result = CUDA_ERROR_NOT_READY;
  else
    *pMilliseconds = (float)((double)(int64_t)(end->mark->time - start->mark->time) / 1e6);
  sim_unlock();
  return result;
}
/* Records all work of the context: the legacy stream synchronises with all blocking streams; the others are joined one
 * by one. */
CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) {
  struct sim_ctx *ctx;
  struct sim_event *event;
  CUresult result = sim_ctx_get(hCtx, &ctx);
  if (result == CUDA_SUCCESS)
    result = sim_event_get(hEvent, &event);
  if (result)
    return result;
  if (event->ctx != sim_ctx_owner(ctx))
    return CUDA_ERROR_INVALID_HANDLE;
  sim_lock();
  if (ctx->captures > 0) {
    for (struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
      if (stream->capture)
        sim_capture_invalidate(stream->capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  struct sim_stream *join = result ? NULL : sim_stream_new(ctx, CU_STREAM_NON_BLOCKING, 0);
  for (struct sim_stream *stream = ctx->streams; join && stream; stream = stream->next) {
    struct sim_mark *mark = stream == join || stream->head == NULL ? NULL : sim_mark_new(ctx->device);
    if (mark == NULL)
      continue;
    sim_enqueue_mark(stream, mark);
    sim_enqueue_wait(join, mark);
    sim_mark_release(mark);
  }
  if (join) {
    result = sim_event_record(event, join);
    join->gone = true;
    sim_streams_sweep();
  }
  sim_unlock();
  return result;
}

CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) {
  struct sim_ctx *ctx;
  struct sim_event *event;
  CUresult result = sim_ctx_get(hCtx, &ctx);
  if (result == CUDA_SUCCESS)
    result = sim_event_get(hEvent, &event);
  if (result)
    return result;
  sim_lock();
  if (ctx->captures > 0 || event->capture)
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  for (struct sim_stream *stream = ctx->streams; result == CUDA_SUCCESS && stream; stream = stream->next)
    if (!stream->gone)
      result = sim_event_wait(event, stream);
  sim_unlock();
  return result;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event) {
  struct sim_event *known;
  CUresult result = sim_event_get(event, &known);
  if (result != CUDA_SUCCESS)
    return result;
  if (!pHandle || !known->shared)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  result = sim_shared_event_handle(known->shared, pHandle);
  sim_unlock();
  return result;
}

CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle) {
  struct sim_shared_event *shared;
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  if (!phEvent)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  result = sim_shared_event_open(handle, &shared);
  if (result == CUDA_SUCCESS)
    result = sim_event_new(sim_ctx_owner(ctx), CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, shared, phEvent);
  sim_unlock();
  return result;
}
