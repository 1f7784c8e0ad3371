/* Records what the interposer did, for diagnosis: in the process's ring of the usage page (page/gs_trace.h), on stderr
 * if GPUSHARE_DEBUG names the area, and at the probe gpushare:trace. */
#ifndef GPUSHARE_TRACE_H
#define GPUSHARE_TRACE_H

#include <stdint.h>

#include "page/gs_trace.h"

/* Records an event. ordinal: of the device, or -1. a and b: as described in the text of the kind. May be called from
 * any thread with any lock held; preserves errno. Not for events of every launch: a record costs about 50 ns. */
void gs_trace(enum gs_trace_kind kind, int ordinal, uint64_t a, uint64_t b);

/* Resets the ring after this process has joined. To be called before other threads may call gs_trace. */
void gs_trace_joined(void);

/* Device memory that this process holds, in bytes, for events about memory. */
uint64_t gs_held(int ordinal);

#endif
