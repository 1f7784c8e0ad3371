/* Stream captures. Captured work is not executed, so it is neither gated nor metered; and while any capture is open,
 * the interposer's own driver calls in any thread must not disturb it. */
#ifndef GPUSHARE_TIME_CAPTURE_H
#define GPUSHARE_TIME_CAPTURE_H

#include "interposer/time/timing.h"

bool gs_stream_capturing(CUstream handle);

/* Closes the captures of streams whose context has ended, including its green contexts. Called with `tables` held. */
void gs_captures_gone(CUcontext context);

/* Closes the captures of per-thread streams whose thread has ended. */
void gs_captures_check(void);

/* To be called around the interposer's own driver calls: switches the thread's capture mode to relaxed, so that the
 * calls end no capture of any thread, not even one that begins meanwhile. push returns the previous mode, for pop. */
int gs_capture_mode_push(void);

void gs_capture_mode_pop(int previous);

/* To be called around a call that may draw a stream into an open capture. True: gs_capture_joined has to be called. */
bool gs_capture_joins(void);
void gs_capture_joined(void);

/* Whether the stream, which belongs to the current context, may be queried without harm to any capture. Called with
 * `reaping` of its device held, until the answer is there. */
bool gs_capture_may_ask(CUstream handle);

/* A capture is about to begin and counts as open from now on. Must be followed by one of the two functions below. */
void gs_capture_begins(struct gs_time *time);
/* Keeps captures from beginning until gs_captures_let. Returns whether none is open: only then the caller may look at all
 * work of a context, which would end its captures. */
bool gs_captures_keep_off(struct gs_time *time);
void gs_captures_let(struct gs_time *time);
/* The capture began in the stream, which belongs to this context. */
void gs_capture_open(struct gs_time *time, CUstream stream, CUcontext context);
/* The capture did not begin. */
void gs_capture_none(struct gs_time *time);
/* The stream's capture, if there is one, has ended. */
void gs_capture_close(struct gs_time *time, CUstream stream);

#endif
