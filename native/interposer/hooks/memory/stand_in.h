/* Calls about memory that a driver answers without its contents. At a movable allocation's address the driver has mapped
 * memory, or nothing while it is hosted, and would answer differently. Its proxy is memory that cuMemAlloc made in the
 * same context: the driver is asked about that instead, so the program gets the driver's own answer for memory of
 * cuMemAlloc, and the same one wherever the memory is. */
#ifndef GPUSHARE_HOOKS_STAND_IN_H
#define GPUSHARE_HOOKS_STAND_IN_H

#include "interposer/hooks/call.h"
#include "interposer/residency/movable.h"

/* The movable allocation at the address; false: there is none. at->proxy is 0, which no driver knows, if the program did
 * not ask for the byte there. */
bool gs_stands_for(CUdeviceptr address, struct gs_movable *at);

/* The address to ask about in place of a range of at least one byte: the same address, unless movable memory is in the
 * range. Then the proxy of the allocation that it begins in; 0 if it begins elsewhere. */
CUdeviceptr gs_stand_in(CUdeviceptr address, uint64_t bytes);

CUresult gs_before_stand_in(CUdeviceptr *address, size_t bytes);
CUresult gs_before_stand_in_pointer(void **address, size_t bytes);

#endif
