#include "interposer/memory/physical/uses.h"

#include "interposer/memory/physical/handles.h"
#include "interposer/memory/physical/mappings.h"

static bool room_for(unsigned does) {
  struct gs_books *books = gs_books();
  const struct {
    unsigned by;
    struct gs_table *table;
  } needs[] = {
      {GS_MAKES_HANDLE | GS_NAMES_MANY, &books->objects},
      {GS_MAKES_HANDLE, &books->handles},
      {GS_MAPS | GS_NAMES_MANY, &books->mappings},
      {GS_BINDS | GS_IMPORTS | GS_NAMES_MANY, &books->bindings},
      {GS_EXPORTS, &books->exports},
  };
  for (unsigned i = 0; i < sizeof needs / sizeof *needs; i++)
    if (does & needs[i].by && !gs_table_room(needs[i].table, 1))
      return false;
  return true;
}

bool gs_use_begin(struct gs_use *use, const struct gs_underway *what) {
  if (!room_for(what->does))
    return false;
  *use = (struct gs_use){.call = gs_order_begin(what)};
  return true;
}

void gs_use_end(const struct gs_use *use) { gs_order_end(use->call); }

void gs_object_retained(const struct gs_use *use, uint64_t handle) {
  uint64_t freed[GS_MAX_DEVICES] = {0}, base = gs_mapping_base(use->call->from);
  gs_objects_lock();
  uint64_t of = gs_mapping_object(use->call->from, base);
  struct gs_handle *known = gs_handle_of(handle, of);
  if (known)
    known->references++;
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

/* Memory at an address that is not mapped belongs to a pool, and stays charged while the pool has it. */
void gs_object_bound(const struct gs_use *use, CUdevice device, uint64_t offset, uint64_t bytes) {
  const struct gs_underway *what = use->call;
  const struct gs_binding where = {.offset = offset, .bytes = bytes, .device = device};
  uint64_t freed[GS_MAX_DEVICES] = {0}, base = what->from ? gs_mapping_base(what->from) : 0;
  struct gs_handle *each = NULL;
  gs_objects_lock();
  while (what->other && (each = gs_handle_next(what->other, each)))
    bind_to_all(what->handle, each->object, &where);
  if (what->from) {
    uint64_t at = gs_mapping_object(what->from, base);
    bind_to_all(what->handle, at, &where);
    gs_object_drop(at, freed);
  }
  gs_objects_unlock(freed);
}

uint64_t gs_object_mapped(const struct gs_use *use, uint64_t address, uint64_t bytes, bool in_range) {
  uint64_t made = in_range ? 0 : gs_next_call();
  struct gs_handle *each = NULL;
  gs_objects_lock();
  while ((each = gs_handle_next(use->call->handle, each)))
    gs_mapping_add(&(struct gs_mapping){address, bytes, each->object, made, use->context});
  gs_table_unlock(&gs_books()->objects);
  return made;
}
