/* Two timing events around a launch, to learn how long it takes. */
#ifndef GPUSHARE_TIME_BRACKET_H
#define GPUSHARE_TIME_BRACKET_H

#include "interposer/time/timing.h"

/* Records the first event. hold: puts something for the device to do before it, so that the launch and the second event
 * are recorded by the time the device reaches the first. *began: when the first event had been recorded. False if the
 * driver refuses. */
bool gs_bracket_begin(struct gs_stream *stream, bool hold, uint64_t *began);
/* Records the second event. *closed: when it had been recorded. *held: GS_HELD if the device had not reached the first
 * event by then, so that the time between the two is that of the launch alone. */
bool gs_bracket_end(struct gs_stream *stream, bool hold, uint64_t *closed, enum gs_held *held);
/* Passes the time between the events to the meter, if both are done. Called with the device's `reaping` held. */
void gs_bracket_take(struct gs_stream *stream);
/* Returns the events to the context's pool. */
void gs_bracket_free(struct gs_stream *stream);

#endif
