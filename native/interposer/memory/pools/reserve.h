/* Reserves memory, and gives back memory that was freed unnoticed. */
#ifndef GPUSHARE_MEMORY_RESERVE_H
#define GPUSHARE_MEMORY_RESERVE_H

#include "interposer/memory/books/charge.h"
#include "interposer/time/timing.h"

/* Reserves bytes of the grant's memory before the driver is called: 0, or -ENOMEM if they do not fit even after freed
 * memory was given back. To be called with no lock of pool_charge.c held. */
int gs_reserve(int ordinal, uint64_t bytes);
/* The same for the maximum that a call in progress may take: see gs_grow_now. */
int gs_reserve_growth(int ordinal, uint64_t bytes);
/* The driver has waited for work of this device, so memory may have been freed. Cheap if nothing can have been. */
void gs_memory_synced(int ordinal);
/* The program has waited for a stream, an event or a context: then drivers give back unused memory of pools. */
void gs_memory_waited(int ordinal);
/* All work of a stream is done; the meter is notified too. waited: the program has waited for it, rather than queried
 * it. */
void gs_stream_synced(struct gs_stream *stream, bool waited);

#endif
