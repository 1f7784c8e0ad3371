/* Timing events of a context, kept for the next mark. */
#ifndef GPUSHARE_TIME_EVENTS_H
#define GPUSHARE_TIME_EVENTS_H

#include "interposer/time/timing.h"

/* An unused event of the context, which has to be current. NULL: none is free and the driver creates none now. */
CUevent gs_event_take(struct gs_context *context);

/* Returns an event for reuse. */
void gs_event_give(struct gs_context *context, CUevent event);

#endif
