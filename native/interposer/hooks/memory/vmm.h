/* Physical memory and multicast objects. */
#ifndef GPUSHARE_HOOKS_VMM_H
#define GPUSHARE_HOOKS_VMM_H

#include "interposer/hooks/call.h"

/* Binds memory to a range of a multicast object: by its handle, or if that is 0, by the address at which it is mapped.
 * device: for which it is bound; -1: that of the memory. */
CUresult gs_do_multicast_bind(const struct gs_call *call, CUmemGenericAllocationHandle object, CUdevice device,
                              size_t offset, size_t bytes, CUmemGenericAllocationHandle memory, CUdeviceptr address);

#endif
