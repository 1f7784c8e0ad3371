/* Handles of physical memory, and bindings to multicast objects, which handles name. */
#ifndef GPUSHARE_MEMORY_HANDLES_H
#define GPUSHARE_MEMORY_HANDLES_H

#include "interposer/memory/physical/objects.h"

/* The key of a CUexternalMemory in the table of handles. The handle is a pointer, and a handle of another kind may have
 * the same value. */
static inline uint64_t gs_external_key(CUexternalMemory memory) {
  return memory ? (uintptr_t)memory | UINT64_C(1) << 63 : 0;
}

/* ---- with the lock of objects.h held ---- */

/* The record of this handle after `before`; see gs_table_same. There are several if the driver returned one value for
 * an object and for an import that may be it, or until the call that ended a former handle is recorded. */
struct gs_handle *gs_handle_next(uint64_t handle, struct gs_handle *before);
/* The record of this handle that refers to the object. */
struct gs_handle *gs_handle_of(uint64_t handle, uint64_t object);
void gs_handle_add(uint64_t handle, uint64_t object);

/* ---- without it ---- */

/* The driver returned the first handle of a new object. */
void gs_object_made(uint64_t handle, int ordinal, uint64_t bytes, enum gs_object_kind kind);

/* Around the driver's call that drops a reference to a handle; ended: it succeeded. */
struct gs_release {
  struct gs_underway *call;
  uint64_t object; /* that the handle names; 0: none that is known */
};
void gs_handle_leaves(struct gs_release *release, uint64_t handle);
void gs_handle_left(const struct gs_release *release, bool ended);

/* The driver has unbound a range of the multicast object that the handle names. */
void gs_object_unbound(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes);

#endif
