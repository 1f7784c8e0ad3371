/* Makes and ends movable memory: addresses that are reserved, and memory that is mapped there. */
#ifndef GPUSHARE_BACKING_H
#define GPUSHARE_BACKING_H

#include "interposer/residency/movable.h"

/* Whether an allocation of these bytes is to be movable. */
bool gs_movable_wanted(uint64_t bytes);

/* Whether it can be: asks the driver at first. False: it cannot map memory, or this process is out of memory. */
bool gs_movable_ready(int ordinal);

/* Makes one in the current context. made: ordinal, context, asked, proxy and proxied. On success it is in the table, and
 * *address is its address; otherwise the proxy is still the caller's. */
CUresult gs_movable_make(struct gs_movable made, uint64_t *address);
/* The bytes that it will take of the device. */
uint64_t gs_movable_bytes(uint64_t asked);

/* Removes it from the table, gives its memory back to the driver and its charge to the grant. Nothing may use it any more.
 * Another thread may have done so: then it does nothing. */
void gs_movable_end(uint64_t address, uint64_t number);
/* Like gs_movable_end, where the charge was given back already. */
void gs_movable_abandon(uint64_t address, uint64_t number);

/* Maps new memory at its addresses. On failure nothing is mapped there. */
CUresult gs_movable_map(const struct gs_movable *movable);
CUresult gs_movable_unmap(const struct gs_movable *movable);

#endif
