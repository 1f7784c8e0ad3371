#include "interposer/memory/physical/handles.h"

#include "interposer/memory/physical/order.h"

struct gs_handle *gs_handle_next(uint64_t handle, struct gs_handle *before) {
  return gs_table_same(&gs_books()->handles, handle, before);
}

struct gs_handle *gs_handle_of(uint64_t handle, uint64_t of) {
  struct gs_handle *each = NULL;
  while ((each = gs_handle_next(handle, each)) && each->object != of)
    ;
  return each;
}

void gs_handle_add(uint64_t handle, uint64_t of) {
  gs_object_hold(of);
  gs_table_add(&gs_books()->handles, &(struct gs_handle){.handle = handle, .object = of, .references = 1});
}

void gs_object_made(uint64_t handle, int ordinal, uint64_t bytes, enum gs_object_kind kind) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_objects_lock();
  uint64_t number = gs_object_add(ordinal, bytes, kind);
  gs_handle_add(handle, number);
  gs_object_drop(number, freed);
  gs_table_unlock(&gs_books()->objects);
}

void gs_handle_leaves(struct gs_release *release, uint64_t handle) {
  release->call = gs_order_begin(&(struct gs_underway){.handle = handle, .does = GS_IS_ALONE});
  gs_objects_lock();
  const struct gs_handle *known = gs_handle_next(handle, NULL);
  release->object = known ? known->object : 0;
  gs_table_unlock(&gs_books()->objects);
}

void gs_handle_left(const struct gs_release *release, bool ended) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_objects_lock();
  struct gs_handle *known = ended ? gs_handle_of(release->call->handle, release->object) : NULL;
  if (known && --known->references == 0) {
    gs_table_remove(&gs_books()->handles, known);
    gs_object_drop(release->object, freed);
  }
  gs_objects_unlock(freed);
  gs_order_end(release->call);
}

static struct gs_binding *bound_in(uint64_t object, CUdevice device, uint64_t offset, uint64_t bytes) {
  struct gs_binding *each = NULL;
  while ((each = gs_table_same(&gs_books()->bindings, object, each)))
    if (each->bytes > 0 && each->device == device && each->offset - offset < bytes &&
        each->bytes <= bytes - (each->offset - offset))
      return each;
  return NULL;
}

void gs_object_unbound(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_binding *one;
  gs_objects_lock();
  for (struct gs_handle *of = NULL; (of = gs_handle_next(handle, of));)
    while ((one = bound_in(of->object, device, offset, bytes))) {
      uint64_t memory = one->memory;
      gs_table_remove(&gs_books()->bindings, one);
      gs_object_drop(memory, freed);
    }
  gs_objects_unlock(freed);
}
