#include "interposer/os/table.h"

#include <string.h>
#include <sys/mman.h>

#include "interposer/os/guest.h"

enum { FIRST_SIZE = 64 /* places, a power of two; doubled at three quarters */ };

static void *record_at(const struct gs_table *table, uint32_t at) {
  return table->records + (size_t)at * table->record_bytes;
}

static uint64_t key_at(const struct gs_table *table, uint32_t at) {
  uint64_t key;
  memcpy(&key, record_at(table, at), sizeof key);
  return key;
}

static uint32_t home(const struct gs_table *table, uint64_t key) {
  return (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & (table->size - 1); /* 2^64 over the golden ratio */
}

void gs_table_lock(struct gs_table *table) {
  if (table->lock)
    gs_lock(table->lock);
}

void gs_table_unlock(struct gs_table *table) {
  if (table->lock)
    gs_unlock(table->lock);
}

static void insert(struct gs_table *table, const void *record) {
  uint64_t key;
  memcpy(&key, record, sizeof key);
  uint32_t at = home(table, key);
  while (table->taken[at])
    at = (at + 1) & (table->size - 1);
  memcpy(record_at(table, at), record, table->record_bytes);
  table->taken[at] = 1;
  table->used++;
}

static size_t mapped_bytes(const struct gs_table *table) { return (size_t)table->size * (table->record_bytes + 1u); }

static bool grow(struct gs_table *table) {
  struct gs_table bigger = {.lock = table->lock, .record_bytes = table->record_bytes};
  bigger.size = table->size ? table->size * 2 : FIRST_SIZE;
  bigger.records = table->record_bytes ? gs_private_map(mapped_bytes(&bigger)) : NULL;
  if (!bigger.records)
    return false;
  bigger.taken = bigger.records + (size_t)bigger.size * bigger.record_bytes;
  for (uint32_t at = 0; at < table->size; at++)
    if (table->taken[at])
      insert(&bigger, record_at(table, at));
  if (table->records)
    munmap(table->records, mapped_bytes(table));
  table->records = bigger.records; /* field by field: threads that wait for the lock read where it is */
  table->taken = bigger.taken;
  table->size = bigger.size;
  return true;
}

bool gs_table_room(struct gs_table *table, unsigned more) {
  bool room = true;
  gs_table_lock(table);
  /* few threads are between room and add: the last quarter is for them */
  while (room && (table->used + more) * 4ull >= table->size * 3ull)
    room = grow(table);
  gs_table_unlock(table);
  return room;
}

void *gs_table_find(const struct gs_table *table, uint64_t key) {
  if (!table->size)
    return NULL;
  for (uint32_t at = home(table, key); table->taken[at]; at = (at + 1) & (table->size - 1))
    if (key_at(table, at) == key)
      return record_at(table, at);
  return NULL;
}

void gs_table_add(struct gs_table *table, const void *record) {
  if (table->used + 1 < table->size || grow(table))
    insert(table, record);
}

/* Records that probed past the hole move back into it, so that a search may stop at the first free place. */
void gs_table_remove(struct gs_table *table, void *record) {
  uint32_t mask = table->size - 1, at;
  uint32_t hole = (uint32_t)((size_t)((unsigned char *)record - table->records) / table->record_bytes);
  table->used--;
  for (at = (hole + 1) & mask; table->taken[at]; at = (at + 1) & mask) {
    uint32_t wants = home(table, key_at(table, at));
    if (((at - wants) & mask) >= ((at - hole) & mask)) {
      memcpy(record_at(table, hole), record_at(table, at), table->record_bytes);
      hole = at;
    }
  }
  table->taken[hole] = 0;
}

void *gs_table_next(const struct gs_table *table, uint32_t *at) {
  while (*at < table->size)
    if (table->taken[(*at)++])
      return record_at(table, *at - 1);
  return NULL;
}

void gs_table_put(struct gs_table *table, const void *record) {
  gs_table_lock(table);
  gs_table_add(table, record);
  gs_table_unlock(table);
}

bool gs_table_copy(struct gs_table *table, uint64_t key, void *out) {
  gs_table_lock(table);
  const void *found = gs_table_find(table, key);
  if (found)
    memcpy(out, found, table->record_bytes);
  gs_table_unlock(table);
  return found != NULL;
}

bool gs_table_take(struct gs_table *table, uint64_t key, void *out) {
  gs_table_lock(table);
  void *found = gs_table_find(table, key);
  if (found) {
    memcpy(out, found, table->record_bytes);
    gs_table_remove(table, found);
  }
  gs_table_unlock(table);
  return found != NULL;
}

bool gs_table_replace(struct gs_table *table, const void *record) {
  uint64_t key;
  memcpy(&key, record, sizeof key);
  gs_table_lock(table);
  void *found = gs_table_find(table, key);
  if (found)
    memcpy(found, record, table->record_bytes);
  gs_table_unlock(table);
  return found != NULL;
}

void gs_table_drop(struct gs_table *table, bool (*goes)(const void *record, void *with), void *with) {
  gs_table_lock(table);
  for (uint32_t at = 0; at < table->size;)
    if (table->taken[at] && goes(record_at(table, at), with))
      gs_table_remove(table, record_at(table, at)); /* another may have moved here: look again */
    else
      at++;
  gs_table_unlock(table);
}
