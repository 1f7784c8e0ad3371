/* Events: a record makes a mark in a stream; the event refers to its latest mark. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "sim/graph/capture.h"
#include "sim/memory/memory.h"
#include "sim/model/model.h"

static struct sim_kind event_kind = {sizeof(struct sim_event), 0x65766e74, NULL};

CUresult sim_event_get(CUevent handle, struct sim_event **event) {
  CUresult result = sim_ready();
  if (result)
    return result;
  *event = (struct sim_event *)handle;
  return *event && (*event)->magic == event_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_event_new(struct sim_ctx *ctx, unsigned flags, struct sim_shared_event *shared, CUevent *handle) {
  struct sim_event *event = sim_handle_new(&event_kind);
  if (event == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  event->flags = flags;
  event->ctx = ctx;
  event->ctx_id = ctx->id;
  event->shared = shared;
  *handle = (CUevent)event;
  return CUDA_SUCCESS;
}

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
  sim_handle_free(&event_kind, event);
  sim_unlock();
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent hEvent) { return cuEventDestroy_v2(hEvent); }

CUresult sim_event_record(struct sim_event *event, struct sim_stream *stream) {
  if (event->shared) {
    sim_event_uncapture(event);
    return sim_shared_event_record(event->shared, stream);
  }
  struct sim_mark *mark = sim_mark_new(stream->ctx->device);
  if (mark == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_event_uncapture(event);
  sim_mark_release(event->mark);
  event->mark = mark;
  return sim_enqueue_mark(stream, mark) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_event_wait(struct sim_event *event, struct sim_stream *stream) {
  if (event->shared)
    return sim_shared_event_wait(event->shared, stream);
  return !event->mark || sim_enqueue_wait(stream, event->mark) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult record(CUevent handle, CUstream stream_handle, unsigned flags, bool per_thread) {
  struct sim_event *event;
  struct sim_stream *stream;
  CUresult result = sim_event_get(handle, &event);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(stream_handle, per_thread, &stream);
  if (result)
    return result;
  if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  const struct sim_ctx *ctx = sim_ctx_owner(stream->ctx);
  if (ctx != event->ctx || ctx->id != event->ctx_id)
    return CUDA_ERROR_INVALID_HANDLE;
  /* An event without a time stamp is about ten times cheaper to record. */
  sim_spin(event->flags & CU_EVENT_DISABLE_TIMING ? sim_hello.event_ns / 10 : sim_hello.event_ns);
  sim_lock();
  if (stream->capture)
    result = sim_capture_record(stream, event, flags);
  else if ((result = sim_capture_implicit(stream)) == CUDA_SUCCESS)
    result = sim_event_record(event, stream);
  sim_unlock();
  return result;
}
CUresult cuEventRecord(CUevent hEvent, CUstream hStream) { return record(hEvent, hStream, 0, false); }
CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream) { return record(hEvent, hStream, 0, true); }
CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record(hEvent, hStream, flags, false);
}
CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record(hEvent, hStream, flags, true);
}

static CUresult stream_wait(CUstream stream_handle, CUevent handle, unsigned flags, bool per_thread) {
  struct sim_event *event;
  struct sim_stream *stream;
  CUresult result = sim_event_get(handle, &event);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(stream_handle, per_thread, &stream);
  if (result)
    return result;
  if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  if (stream->capture || event->capture)
    result = sim_capture_wait(stream, event, flags);
  else if ((result = sim_capture_implicit(stream)) == CUDA_SUCCESS)
    result = sim_event_wait(event, stream);
  sim_unlock();
  return result;
}
CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return stream_wait(hStream, hEvent, Flags, false);
}
CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return stream_wait(hStream, hEvent, Flags, true);
}

/* The mark to look at, with a reference; NULL: never recorded. Asking about a captured event is an error, and asking at
 * all is one of the calls that are unsafe while somebody captures. */
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
  result = mark->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
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
  sim_pools_synchronized();
  return CUDA_SUCCESS;
}

/* Model times, so exact whenever the program asks. The resolution is the API's: milliseconds in a float. */
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
CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
  return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

/* The whole context: the legacy stream orders all blocking streams, the others are joined one by one. */
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
