#include "interposer/memory/physical/mappings.h"

void gs_mapping_add(const struct gs_mapping *fresh) {
  gs_object_hold(fresh->object);
  gs_table_add(&gs_books()->mappings, fresh);
}

static void remove_mapping(struct gs_mapping *gone, uint64_t *freed) {
  uint64_t of = gone->object;
  gs_table_remove(&gs_books()->mappings, gone);
  gs_object_drop(of, freed);
}

/* Iterates over the mappings of cuMemMap that begin at the address: before is NULL at the start, the result is NULL at
 * the end. */
static struct gs_mapping *next_at(uint64_t address, const struct gs_mapping *before) {
  struct gs_mapping *each = (struct gs_mapping *)(uintptr_t)before;
  while ((each = gs_table_same(&gs_books()->mappings, address, each)) && each->made)
    ;
  return each;
}

uint64_t gs_mapping_base(uint64_t address) {
  CUdeviceptr base = 0;
  gs_objects_lock();
  bool begins = next_at(address, NULL) != NULL;
  gs_table_unlock(&gs_books()->objects);
  if (begins || gs_real.cuMemGetAddressRange_v2(&base, NULL, address) != CUDA_SUCCESS)
    base = address;
  return base;
}

/* The first mapping of cuMemMap that overlaps the range. If one begins at `from`, as in most programs, no scan is
 * needed. */
static struct gs_mapping *first_in(uint64_t from, uint64_t bytes) {
  struct gs_mapping *first = next_at(from, NULL), *each;
  for (uint32_t at = 0; !first && (each = gs_table_next(&gs_books()->mappings, &at));)
    if (each->made == 0 && (each->address - from < bytes || from - each->address < each->bytes))
      first = each;
  return first;
}

uint64_t gs_mapping_object(uint64_t address, uint64_t base) {
  const struct gs_mapping *first = next_at(base, NULL), *each = NULL;
  if (!first || address - first->address >= first->bytes)
    first = first_in(address, 1);
  if (first && !next_at(first->address, first)) {
    gs_object_hold(first->object);
    return first->object;
  }
  uint64_t all = gs_object_add(GS_NO_DEVICE, 0, GS_IMPORT);
  while (first && (each = next_at(first->address, each)))
    if (gs_object_find(each->object) && !gs_object_is_bound(all, each->object))
      gs_object_bind(all, each->object, NULL);
  return all;
}

void gs_range_unmapped(uint64_t from, uint64_t bytes) {
  uint64_t freed[GS_MAX_DEVICES] = {0}, at = from;
  struct gs_mapping *gone;
  gs_objects_lock();
  while (at - from < bytes && (gone = first_in(at, bytes - (at - from)))) {
    uint64_t address = gone->address, length = gone->bytes;
    while ((gone = next_at(address, NULL)))
      remove_mapping(gone, freed);
    at = address == at ? at + length : at;
  }
  gs_objects_unlock(freed);
}

/* ---- buffers and arrays of external memory ----------------------------------------------------------------------- */

void gs_buffer_gone(uint64_t address, uint64_t made) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_mapping *each = NULL;
  gs_objects_lock();
  while ((each = gs_table_same(&gs_books()->mappings, address, each)))
    if (each->made == made) {
      remove_mapping(each, freed);
      each = NULL; /* others may have moved */
    }
  gs_objects_unlock(freed);
}

void gs_buffers_context_gone(CUcontext context) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_mapping *each;
  gs_objects_lock();
  for (uint32_t at = 0; (each = gs_table_next(&gs_books()->mappings, &at));)
    if (each->context && each->context == context) {
      remove_mapping(each, freed);
      at = 0; /* an import that ended may have taken others along */
    }
  gs_objects_unlock(freed);
}
