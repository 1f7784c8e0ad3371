/* Timing events of a context, kept for the next mark. */
#ifndef GPUSHARE_TIME_EVENTS_H
#define GPUSHARE_TIME_EVENTS_H

#include "interposer/time/timing.h"

CUevent gs_event_take(struct gs_context *context);

void gs_event_give(struct gs_context *context, CUevent event);

#endif
