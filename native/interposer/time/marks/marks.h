/* Marks: the timing events behind the meter. */
#ifndef GPUSHARE_TIME_MARKS_H
#define GPUSHARE_TIME_MARKS_H

#include "interposer/time/timing.h"

/* Closes the open segment of a stream with a timing event, whatever the current context of the calling thread. If the
 * driver refuses it, the stream is charged by residency. */
void gs_mark_record(struct gs_stream *stream, bool start);
/* Marks all streams of the device that have launches behind their last mark. */
void gs_mark_all(struct gs_time_device *device);

/* Processes completed marks of all streams of a device; returns at once if another thread is already doing so. */
void gs_reap(struct gs_time_device *device);

/* The thread's wait (gs_wait) has ended, and showed that what was submitted to the stream before it is done. */
void gs_stream_done(struct gs_stream *stream);
/* The same for all streams with work for which `matches` returns true: they are done since the same instant, and the
 * device's state is published once. */
void gs_streams_done(struct gs_time_device *device, bool (*matches)(const struct gs_stream *stream, const void *what),
                     const void *what);

/* Drops the marks and events of a context that has ended, and charges the estimates of those marks. Called with the
 * device's `reaping` and `tables` held. */
void gs_context_forget(struct gs_context *context);

#endif
