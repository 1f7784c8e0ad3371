/* Stream captures. What is captured is not executed, so it is neither gated nor metered; and while any capture is open,
 * calls of ours in any thread must not disturb it. */
#ifndef GPUSHARE_TIME_CAPTURE_H
#define GPUSHARE_TIME_CAPTURE_H

#include "interposer/time/timing.h"

bool gs_stream_capturing(CUstream handle);

/* Closes the captures whose stream was of a context that is gone, and of the green ones in it. Under `tables`. */
void gs_captures_gone(CUcontext context);

/* The same for threads that ended. */
void gs_captures_check(void);

/* Around driver calls of ours: while any capture is open the thread's capture mode becomes relaxed, so that the calls
 * do not end captures. push returns the mode before, for pop. */
int gs_capture_mode_push(void);

void gs_capture_mode_pop(int previous);

/* A capture is about to begin: from here on there is one. Then one of the two below. */
void gs_capture_begins(struct gs_time *time);
/* In the stream, of this context. */
void gs_capture_open(struct gs_time *time, CUstream stream, CUcontext context);
/* It did not begin. */
void gs_capture_none(struct gs_time *time);
/* That of the stream, if there is one, is over. */
void gs_capture_close(struct gs_time *time, CUstream stream);

#endif
