/* Recording events and waiting for them, on captured and other streams. */
#include "sim/model/event.h"

#include "sim/model/capture.h"
#include "sim/model/handle.h"
#include "sim/model/streams/shared_event.h"

static struct sim_kind event_kind = {sizeof(struct sim_event), 0x65766e74, NULL};

CUresult sim_event_get(CUevent handle, struct sim_event **event) {
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

void sim_event_free(struct sim_event *event) { sim_handle_free(&event_kind, event); }

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

static CUresult capture_record(struct sim_stream *stream, struct sim_event *event, unsigned flags) {
  if (stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags & CU_EVENT_RECORD_EXTERNAL)
    return stream->capture->append_event(stream, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  sim_event_uncapture(event);
  if (!sim_deps_set(&event->cap_deps, &event->cap_ndeps, stream->cap_deps, stream->cap_ndeps))
    return CUDA_ERROR_OUT_OF_MEMORY;
  event->capture = stream->capture;
  event->cap_next = stream->capture->events;
  stream->capture->events = event;
  return CUDA_SUCCESS;
}

static CUresult capture_wait(struct sim_stream *stream, struct sim_event *event, unsigned flags) {
  if (stream->capture && stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->capture && flags & CU_EVENT_WAIT_EXTERNAL)
    return stream->capture->append_event(stream, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  if (event->capture == NULL) {
    /* never recorded: nothing to wait for */
    if (event->shared ? sim_shared_event_done(event->shared) : event->mark == NULL)
      return CUDA_SUCCESS;
    sim_capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (event->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->legacy) {
    sim_capture_invalidate(event->capture);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream->capture && stream->capture != event->capture) {
    sim_capture_invalidate(stream->capture);
    sim_capture_invalidate(event->capture);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->capture == NULL)
    sim_capture_join(stream, event->capture);
  return sim_deps_add(&stream->cap_deps, &stream->cap_ndeps, event->cap_deps, event->cap_ndeps)
             ? CUDA_SUCCESS
             : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_event_record_by_handle(CUevent handle, CUstream stream_handle, unsigned flags) {
  struct sim_event *event;
  struct sim_stream *stream;
  CUresult result = sim_event_get(handle, &event);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(stream_handle, &stream);
  if (result)
    return result;
  if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  const struct sim_ctx *ctx = sim_ctx_owner(stream->ctx);
  if (ctx != event->ctx || ctx->id != event->ctx_id)
    return CUDA_ERROR_INVALID_HANDLE;
  /* An event without a time stamp is assumed to be ten times cheaper to record. */
  sim_spin(event->flags & CU_EVENT_DISABLE_TIMING ? sim_hello.event_ns / 10 : sim_hello.event_ns);
  sim_lock();
  if (stream->capture)
    result = capture_record(stream, event, flags);
  else if ((result = sim_capture_implicit(stream)) == CUDA_SUCCESS)
    result = sim_event_record(event, stream);
  sim_unlock();
  return result;
}

CUresult sim_event_wait_by_handle(CUstream stream_handle, CUevent handle, unsigned flags) {
  struct sim_event *event;
  struct sim_stream *stream;
  CUresult result = sim_event_get(handle, &event);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(stream_handle, &stream);
  if (result)
    return result;
  if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  if (stream->capture || event->capture)
    result = capture_wait(stream, event, flags);
  else if ((result = sim_capture_implicit(stream)) == CUDA_SUCCESS)
    result = sim_event_wait(event, stream);
  sim_unlock();
  return result;
}
