/* Reserves memory, and gives back memory that was freed unnoticed. */
#ifndef GPUSHARE_MEMORY_RESERVE_H
#define GPUSHARE_MEMORY_RESERVE_H

#include "interposer/memory/books/charge.h"
#include "interposer/process/passage/room.h"
#include "interposer/time/timing.h"

/* Reserves bytes of the grant's memory before the driver is called: 0, or -ENOMEM if they do not fit even after freed
 * memory was given back. -EAGAIN: they would fit, but the grant's room is away (gs_room_await). To be called with no lock
 * of pool_charge.c held. */
int gs_reserve_here(int ordinal, uint64_t bytes);
/* The same for the maximum that a call in progress may take: see gs_grow_now. settles: frees that are done are looked for. */
int gs_reserve_growth(int ordinal, uint64_t bytes, bool settles);
/* gs_reserve_here, which waits for the room: to be called with no lock held. -EAGAIN: patience is over. */
int gs_reserve(int ordinal, uint64_t bytes, struct gs_patience *patience);
/* Whether the room is away and the bytes would not fit if it were there: then there is nothing to wait for. */
bool gs_reserve_hopeless(int ordinal, uint64_t bytes);
/* Whether the driver, which answered a call for bytes that are reserved with `result`, is to be asked again: its device is
 * full, although the grant has them, and a grant that lends its memory waits until others have left. Waits a moment
 * before, with the same patience. bytes: 0 if no context is current, which the driver needs to say what is free. */
bool gs_driver_again(CUresult result, int ordinal, uint64_t bytes, struct gs_patience *patience);
/* The driver has waited for work of this device, so memory may have been freed. Cheap if nothing can have been. */
void gs_memory_synced(int ordinal);
/* The program has waited for a stream, an event or a context: then drivers give back unused memory of pools. */
void gs_memory_waited(int ordinal);
/* All work of a stream is done; the meter is notified too. waited: the program has waited for it, rather than queried
 * it. */
void gs_stream_synced(struct gs_stream *stream, bool waited);

#endif
