/* Objects that this process gave away, to others or to itself. An import of what another process exported is charged to
 * that one; an import of what this process exported holds what it may be.
 *
 * An open descriptor keeps an object. The last one may be closed at any time and in any process, so it is looked at when
 * it matters: gs_descriptors_settle. */
#ifndef GPUSHARE_MEMORY_EXPORTS_H
#define GPUSHARE_MEMORY_EXPORTS_H

#include "interposer/memory/uses.h"

/* ---- within a use, after the driver's call succeeded ---- */

/* An import of that name may be the object of call->handle from now on. fd: the descriptor that the driver returned; -1: it
 * returned something else. */
void gs_object_exported(const struct gs_use *use, uint64_t name, int fd);

/* ---- within a use, before and after the driver's call ---- */

/* An import of what may have that name, which nobody exports meanwhile. handle: what the driver returned; 0: it refused. */
void gs_import_begin(struct gs_use *use, uint64_t name);
void gs_import_end(const struct gs_use *use, uint64_t handle);

/* ---- */

/* Gives back what only descriptors kept that are closed by now. Cheap if nothing is exported. */
void gs_descriptors_settle(void);

#endif
