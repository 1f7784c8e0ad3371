#include "interposer/memory/physical/objects.h"

#include "interposer/memory/books/charge.h"
#include "interposer/os/files/descriptor.h"
#include "interposer/process/device.h"

struct gs_object *gs_object_find(uint64_t number) { return gs_table_find(&gs_books()->objects, number); }

static void unname(uint64_t number) {
  struct gs_table *exports = &gs_books()->exports;
  struct gs_export *each;
  for (uint32_t at = 0; (each = gs_table_next(exports, &at));)
    if (each->object == number) {
      struct gs_export gone = *each;
      gs_table_remove(exports, each);
      at--; /* the last one has moved here */
      if (!gs_table_find(exports, gone.name))
        gs_descriptor_unwatch(gone.watcher, gone.name);
    }
}

/* Removes one holder. The last one gives the bytes back, to freed[ordinal], and ends the object. Recursive: what is
 * bound to an import may be a multicast object, and memory is bound to that. */
void gs_object_drop(uint64_t number, uint64_t *freed) {
  struct gs_object *held = gs_object_find(number);
  if (!held || --held->holders > 0)
    return;
  struct gs_object gone = *held;
  gs_table_remove(&gs_books()->objects, held);
  if (gone.ordinal != GS_NO_DEVICE)
    freed[gone.ordinal] += gone.bytes;
  if (gone.exported)
    unname(number);
  for (struct gs_binding *each; gone.kind != GS_MEMORY && (each = gs_table_find(&gs_books()->bindings, number));) {
    uint64_t memory = each->memory;
    gs_table_remove(&gs_books()->bindings, each);
    gs_object_drop(memory, freed);
  }
}

void gs_object_hold(uint64_t number) {
  struct gs_object *held = gs_object_find(number);
  if (held)
    held->holders++;
}

uint64_t gs_object_add(int ordinal, uint64_t bytes, enum gs_object_kind kind) {
  static uint64_t numbers;
  uint64_t number = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
  gs_table_add(&gs_books()->objects,
               &(struct gs_object){.number = number, .bytes = bytes, .ordinal = ordinal, .kind = kind, .holders = 1});
  return number;
}

bool gs_object_is_bound(uint64_t to, uint64_t memory) {
  struct gs_binding *each = NULL;
  while ((each = gs_table_same(&gs_books()->bindings, to, each)))
    if (each->memory == memory)
      return true;
  return false;
}

/* -1: not known. */
static CUdevice device_of(uint64_t number) {
  const struct gs_object *one = gs_object_find(number);
  const struct gs_binding *may = one && one->kind == GS_IMPORT ? gs_table_find(&gs_books()->bindings, number) : NULL;
  if (may)
    one = gs_object_find(may->memory);
  return one && one->ordinal != GS_NO_DEVICE ? gs_device_of(one->ordinal) : -1;
}

void gs_object_bind(uint64_t to, uint64_t memory, const struct gs_binding *where) {
  struct gs_binding fresh = where ? *where : (struct gs_binding){.device = -1};
  fresh.to = to;
  fresh.memory = memory;
  if (fresh.device < 0)
    fresh.device = device_of(memory);
  gs_object_hold(memory);
  gs_table_add(&gs_books()->bindings, &fresh);
}

void gs_objects_lock(void) { gs_table_lock(&gs_books()->objects); }

void gs_objects_unlock(const uint64_t *freed) {
  gs_table_unlock(&gs_books()->objects);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    gs_give_back(ordinal, freed[ordinal]);
}
