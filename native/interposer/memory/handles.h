/* Handles of physical memory, and bindings to multicast objects, which handles name. */
#ifndef GPUSHARE_MEMORY_HANDLES_H
#define GPUSHARE_MEMORY_HANDLES_H

#include "interposer/memory/objects.h"

/* ---- with the lock of objects.h held ---- */

/* The record of this handle after `before`; see gs_table_same. */
struct gs_handle *gs_handle_next(uint64_t handle, struct gs_handle *before);
/* A live one, or NULL. */
struct gs_handle *gs_handle_find(uint64_t handle);
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

/* A call that drops a reference to a handle. One that drops what is not in the books, which only a guess can be, is alone
 * with the handle: it waits for the calls with that handle that are on their way, and later ones wait for it. So what the
 * books say of a handle is true while a call uses it. */
struct gs_release {
  uint64_t handle;
  uint64_t object; /* that the handle names; 0: none that is known */
  bool counted;    /* in `used_handles` */
};

/* Around the driver's call; ended: it succeeded. */
void gs_handle_leaves(struct gs_release *release, uint64_t handle);
void gs_handle_left(const struct gs_release *release, bool ended);
/* Whether a call that may use the handle has to wait; with the lock of objects.h held. */
bool gs_handle_is_busy(uint64_t handle);
/* The call that is alone with the handle is lost: its thread was cancelled. */
void gs_handle_give_up(uint64_t handle);

/* Around the call that unbinds a range of the multicast object that the handle names. The first returns the number of the
 * call; ended: the driver's call succeeded. */
uint64_t gs_bindings_leave(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes);
void gs_bindings_left(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes, uint64_t call, bool ended);

#endif
