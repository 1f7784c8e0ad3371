/* Queries the driver about streams that are not proven idle and that the program itself does not query. */
#ifndef GPUSHARE_TIME_PROVE_H
#define GPUSHARE_TIME_PROVE_H

#include "interposer/time/timing.h"

/* Whether work of the device is this many ns over its expected end and not proven done. Takes no lock: a cheap look
 * before gs_query_streams. */
bool gs_overdue(const struct gs_time_device *device, uint64_t now, uint64_t patience);

/* Queries the overdue streams. Those that are not done are charged by residency from then on. Called by the gate
 * thread. */
void gs_query_streams(struct gs_time_device *device, uint64_t patience);

/* Whether the driver reports the stream as idle. False also if it cannot be queried now. */
bool gs_stream_queried_idle(struct gs_stream *stream);

#endif
