/* When the program learns that work is done, the meter learns it too.
 *
 * A wait or a question shows that what the driver had when it began is done, and nothing about what other threads submit
 * meanwhile. So each takes a number when it begins, and a stream keeps the last number that is too low for it: that of
 * the last wait before its newest booking, and before the driver had it. What a wait does not show, a mark or a later
 * wait does. */
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

/* The program recorded an event in the stream. NULL: the stream is unknown, or the event was destroyed. launches:
 * gs_stream_arrived before it did. */
void gs_event_recorded(CUevent event, struct gs_stream *stream, uint64_t launches);
/* The stream of an event of the program; NULL if that is not known. *emptied: it is empty if the event is done, because
 * nothing was submitted to it since. */
struct gs_stream *gs_stream_behind(CUevent event, bool *emptied);

/* From now on an event may be recorded by others than the calls of which gs_event_recorded is told: a launch's attribute,
 * a graph, another process. */
void gs_events_recorded_elsewhere(void);
/* An event that was recorded behind all work of the stream is done: whether the stream is idle, too. */
bool gs_event_shows_idle(struct gs_stream *stream);

/* Something other than compute work is about to go into the stream, which later work there has to wait for. */
void gs_stream_clouded(CUstream handle);

/* It is a wait for that event. Where the event stands behind work of the same device, the device works meanwhile. */
void gs_stream_follows(CUstream handle, CUevent event);

/* The program is about to ask whether the work of the stream is done. */
void gs_before_question(struct gs_stream *stream);
/* The wait or question is over, whatever came of it. What the program did in a signal handler meanwhile ends it too:
 * then it shows nothing. */
void gs_wait_ended(void);

/* A wait for the stream that began at this value of the processor's counter, and after so many launches as
 * gs_stream_arrived says, has ended. */
void gs_wait_began(struct gs_stream *stream, uint64_t tick, uint64_t launches);
/* The program asked whether the stream is done, and it is not. */
void gs_stream_seen_busy(struct gs_stream *stream);
/* It is; to be called before gs_stream_done_with_others. */
void gs_stream_seen_idle(const struct gs_stream *stream);
/* The wait that began with gs_before_wait has ended, and does not show that the stream is empty. */
void gs_stream_was_busy(struct gs_stream *stream);

#endif
