#include "interposer/time/events.h"

/* The context is current. NULL if no event is free and none may be created. */
CUevent gs_event_take(struct gs_context *context) {
  CUevent event = NULL;
  gs_latch_take(&context->pool);
  if (context->free_events > 0)
    event = context->free_event[--context->free_events];
  gs_latch_drop(&context->pool);
  /* A capture in global mode forbids every thread to create an event. */
  if (!event && __atomic_load_n(&gs_time()->captures, __ATOMIC_ACQUIRE) == 0 &&
      gs_real.cuEventCreate(&event, 0 /* with timing */) != CUDA_SUCCESS)
    event = NULL;
  return event;
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
