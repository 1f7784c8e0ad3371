/* Marks: the timing events behind the meter. */
#ifndef GPUSHARE_TIME_MARKS_H
#define GPUSHARE_TIME_MARKS_H

#include "interposer/time/timing.h"

/* Closes the open segment of a stream with a timing event. Called by threads of the program with the stream's context
 * current. */
void gs_mark_record(struct gs_stream *stream, bool start);

/* Records one of the two events around a sampled launch. *recorded: when that was done; false if the driver refuses. */
bool gs_bracket_record(struct gs_stream *stream, int which, uint64_t *recorded);

/* Processes completed marks of all streams of a device; returns at once if another thread is already doing so. */
void gs_reap(struct gs_time_device *device);

/* Everything submitted to the stream is done, as the program has learned. */
void gs_stream_done(struct gs_stream *stream);

/* Drops the marks and events of a context that has ended, and charges the estimates of those marks. Called with the
 * device's `reaping` and `tables` held. */
void gs_context_forget(struct gs_context *context);

/* Writes the slot's device words. For an idle device the published end stays at the time when it was first seen idle: a
 * program that asks whether its work is done does not use the device. True: all work is done, much earlier than
 * published before. Called with the device's lock held. */
bool gs_publish(struct gs_time_device *device, uint64_t now);

/* Nanoseconds until the work in flight is expected to be done; 0: it is done. Called with the device's lock held. */
uint64_t gs_rest(struct gs_time_device *device, uint64_t now);

#endif
