#include "interposer/time/marks/events.h"

/* A capture in global mode, which another thread may begin at any time, forbids every thread to create an event, unless
 * the thread is in relaxed mode; an attempt would invalidate the capture. */
static CUevent create(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUevent event = NULL;
  bool relaxed = gs_real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  if (gs_real.cuEventCreate(&event, 0 /* with timing */) != CUDA_SUCCESS)
    event = NULL;
  if (relaxed)
    gs_real.cuThreadExchangeStreamCaptureMode(&mode);
  return event;
}

CUevent gs_event_take(struct gs_context *context) {
  CUevent event = NULL;
  gs_latch_take(&context->pool);
  if (context->free_events > 0)
    event = context->free_event[--context->free_events];
  gs_latch_drop(&context->pool);
  return event ? event : create();
}

void gs_event_give(struct gs_context *context, CUevent event) {
  bool kept = false;
  gs_latch_take(&context->pool);
  if (context->free_events < GS_TIME_EVENTS) {
    context->free_event[context->free_events++] = event;
    kept = true;
  }
  gs_latch_drop(&context->pool);
  if (!kept)
    gs_real.cuEventDestroy_v2(event);
}
