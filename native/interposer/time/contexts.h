/* The ends of contexts and streams that work was submitted to. */
#ifndef GPUSHARE_TIME_CONTEXTS_H
#define GPUSHARE_TIME_CONTEXTS_H

#include "interposer/time/timing.h"

void gs_stream_ending(CUstream handle);

/* A call is about to be made that may end the context, and the green contexts in it: from now on their marks and events
 * are not touched, what is in flight stays in flight. Then one of the two below. */
void gs_time_context_ending(CUcontext context, int ordinal);
void gs_time_context_lives(CUcontext context, int ordinal);
/* The driver ended it: streams, events and captures went along, and their handles may be others' already. */
void gs_time_context_gone(CUcontext context, int ordinal);

#endif
