/* Finds where the running kernel keeps what the programs read, from its own description of its types (BTF). */
#ifndef GS_GUARD_BTF_H
#define GS_GUARD_BTF_H

#include <stdint.h>
#include "guard/maps.h"
#include "page/gs_err.h"

/* Fills in offsets in structs and this architecture's registers and numbers. iterator: the BTF id of the function that
 * iterators over descriptors attach to. */
int gs_kernel_read(struct gs_settings *settings, uint32_t *iterator, struct gs_err *err);

#endif
