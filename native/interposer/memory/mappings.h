/* Mappings of physical memory. */
#ifndef GPUSHARE_MEMORY_MAPPINGS_H
#define GPUSHARE_MEMORY_MAPPINGS_H

#include "interposer/memory/objects.h"

/* ---- with the lock of objects.h held ---- */

void gs_mapping_add(const struct gs_mapping *fresh);
/* The object that is mapped there by cuMemMap, or a new import: of nothing if that is not known, of all that it may be if
 * there are several. base: of gs_mapping_base. The caller becomes a holder. */
uint64_t gs_mapping_object(uint64_t address, uint64_t base);

/* ---- without it ---- */

/* Where the driver says that the mapping of this address begins, so that it is found at once. */
uint64_t gs_mapping_base(uint64_t address);

/* The driver has unmapped the range. */
void gs_range_unmapped(uint64_t from, uint64_t bytes);

/* A buffer or an array of external memory, or a sparse one, has ended: its mapping of this number. */
void gs_buffer_gone(uint64_t address, uint64_t made);
/* Those of a context end with it. */
void gs_buffers_context_gone(CUcontext context);

#endif
