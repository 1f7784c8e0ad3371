/* Objects that this process has exported, for others or for itself. What another process exported is charged to that
 * process; an import of what this process exported holds every object that it may be.
 *
 * An open descriptor keeps an object alive. The last one may be closed at any time and in any process, so that is
 * checked when it matters: gs_descriptors_settle. */
#ifndef GPUSHARE_MEMORY_EXPORTS_H
#define GPUSHARE_MEMORY_EXPORTS_H

#include "interposer/memory/physical/uses.h"

/* ---- within a use, after the driver's call succeeded ---- */

/* From now on, an import by this name may be the object of call->handle. fd: the descriptor that the driver returned;
 * -1: it returned something else. */
void gs_object_exported(const struct gs_use *use, uint64_t name, int fd);

/* ---- within a use, before and after the driver's call ---- */

/* An import by this name, during which nothing is exported. handle: what the driver returned; 0: it refused. */
void gs_import_begin(struct gs_use *use, uint64_t name);
void gs_import_end(const struct gs_use *use, uint64_t handle);

/* ---- */

/* Gives back memory that was kept only by descriptors that are closed by now. Cheap if nothing is exported. */
void gs_descriptors_settle(void);

#endif
