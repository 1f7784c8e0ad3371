/* Movable memory: allocations of cuMemAlloc and cuMemAllocPitch that are backed by reserved addresses and mapped handles,
 * so that their memory can leave the device and come back at the same addresses. Grants that lend idle memory have them;
 * there, allocations of up to GS_MOVABLE_ABOVE bytes, and everything else that takes device memory, are fixed.
 *
 * Each has a proxy: a byte of the driver's own cuMemAlloc, or a row of cuMemAllocPitch, in the same context. To free movable memory the proxy is freed
 * first: so the driver itself answers whether the call is allowed now. It ends with its context, as the memory has to.
 *
 * The table belongs to the process. Calls that add and remove records are inside as `settled` (process/passage/passage.h), so the
 * mover has the table to itself while it moves. */
#ifndef GPUSHARE_MOVABLE_H
#define GPUSHARE_MOVABLE_H

#include "interposer/process/process.h"

enum { GS_MOVABLE_ABOVE = 1 << 20 };

enum gs_where {
  GS_ON_DEVICE,
  GS_COPIED, /* on the device, with a current copy at `host` */
  GS_ON_HOST /* at `host`; nothing is mapped at its addresses */
};

struct gs_movable {
  uint64_t address;
  uint64_t bytes; /* mapped and charged */
  uint64_t asked; /* by the program */
  uint64_t number;
  CUcontext context; /* with which it ends */
  CUdeviceptr proxy; /* 0: freed, and mapped until work in flight is done */
  uint32_t proxied;  /* bytes charged for the proxy */
  int ordinal;
  uint32_t fixed; /* why it stays on the device: 1 << enum gs_fixed */
  enum gs_where where;
  uint64_t host; /* place in the host memory (host.h); GS_NO_PLACE: none */
};
#define GS_NO_PLACE UINT64_MAX

/* The one that contains the address. Cheap in a process that has none. */
bool gs_movable_find(uint64_t address, struct gs_movable *out);
bool gs_movable_overlaps(uint64_t address, uint64_t bytes);
/* From now on it is not moved, being GS_FIXED_EXPORTED or GS_FIXED_SYNCED. */
void gs_movable_fix(uint64_t address, enum gs_fixed reason);

/* ---- for the mover ---- */

/* The first at or above the address. */
bool gs_movable_next(uint64_t address, struct gs_movable *out);
/* Changes where it is. Does nothing if it has ended, even if another one lies at its address. */
void gs_movable_place(const struct gs_movable *movable, enum gs_where where, uint64_t host);
/* Whether any is GS_ON_HOST. */
bool gs_movable_any_hosted(void);
/* Publishes the sums of the table in the process's slot. */
void gs_movable_publish(void);

#endif
