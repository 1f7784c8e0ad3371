/* Hash tables of fixed-size records, in memory that is empty in a forked child. A lock protects each table; tables that
 * change together share one lock. */
#ifndef GPUSHARE_TABLE_H
#define GPUSHARE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* The records lie side by side, so that the cost of a walk depends on how many there are now, not on how many there
 * were. A zeroed table is valid and stays empty. The struct has to be in memory of gs_private_map. */
struct gs_table {
  uint32_t *lock;
  uint32_t record_bytes; /* size of a record, which begins with its key, a uint64_t */
  uint32_t size, used;   /* number of places, a power of two or 0; number of records */
  uint32_t *places;      /* hashed by key: 0 is free, else 1 + the record's index; after the records */
  unsigned char *records;
};

/* To be called once, before the table is used. */
static inline void gs_table_begin(struct gs_table *table, uint32_t *lock, uint32_t record_bytes) {
  table->lock = lock;
  table->record_bytes = record_bytes;
}

/* Makes room for `more` records: call it before the driver, so that nothing the driver returns goes unrecorded. False:
 * out of memory. Takes the lock itself. */
bool gs_table_room(struct gs_table *table, unsigned more);

void gs_table_lock(struct gs_table *table);
void gs_table_unlock(struct gs_table *table);

/* ---- with the lock held ---- */

/* gs_table_room without taking the lock. */
bool gs_table_extend(struct gs_table *table, unsigned more);
/* NULL if there is no such record. Valid until the next add or remove. */
void *gs_table_find(const struct gs_table *table, uint64_t key);
/* The record of that key after `before` (NULL: the first), or NULL. */
void *gs_table_same(const struct gs_table *table, uint64_t key, const void *before);
/* Adds a copy of the record. If two records have the same key, a search finds either. */
void gs_table_add(struct gs_table *table, const void *record);
void gs_table_remove(struct gs_table *table, void *record);
/* Iterates: returns the record after *at (start with 0), or NULL. A removal moves the last record into the place of the
 * one removed: to go on after removing what was just returned, decrement *at. */
void *gs_table_next(const struct gs_table *table, uint32_t *at);

/* ---- which take the lock themselves ---- */

void gs_table_put(struct gs_table *table, const void *record);
/* Copies the record to out; false if there is none. */
bool gs_table_copy(struct gs_table *table, uint64_t key, void *out);
/* Copies the record to out and removes it; false if there is none. */
bool gs_table_take(struct gs_table *table, uint64_t key, void *out);
/* Replaces the record of the same key; false if there is none. */
bool gs_table_replace(struct gs_table *table, const void *record);
/* Removes the records for which `goes` returns true. */
void gs_table_drop(struct gs_table *table, bool (*goes)(const void *record, void *with), void *with);

#endif
