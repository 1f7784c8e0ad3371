/* Calls of the driver that make an object, or take hold of one: by a handle, an address, or what was exported. */
#ifndef GPUSHARE_MEMORY_USES_H
#define GPUSHARE_MEMORY_USES_H

#include "interposer/memory/physical/objects.h"
#include "interposer/memory/physical/order.h"

struct gs_use {
  struct gs_underway *call;
  uint64_t holder;   /* the object that an import makes; 0: none */
  CUcontext context; /* whose end ends what the call maps; NULL: none */
};

/* To be called before the driver; makes room for what the call may record. False: out of memory, and nothing began. */
bool gs_use_begin(struct gs_use *use, const struct gs_underway *what);
void gs_use_end(const struct gs_use *use);

/* ---- within a use, after the driver's call succeeded ---- */

/* handle names the memory mapped at call->from. */
void gs_object_retained(const struct gs_use *use, uint64_t handle);
/* The memory of call->other, or at call->from, is now in this range of the multicast object call->handle. device: for
 * which it is bound; -1: that of the memory. */
void gs_object_bound(const struct gs_use *use, CUdevice device, uint64_t offset, uint64_t bytes);
/* The memory of call->handle is mapped at the address. in_range: by cuMemMap; else it is a buffer or an array of
 * external memory, and the number of the mapping is returned (gs_mapping.made). */
uint64_t gs_object_mapped(const struct gs_use *use, uint64_t address, uint64_t bytes, bool in_range);

#endif
