/* Notes waits and questions of the program: when the program learns that work is done, the meter learns it too.
 *
 * A wait or a question shows that whatever the driver had when it began is done, and nothing about what other threads
 * submit meanwhile. So each takes a number when it begins, and a stream keeps the last number that is too low for it:
 * that of the last wait before its newest booking, and before the driver had it. What a wait does not show, a mark or a
 * later wait does. */
#ifndef GPUSHARE_TIME_WAITS_H
#define GPUSHARE_TIME_WAITS_H

#include "interposer/time/timing.h"

/* The program is about to wait for the stream (NULL: an unknown one): this is the last chance to record a mark, so that
 * the device measures the end of the work. */
void gs_before_wait(struct gs_stream *stream);
/* The same for all streams of the context. */
void gs_before_wait_context(CUcontext context);
/* All work of the stream is done, and for the legacy stream also all work that it waits for. */
void gs_stream_done_with_others(struct gs_stream *stream);
/* The same for all streams of a context on the device with this ordinal. */
void gs_context_done(CUcontext context, int ordinal);

/* The program recorded an event in the stream. stream NULL: it is unknown, or the event was destroyed. launches:
 * gs_stream_arrived before the record. */
void gs_event_recorded(CUevent event, struct gs_stream *stream, uint64_t launches);
/* The stream of an event of the program; NULL if that is not known. *emptied: it is empty if the event is done, because
 * nothing was submitted to it since. */
struct gs_stream *gs_stream_behind(CUevent event, bool *emptied);

/* From now on an event may be recorded by something other than the calls reported to gs_event_recorded: a launch's
 * attribute, a graph, another process. */
void gs_events_recorded_elsewhere(void);
/* An event that was recorded behind all work of the stream is done. Returns whether this shows that the stream is
 * idle. */
bool gs_event_shows_idle(struct gs_stream *stream);

/* Something other than compute work, for which later work has to wait, is about to go into the stream. */
void gs_stream_clouded(CUstream handle);

/* The same if that is a wait for a value in memory or a semaphore, which the host or another device may set. */
void gs_stream_holds(CUstream handle);

/* The same if it is a wait for an event. Where the event is behind work of the same device, the device works
 * meanwhile, and the stream is not clouded. */
void gs_stream_follows(CUstream handle, CUevent event);

/* The program is about to query whether the work of the stream is done. */
void gs_before_question(struct gs_stream *stream);
/* The wait or question has ended, whatever its result. A wait that the program makes in a signal handler meanwhile ends
 * it too: then it shows nothing. */
void gs_wait_ended(void);

/* A wait for the stream has ended that began at this value of the processor's counter. launches: gs_stream_arrived at
 * that time. */
void gs_wait_began(struct gs_stream *stream, uint64_t tick, uint64_t launches);
/* The program queried the stream, which is not done. */
void gs_stream_seen_busy(struct gs_stream *stream);
/* The program queried the stream, which is done. To be called before gs_stream_done_with_others. */
void gs_stream_seen_idle(const struct gs_stream *stream);
/* The wait that began with gs_before_wait has ended, and does not show that the stream is empty. */
void gs_stream_was_busy(struct gs_stream *stream);

#endif
