/* Allocations and frees of movable memory (residency/movable.h). */
#ifndef GPUSHARE_HOOKS_MOVABLE_H
#define GPUSHARE_HOOKS_MOVABLE_H

#include "interposer/residency/movable.h"

/* For cuMemAlloc. False: it is to be the driver's own. */
bool gs_allocate_movable(uint64_t bytes, uint64_t *address, CUresult *result);

/* For cuMemAllocPitch. `pitch` is set on success. */
struct gs_rows {
  size_t width, height, pitch;
  unsigned int element;
};
bool gs_allocate_movable_rows(struct gs_rows *rows, uint64_t *address, CUresult *result);

/* stream: in whose order it is freed; NULL: it waits, like the driver's own free, for the device. To be called between
 * gs_settled_begin and gs_settled_end. */
CUresult gs_free_movable(uint64_t address, const CUstream *stream);

#endif
