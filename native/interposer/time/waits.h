/* Where the program learns that work is done, the meter does too. */
#ifndef GPUSHARE_TIME_WAITS_H
#define GPUSHARE_TIME_WAITS_H

#include "interposer/time/timing.h"

/* The program is about to wait for the stream (NULL: for none that is known): the last chance to have its end measured
 * by the device. */
void gs_before_wait(struct gs_stream *stream);
/* The same for all streams of the context. */
void gs_before_wait_context(CUcontext context);
/* All that the stream was given is done, and for the legacy stream all that it waits for. */
void gs_stream_done_with_others(struct gs_stream *stream);
/* The same of all streams of a context on the device with this ordinal. */
void gs_context_done(CUcontext context, int ordinal);

/* An event of the program was recorded in the stream; NULL: in one that is not known, or it is destroyed. */
void gs_event_recorded(CUevent event, struct gs_stream *stream);
/* The stream that is empty if the event is done and nothing was given to it since; NULL when that is not known. */
struct gs_stream *gs_stream_emptied_by(CUevent event);

#endif
