#include "interposer/memory/handles.h"

struct gs_handle *gs_handle_next(uint64_t handle, struct gs_handle *before) {
  return gs_table_same(&gs_books()->handles, handle, before);
}

/* A live one; or, if any is true, one that is leaving. */
struct gs_handle *gs_handle_find(uint64_t handle, bool any) {
  struct gs_handle *each = NULL, *leaving = NULL;
  while ((each = gs_handle_next(handle, each)))
    if (each->references > each->leaving)
      return each;
    else if (each->references > 0)
      leaving = each;
  return any ? leaving : NULL;
}

/* The first to have ended of those that have not: books.h. */
static struct gs_handle *oldest(uint64_t handle) {
  struct gs_handle *each = NULL, *first = NULL;
  while ((each = gs_handle_next(handle, each)))
    if (each->references > 0 && each->references <= each->leaving && (!first || each->object < first->object))
      first = each;
  return first ? first : gs_handle_find(handle, false);
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

static void remove_handle(struct gs_handle *gone, uint64_t *freed) {
  uint64_t of = gone->object;
  gs_table_remove(&gs_books()->handles, gone);
  gs_object_drop(of, freed);
}

void gs_handle_unused(uint64_t handle, uint64_t *freed) {
  struct gs_handle *each = NULL;
  if (!gs_unused(&gs_books()->used_handles, handle))
    return;
  while ((each = gs_handle_next(handle, each)))
    if (each->references == 0) {
      remove_handle(each, freed);
      each = NULL; /* others may have moved */
    }
}

bool gs_handle_known(void *handle) {
  gs_objects_lock();
  bool known = gs_handle_find(*(const uint64_t *)handle, false) != NULL;
  gs_table_unlock(&gs_books()->objects);
  return known;
}

static bool handle_left(void *handle) {
  gs_objects_lock();
  bool known = gs_handle_find(*(const uint64_t *)handle, true) != NULL;
  gs_table_unlock(&gs_books()->objects);
  return known;
}

void gs_object_made(uint64_t handle, int ordinal, uint64_t bytes, enum gs_object_kind kind) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_objects_lock();
  uint64_t number = gs_object_add(ordinal, bytes, kind);
  gs_handle_add(handle, number);
  gs_object_drop(number, freed);
  gs_table_unlock(&gs_books()->objects);
}

uint64_t gs_handle_leaves(uint64_t handle) {
  gs_objects_lock();
  struct gs_handle *known = gs_handle_find(handle, false);
  uint64_t of = known ? known->object : 0;
  if (known)
    known->leaving++;
  gs_table_unlock(&gs_books()->objects);
  return of;
}

void gs_handle_left(uint64_t handle, uint64_t leaving, bool ended) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_objects_lock();
  struct gs_handle *known = leaving ? gs_handle_of(handle, leaving) : NULL;
  if (known && known->leaving > 0)
    known->leaving--;
  if (ended && (!known || known->references == 0)) { /* another call ended ours, and we what that one was to end */
    gs_table_unlock(&gs_books()->objects);
    gs_objects_wait(GS_NOT_MAKING, handle_left, &handle);
    gs_objects_lock();
    known = oldest(handle);
  }
  if (ended && known && --known->references == 0 && !gs_table_find(&gs_books()->used_handles, handle))
    remove_handle(known, freed);
  gs_objects_unlock(freed);
}

/* ---- bindings ---------------------------------------------------------------------------------------------------- */

static struct gs_binding *binding_in(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes,
                                     struct gs_life life) {
  struct gs_handle *of = NULL;
  while ((of = gs_handle_next(handle, of)))
    for (struct gs_binding *each = NULL; (each = gs_table_same(&gs_books()->bindings, of->object, each));)
      if (each->device == device && each->offset - offset < bytes && each->life.moment == life.moment &&
          (life.call == 0 || each->life.call == life.call))
        return each;
  return NULL;
}

uint64_t gs_bindings_leave(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes) {
  struct gs_binding *each;
  uint64_t call = gs_next_call();
  gs_objects_lock();
  while ((each = binding_in(handle, device, offset, bytes, (struct gs_life){0, GS_LIVE})))
    each->life = (struct gs_life){call, GS_LEAVING};
  gs_table_unlock(&gs_books()->objects);
  return call;
}

static bool never(void *with) {
  (void)with;
  return false;
}

static unsigned unbind(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes, struct gs_life life,
                       uint64_t *freed) {
  struct gs_binding *each;
  unsigned count = 0;
  while ((each = binding_in(handle, device, offset, bytes, life))) {
    uint64_t memory = each->memory;
    gs_table_remove(&gs_books()->bindings, each);
    gs_object_drop(memory, freed);
    count++;
  }
  return count;
}

void gs_bindings_left(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes, uint64_t call, bool ended) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_binding *each;
  gs_objects_lock();
  while (!ended && (each = binding_in(handle, device, offset, bytes, (struct gs_life){call, GS_LEAVING})))
    each->life = (struct gs_life){0, GS_LIVE};
  if (ended && unbind(handle, device, offset, bytes, (struct gs_life){call, GS_LEAVING}, freed) == 0) {
    gs_table_unlock(&gs_books()->objects);
    gs_objects_wait(GS_NOT_MAKING, never, NULL);
    gs_objects_lock();
    if (unbind(handle, device, offset, bytes, (struct gs_life){0, GS_LEAVING}, freed) == 0) /* the oldest: books.h */
      unbind(handle, device, offset, bytes, (struct gs_life){0, GS_LIVE}, freed);
  }
  gs_objects_unlock(freed);
}
