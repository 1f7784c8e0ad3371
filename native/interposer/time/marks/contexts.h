/* Handles the end of contexts and streams with submitted work. */
#ifndef GPUSHARE_TIME_CONTEXTS_H
#define GPUSHARE_TIME_CONTEXTS_H

#include "interposer/time/timing.h"

void gs_stream_ending(CUstream handle);

/* To be called before a call that may end the context and its green contexts: until one of the two functions below is
 * called, their marks and events are not touched and work in flight counts as in flight. */
void gs_time_context_ending(CUcontext context, int ordinal);
void gs_time_context_lives(CUcontext context, int ordinal);
/* The driver ended the context: its streams, events and captures ended with it, and their handles may already be
 * reused. */
void gs_time_context_gone(CUcontext context, int ordinal);

#endif
