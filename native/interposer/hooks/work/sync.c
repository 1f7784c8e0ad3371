#include "interposer/hooks/work/sync.h"

#include "interposer/memory/pools/async_free.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/process/device.h"
#include "interposer/time/marks/waits.h"
#include "interposer/time/streams/streams.h"

CUresult gs_before_sync_stream(struct gs_around_sync_stream *around, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->stream = NULL;
  around->repeat = gs_repeat_wait(stream);
  if (around->repeat) {
    around->launches = gs_stream_arrived(around->repeat->stream);
    around->tick = gs_ticks_read();
    return CUDA_SUCCESS;
  }
  around->active = gs_enter(&result);
  if (!around->active)
    return result;
  around->handle = stream;
  around->stream = gs_stream_known(stream);
  gs_before_wait(around->stream);
  return CUDA_SUCCESS;
}

CUresult gs_after_sync_stream(struct gs_around_sync_stream *around, CUresult result) {
  if (result != CUDA_SUCCESS) {
    gs_wait_ended();
    return result;
  }
  if (around->repeat) {
    uint64_t now = gs_ticks_read();
    if (GS_LIKELY(gs_repeat_waited(around->repeat, around->tick, now))) {
      gs_repeat_done(around->repeat->stream, around->launches, now);
      gs_memory_waited(around->repeat->stream->device->ordinal);
    } else {
      gs_wait_began(around->repeat->stream, around->tick, around->launches);
      gs_stream_synced(around->repeat->stream, true);
      gs_wait_ended();
    }
    return result;
  }
  if (!around->active)
    return result;
  if (around->stream) {
    gs_stream_synced(around->stream, true);
    gs_wait_ended();
  } else {
    int ordinal = gs_stream_device(around->handle);
    if (ordinal != GS_NO_DEVICE)
      gs_memory_waited(ordinal);
  }
  return result;
}

CUresult gs_before_query_stream(struct gs_around_query_stream *around, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->stream = gs_enter(&result) ? gs_stream_known(stream) : NULL;
  if (around->stream)
    gs_before_question(around->stream);
  return result;
}

CUresult gs_after_query_stream(struct gs_around_query_stream *around, CUresult result) {
  if (!around->stream)
    return result;
  if (result == CUDA_SUCCESS) {
    gs_stream_seen_idle(around->stream);
    gs_stream_synced(around->stream, false);
  } else if (result == CUDA_ERROR_NOT_READY) {
    gs_stream_seen_busy(around->stream);
  }
  gs_wait_ended();
  return result;
}

CUresult gs_before_sync_context(struct gs_around_sync_context *around, CUcontext context) {
  CUresult result = CUDA_SUCCESS;
  around->context = NULL;
  if (!gs_enter(&result))
    return result;
  if (!context && gs_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
    context = NULL;
  around->context = context;
  gs_before_wait_context(context);
  return CUDA_SUCCESS;
}

CUresult gs_after_sync_context(struct gs_around_sync_context *around, CUresult result) {
  int ordinal = GS_NO_DEVICE;
  if (result == CUDA_SUCCESS && around->context)
    ordinal = gs_context_device(around->context);
  if (ordinal != GS_NO_DEVICE)
    gs_context_done(around->context, ordinal);
  gs_wait_ended();
  if (ordinal == GS_NO_DEVICE)
    return result;
  gs_frees_context_waited(around->context);
  gs_memory_waited(ordinal);
  return result;
}

/* ---- events of the program ---- */

CUresult gs_before_event_record(struct gs_around_event_record *around, CUevent event, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->event = event;
  around->stream = gs_enter(&result) ? gs_stream_known(stream) : NULL;
  around->launches = around->stream ? gs_stream_arrived(around->stream) : 0;
  return result;
}

CUresult gs_after_event_record(struct gs_around_event_record *around, CUresult result) {
  if (result == CUDA_SUCCESS)
    gs_event_recorded(around->event, around->stream, around->launches);
  return result;
}

CUresult gs_before_event_wait(struct gs_around_event_wait *around, CUevent event) {
  CUresult result = CUDA_SUCCESS;
  around->event = event;
  around->stream = gs_enter(&result) ? gs_stream_behind(event, &around->emptied) : NULL;
  if (around->stream)
    gs_before_wait(around->stream);
  return result;
}

CUresult gs_before_event_query(struct gs_around_event_query *around, CUevent event) {
  CUresult result = CUDA_SUCCESS;
  around->event = event;
  around->stream = gs_enter(&result) ? gs_stream_behind(event, &around->emptied) : NULL;
  if (around->stream)
    gs_before_question(around->stream);
  return result;
}

/* Whether the event's stream is empty now that the event is done: another thread may have submitted work to the stream
 * during the wait, and the recording that is done may not be the program's last. */
static bool is_empty(CUevent event, struct gs_stream *stream) {
  bool emptied;
  return gs_stream_behind(event, &emptied) == stream && emptied && gs_event_shows_idle(stream);
}

CUresult gs_after_event_wait(struct gs_around_event_wait *around, CUresult result) {
  if (result == CUDA_SUCCESS && around->stream) {
    if (around->emptied && is_empty(around->event, around->stream))
      gs_stream_synced(around->stream, false);
    else
      gs_stream_was_busy(around->stream);
  }
  gs_wait_ended();
  for (uint32_t i = 0; i < gs_process->ndevices && result == CUDA_SUCCESS; i++)
    /* the event's device is not known here, and drivers may shrink the pools of any device at a wait */
    gs_memory_waited((int)i);
  return result;
}

CUresult gs_after_event_query(struct gs_around_event_query *around, CUresult result) {
  if (!around->stream)
    return result;
  if (result == CUDA_ERROR_NOT_READY) {
    gs_stream_seen_busy(around->stream);
  } else if (result == CUDA_SUCCESS && around->emptied && is_empty(around->event, around->stream)) {
    gs_stream_seen_idle(around->stream);
    gs_stream_synced(around->stream, false);
  }
  gs_wait_ended();
  return result;
}

CUresult gs_before_event_gone(CUevent event) {
  CUresult result = CUDA_SUCCESS;
  if (gs_enter(&result))
    gs_event_recorded(event, NULL, 0);
  return result;
}

CUresult gs_before_event_shared(void) {
  CUresult result = CUDA_SUCCESS;
  if (gs_enter(&result))
    gs_events_recorded_elsewhere();
  return result;
}

CUresult gs_before_stream_waits(CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  if (gs_enter(&result))
    gs_stream_holds(stream);
  return result;
}
