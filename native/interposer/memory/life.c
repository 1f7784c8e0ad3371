#include "interposer/memory/life.h"

#include <string.h>

#include "interposer/memory/charge.h"

uint64_t gs_next_call(void) { return __atomic_add_fetch(&gs_books()->calls, 1, __ATOMIC_RELAXED); }

/* ---- contexts that end ------------------------------------------------------------------------------------------- */

void gs_life_context_ended(CUcontext context) {
  struct gs_books *books = gs_books();
  __atomic_store_n(&books->ended[books->contexts_ended % GS_ENDED], context, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&books->contexts_ended, 1, __ATOMIC_SEQ_CST);
}

bool gs_maker_late(const struct gs_maker *maker) {
  struct gs_books *books = gs_books();
  uint32_t now = __atomic_load_n(&books->contexts_ended, __ATOMIC_SEQ_CST);
  for (uint32_t i = maker->contexts_ended; i != now && maker->context; i++)
    if (now - i <= GS_ENDED && __atomic_load_n(&books->ended[i % GS_ENDED], __ATOMIC_SEQ_CST) == maker->context)
      return true;
  return false;
}

/* Another context with the same handle. */
static bool lives_again(CUcontext context) {
  struct gs_created known;
  for (uint32_t i = 0; i < gs_process->ndevices; i++)
    if (__atomic_load_n(&gs_process->primary[i], __ATOMIC_SEQ_CST) == context)
      return true;
  return gs_table_copy(&gs_books()->contexts, (uintptr_t)context, &known);
}

void gs_maker_too_late(const struct gs_maker *maker) {
  uint64_t bytes[GS_MAX_DEVICES] = {0};
  if (!gs_maker_late(maker))
    return;
  gs_lock(&gs_process->gone_lock);
  if (!lives_again(maker->context))
    gs_books_drop_context(maker->context, bytes);
  gs_unlock(&gs_process->gone_lock);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    gs_give_back(ordinal, bytes[ordinal]);
}

/* ---- what leaves ------------------------------------------------------------------------------------------------- */

/* Of those that leave, the one that began first. */
static struct gs_living *in_moment(const struct gs_table *table, uint64_t key, enum gs_moment moment, uint64_t call) {
  struct gs_living *each = NULL, *oldest = NULL;
  while ((each = gs_table_same(table, key, each)))
    if (each->life.moment == moment && (call == 0 || each->life.call == call) &&
        (!oldest || each->life.call < oldest->life.call))
      oldest = each;
  return oldest;
}

void *gs_life_find(const struct gs_table *table, uint64_t key) {
  struct gs_living *live = in_moment(table, key, GS_LIVE, 0);
  return live ? live : in_moment(table, key, GS_LEAVING, 0);
}

bool gs_life_copy(struct gs_table *table, uint64_t key, void *record) {
  gs_table_lock(table);
  const void *found = gs_life_find(table, key);
  if (found)
    memcpy(record, found, table->record_bytes);
  gs_table_unlock(table);
  return found != NULL;
}

bool gs_life_leave(struct gs_table *table, uint64_t key, void *record) {
  gs_table_lock(table);
  struct gs_living *live = in_moment(table, key, GS_LIVE, 0);
  if (live) {
    live->life = (struct gs_life){.moment = GS_LEAVING, .call = gs_next_call()};
    memcpy(record, live, table->record_bytes);
  }
  gs_table_unlock(table);
  return live != NULL;
}

struct sought {
  struct gs_table *table;
  uint64_t key;
};

static bool is_known(void *with) {
  const struct sought *sought = with;
  gs_table_lock(sought->table);
  bool known = gs_life_find(sought->table, sought->key) != NULL;
  gs_table_unlock(sought->table);
  return known;
}

bool gs_life_left(struct gs_table *table, struct gs_making *making, bool left, bool ended, void *record, uint64_t key,
                  bool (*is_alive)(uint64_t key)) {
  const struct gs_living *copy = record;
  gs_table_lock(table);
  struct gs_living *found = left ? in_moment(table, key, GS_LEAVING, copy->life.call) : NULL;
  if (!ended) {
    if (found)
      found->life = (struct gs_life){.moment = GS_LIVE};
    gs_table_unlock(table);
    return false;
  }
  if (!found) {
    gs_table_unlock(table);
    struct sought sought = {table, key};
    gs_making_wait(making, GS_NOT_MAKING, is_known, &sought);
    bool other = is_alive && is_known(&sought) && is_alive(key);
    gs_table_lock(table);
    found = other ? NULL : in_moment(table, key, GS_LEAVING, 0); /* the oldest first: books.h */
    if (!found && !other)
      found = in_moment(table, key, GS_LIVE, 0);
  }
  if (found) {
    memcpy(record, found, table->record_bytes);
    gs_table_remove(table, found);
  }
  gs_table_unlock(table);
  return found != NULL;
}
