/* Mappings of physical memory. */
#ifndef GPUSHARE_MEMORY_MAPPINGS_H
#define GPUSHARE_MEMORY_MAPPINGS_H

#include "interposer/memory/physical/objects.h"

/* ---- with the lock of objects.h held ---- */

void gs_mapping_add(const struct gs_mapping *fresh);
/* Returns the object that cuMemMap has mapped at the address. If it is unknown or ambiguous, returns a new import to
 * which the objects that it may be are bound. base: from gs_mapping_base. The caller becomes a holder. */
uint64_t gs_mapping_object(uint64_t address, uint64_t base);

/* ---- without it ---- */

/* The start of the mapping that contains the address, as the driver reports it; avoids a scan. */
uint64_t gs_mapping_base(uint64_t address);

/* The driver has unmapped the range. */
void gs_range_unmapped(uint64_t from, uint64_t bytes);

/* A buffer or array of external memory, or a sparse array, has ended: removes its mapping, which call `made` has
 * made. */
void gs_buffer_gone(uint64_t address, uint64_t made);
/* A context has ended: removes the mappings of the buffers and arrays that end with it. */
void gs_buffers_context_gone(CUcontext context);

#endif
