/* The interposer's hash table against a plain array: random additions and removals of few keys, so that places are
 * probed past, freed and filled again. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "interposer/os/guest.h"
#include "interposer/os/table.h"

enum { KEYS = 3000, CHANGES = 300000, SAME = 5 };

struct record {
  uint64_t key, value;
  uint32_t more;
};

static uint32_t lock;
static struct gs_table table;
static bool have[KEYS];
static unsigned count;

static struct record record_of(uint64_t key) { return (struct record){key, 3 * key, (uint32_t)key}; }

static void add(uint64_t key) {
  struct record record = record_of(key);
  assert(gs_table_room(&table, 1));
  gs_table_put(&table, &record);
  have[key] = true;
  count++;
}

static void change(uint64_t key) {
  struct record *found = gs_table_find(&table, key);
  assert((found != NULL) == have[key]);
  if (!found) {
    add(key);
    return;
  }
  assert(found->value == 3 * key && found->more == (uint32_t)key);
  if (rand() % 2) {
    gs_table_remove(&table, found);
    have[key] = false;
    count--;
  }
}

static void walk(void) {
  uint32_t at = 0, seen = 0;
  for (const struct record *record; (record = gs_table_next(&table, &at)); seen++)
    assert(have[record->key]);
  assert(seen == count && table.used == count);
}

static bool odd(const void *record, void *with) { return (void)with, ((const struct record *)record)->key & 1; }

static void same_keys(void) {
  const struct record *record = NULL;
  unsigned seen = 0;
  for (unsigned i = 0; i < SAME; i++) {
    assert(gs_table_room(&table, 1));
    gs_table_put(&table, &(struct record){.key = KEYS, .value = i});
  }
  while ((record = gs_table_same(&table, KEYS, record)))
    seen += 1u << record->value;
  assert(seen == (1u << SAME) - 1);
}

int main(void) {
  gs_table_begin(&table, &lock, sizeof(struct record));
  assert(!gs_table_find(&table, 0));
  srand(1);
  for (unsigned i = 0; i < CHANGES; i++) {
    change((uint64_t)rand() % KEYS);
    if (i % 10000 == 0)
      walk();
  }
  gs_table_drop(&table, odd, NULL);
  for (uint64_t key = 1; key < KEYS; key += 2) {
    count -= have[key];
    have[key] = false;
  }
  walk();
  same_keys();
  printf("%u of %u places\n", table.used, table.size);
  return 0;
}
