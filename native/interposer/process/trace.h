/* The one place where the interposer says what happened, for people who look for a fault: in the process's ring of the
 * usage page (page/gs_trace.h), on stderr where GPUSHARE_DEBUG names the area, and at the probe gpushare:trace. */
#ifndef GPUSHARE_TRACE_H
#define GPUSHARE_TRACE_H

#include <stdint.h>

#include "page/gs_trace.h"

/* ordinal: of the device, or -1. a and b are what the kind's text says. From any thread, with any lock held; keeps
 * errno. Not for what happens at every launch: an event costs about 50 ns. */
void gs_trace(enum gs_trace_kind kind, int ordinal, uint64_t a, uint64_t b);

/* This process has joined: its ring begins anew. Before the grant's other threads may call gs_trace. */
void gs_trace_joined(void);

/* Bytes of the device that this process holds, for what gs_trace says of memory. */
uint64_t gs_held(int ordinal);

#endif
