#include "interposer/memory/uses.h"

#include "interposer/memory/handles.h"
#include "interposer/memory/mappings.h"

static bool room_for(unsigned makes) {
  struct gs_books *books = gs_books();
  const struct {
    unsigned of;
    struct gs_table *table;
  } needs[] = {
      {GS_MAKES_HANDLE, &books->objects},   {GS_MAKES_HANDLE, &books->handles}, {GS_MAKES_MAPPING, &books->mappings},
      {GS_MAKES_BINDING, &books->bindings}, {GS_MAKES_EXPORT, &books->exports}, {~0u, &books->used_handles},
      {~0u, &books->used_addresses},
  };
  for (unsigned i = 0; i < sizeof needs / sizeof *needs; i++)
    if (makes & needs[i].of && !gs_table_room(needs[i].table, 1))
      return false;
  return true;
}

/* Begins, unless a call is alone with a handle. */
static bool begin(void *with) {
  const struct gs_use *use = with;
  gs_objects_lock();
  bool ready = !gs_handle_is_busy(use->handle) && !gs_handle_is_busy(use->other);
  if (ready) {
    gs_used(&gs_books()->used_handles, use->handle);
    gs_used(&gs_books()->used_handles, use->other);
    gs_used(&gs_books()->used_addresses, use->address);
  }
  gs_table_unlock(&gs_books()->objects);
  return ready;
}

bool gs_use_begin(struct gs_use *use, unsigned makes, uint64_t handle, uint64_t other, uint64_t address) {
  struct gs_books *books = gs_books();
  if (!room_for(makes))
    return false;
  *use = (struct gs_use){.handle = handle, .other = other, .address = address};
  while (!gs_making_await(&books->objects_made, begin, use)) {
    gs_handle_give_up(handle);
    gs_handle_give_up(other);
  }
  use->call = gs_next_call();
  use->begun = gs_making_begin(&books->objects_made);
  return true;
}

void gs_use_end(struct gs_use *use) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_objects_lock();
  gs_handle_unused(use->handle, freed);
  gs_handle_unused(use->other, freed);
  gs_mapping_unused(use->address, freed);
  gs_objects_unlock(freed);
  gs_making_end(&gs_books()->objects_made, use->begun);
}

void gs_object_retained(const struct gs_use *use, uint64_t handle) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_inside inside = gs_mapping_inside(use->address);
  gs_objects_wait(use->begun, gs_mapping_known, &inside);
  gs_objects_lock();
  uint64_t of = gs_mapping_object(&inside, freed);
  struct gs_handle *known = gs_handle_of(handle, of);
  if (known)
    known->references++; /* also if it was on its way out */
  else
    gs_handle_add(handle, of);
  gs_object_drop(of, freed);
  gs_objects_unlock(freed);
}

static void bind_to_all(uint64_t handle, uint64_t memory, const struct gs_binding *where) {
  struct gs_handle *each = NULL;
  while ((each = gs_handle_next(handle, each)))
    if (gs_object_find(each->object) && gs_object_find(memory))
      gs_object_bind(each->object, memory, where);
}

void gs_object_bound(const struct gs_use *use, CUdevice device, uint64_t offset, uint64_t bytes) {
  uint64_t freed[GS_MAX_DEVICES] = {0}, handle = use->handle, other = use->other;
  struct gs_inside inside = {0};
  struct gs_handle *each = NULL;
  gs_objects_wait(use->begun, gs_handle_known, &handle);
  if (other)
    gs_objects_wait(use->begun, gs_handle_known, &other);
  if (use->address) {
    inside = gs_mapping_inside(use->address);
    gs_objects_wait(use->begun, gs_mapping_known, &inside);
  }
  gs_objects_lock();
  const struct gs_binding where = {
      .offset = offset, .bytes = bytes, .made = use->call, .settled = gs_next_call(), .device = device};
  while (other && (each = gs_handle_next(other, each)))
    bind_to_all(handle, each->object, &where);
  uint64_t at = use->address ? gs_mapping_object(&inside, freed)
                             : 0; /* nothing: memory of a pool, charged as long as that has it */
  if (at) {
    bind_to_all(handle, at, &where);
    gs_object_drop(at, freed);
  }
  gs_objects_unlock(freed);
}

void gs_map_begin(const struct gs_use *use, uint64_t address, uint64_t bytes) {
  struct gs_handle *each = NULL;
  gs_objects_lock();
  while ((each = gs_handle_next(use->handle, each)))
    gs_mapping_announce(address, bytes, each->object, use->call, use->context);
  gs_table_unlock(&gs_books()->objects);
}

static bool announced(const struct gs_use *use, uint64_t address, uint64_t of) {
  const struct gs_mapping *each = NULL;
  while ((each = gs_table_same(&gs_books()->mappings, address, (void *)(uintptr_t)each)))
    if (each->life.moment == GS_ANNOUNCED && each->life.call == use->call && each->object == of)
      return true;
  return false;
}

void gs_map_end(const struct gs_use *use, uint64_t address, uint64_t bytes, bool mapped) {
  uint64_t freed[GS_MAX_DEVICES] = {0}, handle = use->handle;
  struct gs_mapping *mine;
  struct gs_handle *each = NULL;
  if (mapped)
    gs_objects_wait(use->begun, gs_handle_known, &handle);
  gs_objects_lock();
  while (mapped && (each = gs_handle_next(handle, each)))
    if (!announced(use, address, each->object))
      gs_mapping_announce(address, bytes, each->object, use->call, use->context);
  if (mapped && !gs_mapping_at(address, GS_ANNOUNCED, use->call))
    gs_mapping_announce(address, bytes, 0, use->call, use->context);
  while ((mine = gs_mapping_at(address, GS_ANNOUNCED, use->call)))
    if (mapped)
      gs_mapping_turn(mine, GS_LIVE, 0);
    else
      gs_mapping_remove(mine, freed);
  gs_objects_unlock(freed);
}
