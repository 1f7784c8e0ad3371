#include "interposer/residency/fixed.h"

#include "interposer/memory/books/books.h"
#include "interposer/residency/tables.h"

enum { EVERY_NS = 1000000000 };

/* The sum over all records of a table, by kind. */
static void add_up(struct gs_table *table, void (*add)(const void *record, uint64_t *fixed), uint64_t *fixed) {
  const void *each;
  gs_table_lock(table);
  for (uint32_t at = 0; (each = gs_table_next(table, &at));)
    add(each, fixed);
  gs_table_unlock(table);
}

static void pointer(const void *record, uint64_t *fixed) {
  const struct gs_allocation *one = record;
  if (one->kind < GS_FIXED_KINDS)
    fixed[one->kind] += one->bytes;
}

static void array(const void *record, uint64_t *fixed) {
  fixed[GS_FIXED_ARRAYS] += ((const struct gs_allocation *)record)->bytes;
}

static void object(const void *record, uint64_t *fixed) {
  const struct gs_object *one = record;
  fixed[GS_FIXED_MAPPED] += one->ordinal == GS_NO_DEVICE ? 0 : one->bytes;
}

static void pool(const void *record, uint64_t *fixed) {
  fixed[GS_FIXED_POOLS] += ((const struct gs_pool *)record)->bytes;
}

static void movables(uint64_t *fixed) {
  struct gs_movable each;
  for (uint64_t at = 0; gs_movable_next(at, &each); at = each.address + 1)
    if (each.fixed)
      fixed[each.fixed & 1u << GS_FIXED_EXPORTED ? GS_FIXED_EXPORTED : GS_FIXED_SYNCED] += each.bytes;
}

void gs_fixed_publish(struct gs_fixed_told *told, uint64_t now) {
  struct gs_slot *slot = gs_process->slot;
  struct gs_fixed_told fresh = {.slot = slot,
                                .generation = __atomic_load_n(&slot->generation, __ATOMIC_RELAXED),
                                .memory_bytes = __atomic_load_n(&slot->device[0].memory_bytes, __ATOMIC_RELAXED),
                                .movable_bytes = __atomic_load_n(&slot->device[0].movable_bytes, __ATOMIC_RELAXED),
                                .at_ns = now};
  bool same = fresh.slot == told->slot && fresh.generation == told->generation &&
              fresh.memory_bytes == told->memory_bytes && fresh.movable_bytes == told->movable_bytes;
  uint64_t fixed[GS_FIXED_KINDS] = {0};
  if (same || now - told->at_ns < EVERY_NS)
    return;
  *told = fresh;
  add_up(&gs_books()->pointers, pointer, fixed);
  add_up(&gs_books()->arrays, array, fixed);
  add_up(&gs_books()->objects, object, fixed);
  add_up(&gs_books()->pools, pool, fixed);
  movables(fixed);
  for (uint32_t kind = 0; kind < GS_FIXED_KINDS; kind++)
    __atomic_store_n(&slot->fixed_bytes[kind], fixed[kind], __ATOMIC_RELAXED);
}
