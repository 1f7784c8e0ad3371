/* Handles of physical memory, and bindings to multicast objects, which handles name. */
#ifndef GPUSHARE_MEMORY_HANDLES_H
#define GPUSHARE_MEMORY_HANDLES_H

#include "interposer/memory/objects.h"

/* ---- with the lock of objects.h held ---- */

/* The record of this handle after `before`; see gs_table_same. */
struct gs_handle *gs_handle_next(uint64_t handle, struct gs_handle *before);
/* The live one; if there is none and any is true, one that is leaving. */
struct gs_handle *gs_handle_find(uint64_t handle, bool any);
/* The one that refers to the object. */
struct gs_handle *gs_handle_of(uint64_t handle, uint64_t object);
void gs_handle_add(uint64_t handle, uint64_t object);
/* A call with the handle has returned: after the last one, removes what is gone. */
void gs_handle_unused(uint64_t handle, uint64_t *freed);

/* ---- without it ---- */

/* Whether a handle (a uint64_t) is live: for gs_objects_wait. */
bool gs_handle_known(void *handle);
/* The driver returned the first handle of a new object. */
void gs_object_made(uint64_t handle, int ordinal, uint64_t bytes, enum gs_object_kind kind);

/* Around the call that drops a reference to the handle, or unbinds a range of the multicast object that it names. The
 * first returns what the second wants; ended: the driver's call succeeded. */
uint64_t gs_handle_leaves(uint64_t handle);
void gs_handle_left(uint64_t handle, uint64_t leaving, bool ended);
uint64_t gs_bindings_leave(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes);
void gs_bindings_left(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes, uint64_t call, bool ended);

#endif
