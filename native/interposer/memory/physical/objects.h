/* Physical memory in the books: it lives until its last handle, its last mapping and its last binding to a multicast
 * object are gone, in any order. Each piece is represented by an object, to which those refer. A multicast object is
 * one too, without bytes: when it ends, the memory bound to it is released. So is an import of what this process
 * exported: all objects that it may be are bound to it. Calls that make something or take hold of an object are wrapped
 * in a use (uses.h), order.h decides which calls wait for each other.
 *
 * One lock guards these tables. It is never held during a call of the driver. */
#ifndef GPUSHARE_MEMORY_OBJECTS_H
#define GPUSHARE_MEMORY_OBJECTS_H

#include "interposer/memory/books/books.h"
#include "interposer/memory/books/life.h"

void gs_objects_lock(void);
/* Unlocks, and gives back what ended: bytes, by ordinal. */
void gs_objects_unlock(const uint64_t *freed);

/* ---- with the lock held ---- */

/* NULL: it has ended. */
struct gs_object *gs_object_find(uint64_t number);
/* Adds an object, whose first holder is the caller; returns its number. */
uint64_t gs_object_add(int ordinal, uint64_t bytes, enum gs_object_kind kind);
void gs_object_hold(uint64_t number);
/* Removes one holder. The last one adds the bytes to freed and ends the object. */
void gs_object_drop(uint64_t number, uint64_t *freed);
void gs_object_bind(uint64_t to, uint64_t memory, const struct gs_binding *where);
bool gs_object_is_bound(uint64_t to, uint64_t memory);

#endif
