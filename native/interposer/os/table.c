#include "interposer/os/table.h"

#include <string.h>
#include <sys/mman.h>

#include "interposer/os/guest.h"

enum { FIRST_SIZE = 64 /* places, a power of two; doubled when half full, so that runs of full places stay short */ };

static unsigned char *record_at(const struct gs_table *table, uint32_t index) {
  return table->records + (size_t)index * table->record_bytes;
}

static uint64_t key_of(const void *record) {
  uint64_t key;
  memcpy(&key, record, sizeof key);
  return key;
}

/* Keys are addresses at even distances: a product alone would put them in adjacent places, and searches would have to
 * walk along such runs. The constants are those of MurmurHash3's finalizer. */
static uint32_t home(const struct gs_table *table, uint64_t key) {
  key = (key ^ key >> 33) * 0xff51afd7ed558ccdu;
  key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53u;
  return (uint32_t)(key >> 32) & (table->size - 1);
}

static uint32_t after(const struct gs_table *table, uint32_t place) { return (place + 1) & (table->size - 1); }

static uint64_t key_at(const struct gs_table *table, uint32_t place) {
  return key_of(record_at(table, table->places[place] - 1));
}

void gs_table_lock(struct gs_table *table) {
  if (table->lock)
    gs_lock(table->lock);
}

void gs_table_unlock(struct gs_table *table) {
  if (table->lock)
    gs_unlock(table->lock);
}

/* The place of the record with this index and key. */
static uint32_t place_of(const struct gs_table *table, uint32_t index, uint64_t key) {
  uint32_t place = home(table, key);
  while (table->places[place] != index + 1)
    place = after(table, place);
  return place;
}

static void set_place(struct gs_table *table, uint32_t index) {
  uint32_t place = home(table, key_of(record_at(table, index)));
  while (table->places[place])
    place = after(table, place);
  table->places[place] = index + 1;
}

static size_t records_bytes(const struct gs_table *table) {
  return ((size_t)table->size * table->record_bytes + sizeof *table->places - 1) & ~(sizeof *table->places - 1);
}

static size_t mapped_bytes(const struct gs_table *table) {
  return records_bytes(table) + (size_t)table->size * sizeof *table->places;
}

static bool grow(struct gs_table *table) {
  struct gs_table bigger = {.lock = table->lock, .record_bytes = table->record_bytes, .used = table->used};
  bigger.size = table->size ? table->size * 2 : FIRST_SIZE;
  bigger.records = table->record_bytes ? gs_private_map(mapped_bytes(&bigger)) : NULL;
  if (!bigger.records)
    return false;
  bigger.places = (uint32_t *)(void *)(bigger.records + records_bytes(&bigger));
  if (table->records)
    memcpy(bigger.records, table->records, (size_t)table->used * table->record_bytes);
  for (uint32_t index = 0; index < table->used; index++)
    set_place(&bigger, index);
  if (table->records)
    munmap(table->records, mapped_bytes(table));
  table->records = bigger.records; /* field by field: threads that wait for the lock read table->lock */
  table->places = bigger.places;
  table->size = bigger.size;
  return true;
}

bool gs_table_extend(struct gs_table *table, unsigned more) {
  /* few threads are between gs_table_room and gs_table_add: the other half has places for them */
  while ((table->used + more) * 2ull >= table->size)
    if (!grow(table))
      return false;
  return true;
}

bool gs_table_room(struct gs_table *table, unsigned more) {
  gs_table_lock(table);
  bool room = gs_table_extend(table, more);
  gs_table_unlock(table);
  return room;
}

static void *find_from(const struct gs_table *table, uint64_t key, uint32_t place) {
  for (; table->places[place]; place = after(table, place))
    if (key_at(table, place) == key)
      return record_at(table, table->places[place] - 1);
  return NULL;
}

static uint32_t index_of(const struct gs_table *table, const void *record) {
  return (uint32_t)((size_t)((const unsigned char *)record - table->records) / table->record_bytes);
}

void *gs_table_find(const struct gs_table *table, uint64_t key) {
  return table->size ? find_from(table, key, home(table, key)) : NULL;
}

void *gs_table_same(const struct gs_table *table, uint64_t key, const void *before) {
  return before ? find_from(table, key, after(table, place_of(table, index_of(table, before), key)))
                : gs_table_find(table, key);
}

void gs_table_add(struct gs_table *table, const void *record) {
  if (table->used + 1 >= table->size && !grow(table))
    return;
  memcpy(record_at(table, table->used), record, table->record_bytes);
  set_place(table, table->used++);
}

/* Places that were probed past the hole move back into it, so that a search may stop at the first free place. */
static void free_place(struct gs_table *table, uint32_t hole) {
  uint32_t mask = table->size - 1;
  for (uint32_t place = after(table, hole); table->places[place]; place = after(table, place)) {
    uint32_t wants = home(table, key_at(table, place));
    if (((place - wants) & mask) >= ((place - hole) & mask)) {
      table->places[hole] = table->places[place];
      hole = place;
    }
  }
  table->places[hole] = 0;
}

void gs_table_remove(struct gs_table *table, void *record) {
  uint32_t index = index_of(table, record), last = table->used - 1;
  free_place(table, place_of(table, index, key_of(record)));
  if (index != last) {
    table->places[place_of(table, last, key_of(record_at(table, last)))] = index + 1;
    memcpy(record, record_at(table, last), table->record_bytes);
  }
  table->used = last;
}

void *gs_table_next(const struct gs_table *table, uint32_t *at) {
  return *at < table->used ? record_at(table, (*at)++) : NULL;
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
  for (uint32_t index = 0; index < table->used;)
    if (goes(record_at(table, index), with))
      gs_table_remove(table, record_at(table, index)); /* another has moved here: look again */
    else
      index++;
  gs_table_unlock(table);
}
