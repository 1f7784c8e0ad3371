/* When the program learns that work is done, the meter learns it too. */
#ifndef GPUSHARE_TIME_WAITS_H
#define GPUSHARE_TIME_WAITS_H

#include "interposer/time/timing.h"

/* The program is about to wait for the stream (NULL: an unknown one): the last chance to record a mark, so that the
 * device measures the end of the work. */
void gs_before_wait(struct gs_stream *stream);
/* The same for all streams of the context. */
void gs_before_wait_context(CUcontext context);
/* All work of the stream is done, and for the legacy stream also all work that it waits for. */
void gs_stream_done_with_others(struct gs_stream *stream);
/* The same for all streams of a context on the device with this ordinal. */
void gs_context_done(CUcontext context, int ordinal);

/* The program recorded an event in the stream. NULL: the stream is unknown, or the event was destroyed. */
void gs_event_recorded(CUevent event, struct gs_stream *stream);
/* The stream that is empty if the event is done, because nothing was submitted to it since; NULL if that is not
 * known. */
struct gs_stream *gs_stream_emptied_by(CUevent event);

#endif
