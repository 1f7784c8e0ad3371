/* Memory that is wanted, and memory that may have come back. */
#ifndef GPUSHARE_MEMORY_RESERVE_H
#define GPUSHARE_MEMORY_RESERVE_H

#include "interposer/memory/charge.h"
#include "interposer/time/timing.h"

/* Reserves bytes of the grant's memory before the driver is asked: 0, or -ENOMEM when they do not fit even after what
 * came back unnoticed was given back. With no lock of pool_charge.c held. */
int gs_reserve(int ordinal, uint64_t bytes);
/* Work of this device was waited for: memory may have come back. Cheap where nothing can. */
void gs_memory_synced(int ordinal);
/* The same, of a stream: all that it was given is done, for the meter too. */
void gs_stream_synced(struct gs_stream *stream);

#endif
