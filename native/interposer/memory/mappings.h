/* Mappings of physical memory. */
#ifndef GPUSHARE_MEMORY_MAPPINGS_H
#define GPUSHARE_MEMORY_MAPPINGS_H

#include "interposer/memory/objects.h"

/* ---- with the lock of objects.h held ---- */

/* The oldest at this address in the given moment; of the call, or 0: of any. */
struct gs_mapping *gs_mapping_at(uint64_t address, enum gs_moment moment, uint64_t call);
/* Adds a mapping that the call is about to make. */
void gs_mapping_announce(uint64_t address, uint64_t bytes, uint64_t object, uint64_t call, CUcontext context);
void gs_mapping_turn(struct gs_mapping *mapping, enum gs_moment moment, uint64_t call);
void gs_mapping_remove(struct gs_mapping *gone, uint64_t *freed);
/* An address in a mapping. */
struct gs_inside {
  uint64_t address;
  uint64_t base; /* where the driver says that the mapping begins: so that it is found at once */
};
/* The object to which the address referred during a use of it; a new import if it may have been several or none. The
 * caller becomes a holder. */
uint64_t gs_mapping_object(const struct gs_inside *inside, uint64_t *freed);
/* A call with the address has returned: after the last one, removes what is gone. */
void gs_mapping_unused(uint64_t address, uint64_t *freed);

/* ---- without it ---- */

struct gs_inside gs_mapping_inside(uint64_t address);
/* Whether something is, or is about to be, mapped at an address (struct gs_inside): for gs_objects_wait. */
bool gs_mapping_known(void *inside);

/* Around the call that unmaps a range. The first returns the number of the call; ended: the driver's call succeeded. */
uint64_t gs_mappings_leave(uint64_t from, uint64_t bytes);
void gs_mappings_left(uint64_t from, uint64_t bytes, uint64_t call, bool ended);

/* A buffer or array of external memory has ended, which the call of this number had mapped. */
void gs_buffer_gone(uint64_t address, uint64_t made);
/* Those of a context end with it. */
void gs_buffers_context_gone(CUcontext context);

#endif
