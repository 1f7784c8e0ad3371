/* Marks: the timing events behind the meter. */
#ifndef GPUSHARE_TIME_MARKS_H
#define GPUSHARE_TIME_MARKS_H

#include "interposer/time/timing.h"

/* Closes the open segment of a stream with a timing event. Called by threads of the program, with the stream's context
 * current. */
void gs_mark_record(struct gs_stream *stream, bool start);

/* Records one of the two events around a sampled launch, and says when that was done; false when the driver refuses. */
bool gs_bracket_record(struct gs_stream *stream, int which, uint64_t *recorded);

/* Takes in what is done, of all streams of a device; returns at once when another thread does that already. */
void gs_reap(struct gs_time_device *device);

/* Everything submitted to the stream is done, the program knows. */
void gs_stream_done(struct gs_stream *stream);

/* Forgets the marks of a context that is gone, with its events, and charges what they were estimated at. Under the
 * device's `reaping` and `tables`. */
void gs_context_forget(struct gs_context *context);

/* Writes the slot's device words. Of an idle device the end stays when it was first seen idle: a program that asks
 * whether its work is done does not use the device. True: all is done, much sooner than was said before. Under the
 * device's lock. */
bool gs_publish(struct gs_time_device *device, uint64_t now);

/* Nanoseconds until the work in flight is expected to be done, 0: it is. Under the device's lock. */
uint64_t gs_rest(struct gs_time_device *device, uint64_t now);

#endif
