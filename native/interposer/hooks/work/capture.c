#include "interposer/hooks/work/capture.h"

#include "interposer/process/device.h"
#include "interposer/process/passage/passage.h"
#include "interposer/time/marks/contexts.h"
#include "interposer/time/marks/waits.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/streams.h"

CUresult gs_before_capture_begin(struct gs_around_capture_begin *around, CUstream stream) {
  struct gs_time *time = gs_time();
  CUresult result = CUDA_SUCCESS;
  around->active = gs_enter(&result) && time != NULL;
  around->stream = stream ? stream : CU_STREAM_LEGACY;
  gs_settled_begin();
  if (around->active) {
    CUcontext current = NULL;
    int previous = gs_capture_mode_push();
    gs_real.cuCtxGetCurrent(&current);
    around->context = gs_context_behind(around->stream, current);
    gs_capture_mode_pop(previous);
    gs_capture_begins(time);
  }
  return result;
}

CUresult gs_after_capture_begin(struct gs_around_capture_begin *around, CUresult result) {
  struct gs_time *time = gs_time();
  if (around->active && result != CUDA_SUCCESS)
    gs_capture_none(time);
  else if (around->active)
    gs_capture_open(time, around->stream, around->context);
  gs_settled_end();
  return result;
}

CUresult gs_before_capture_end(struct gs_around_capture_end *around, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->active = gs_enter(&result) && gs_time() != NULL;
  around->stream = stream ? stream : CU_STREAM_LEGACY;
  return result;
}

CUresult gs_after_capture_end(struct gs_around_capture_end *around, CUresult result) {
  /* A failed end leaves the capture open (wrong thread) or closed (invalidated): ask the driver. */
  if (around->active && (result == CUDA_SUCCESS || !gs_stream_capturing(around->stream)))
    gs_capture_close(gs_time(), around->stream);
  return result;
}

CUresult gs_before_event_awaited(struct gs_around_event_awaited *around, CUstream stream, CUevent event) {
  CUresult result = CUDA_SUCCESS;
  around->joins = gs_enter(&result) && gs_capture_joins();
  gs_stream_follows(stream, event);
  return result;
}

CUresult gs_after_event_awaited(struct gs_around_event_awaited *around, CUresult result) {
  if (around->joins)
    gs_capture_joined();
  return result;
}

CUresult gs_before_stream_gone(struct gs_around_stream_gone *around, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->active = gs_enter(&result) && gs_time() != NULL;
  around->stream = stream;
  if (around->active && stream)
    gs_stream_ending(stream);
  return result;
}

CUresult gs_after_stream_gone(struct gs_around_stream_gone *around, CUresult result) {
  if (around->active && around->stream && result == CUDA_SUCCESS) {
    gs_capture_close(gs_time(), around->stream);
    gs_stream_forget(around->stream);
  }
  return result;
}
