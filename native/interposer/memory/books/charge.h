/* Charges device memory to the grant. */
#ifndef GPUSHARE_MEMORY_CHARGE_H
#define GPUSHARE_MEMORY_CHARGE_H

#include "interposer/process/process.h"

/* Reserves bytes of the grant's memory: 0, or -ENOMEM or -EAGAIN if they do not fit (gs_page_reserve). Unlike
 * gs_reserve, does not first give back freed memory. */
int gs_reserve_now(int ordinal, uint64_t bytes, bool patient);
/* The same for the maximum that a call in progress may take (gs_page_grow). gs_grown ends it; `taken` of the bytes stay
 * reserved. */
int gs_grow_now(int ordinal, uint64_t bytes, bool patient);
void gs_grown(int ordinal, uint64_t bytes, uint64_t taken);
/* Charges bytes that the driver has already taken, whether they fit or not. */
void gs_charge(int ordinal, uint64_t bytes);
/* Releases bytes that were reserved or charged. */
void gs_give_back(int ordinal, uint64_t bytes);
/* Returns the error for an allocation that does not fit: out of memory or, during a stream capture, the driver's error
 * for an allocation then; that ends the capture, as an allocation would. */
CUresult gs_no_room(void);

#endif
