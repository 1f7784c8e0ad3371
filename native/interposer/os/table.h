/* Hash tables of records of one size, in memory that a fork's child sees empty. Each is under a lock, which several may
 * share that change together. */
#ifndef GPUSHARE_TABLE_H
#define GPUSHARE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* All zero is a table that stays empty. To be in memory of gs_private_map. */
struct gs_table {
  uint32_t *lock;
  uint32_t record_bytes; /* of a record, which begins with its key, a uint64_t */
  uint32_t size, used;   /* places, a power of two or 0; those taken */
  unsigned char *taken;  /* a byte for each place, behind the records */
  unsigned char *records;
};

/* Once, before it is used. */
static inline void gs_table_begin(struct gs_table *table, uint32_t *lock, uint32_t record_bytes) {
  table->lock = lock;
  table->record_bytes = record_bytes;
}

/* Makes sure that `more` records can be added: call before the driver is asked, so that nothing it gave goes
 * unrecorded. False: there is no memory. Takes the lock itself. */
bool gs_table_room(struct gs_table *table, unsigned more);

void gs_table_lock(struct gs_table *table);
void gs_table_unlock(struct gs_table *table);

/* ---- with the lock held ---- */

/* NULL where there is none. Good until the next add or remove. */
void *gs_table_find(const struct gs_table *table, uint64_t key);
/* A copy; of two with the same key either is found. */
void gs_table_add(struct gs_table *table, const void *record);
void gs_table_remove(struct gs_table *table, void *record);
/* The record after *at (start with 0), or NULL. After a remove others may have moved before *at. */
void *gs_table_next(const struct gs_table *table, uint32_t *at);

/* ---- which take the lock themselves ---- */

void gs_table_put(struct gs_table *table, const void *record);
/* Copies the record to out; false if there is none. */
bool gs_table_copy(struct gs_table *table, uint64_t key, void *out);
/* The same, and removes it. */
bool gs_table_take(struct gs_table *table, uint64_t key, void *out);
/* Replaces the record of the same key; false if there is none. */
bool gs_table_replace(struct gs_table *table, const void *record);
/* Removes the records for which `goes` gives true. */
void gs_table_drop(struct gs_table *table, bool (*goes)(const void *record, void *with), void *with);

#endif
