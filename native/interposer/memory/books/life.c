#include "interposer/memory/books/life.h"

#include <string.h>

#include "interposer/memory/books/charge.h"

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

/* Whether another context with the same handle exists. */
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

void gs_life_put(const struct gs_maker *maker, struct gs_table *table, void *record) {
  struct gs_living *fresh = record;
  gs_table_lock(table);
  fresh->begun = maker->number;
  fresh->made = gs_next_call();
  gs_table_add(table, record);
  gs_table_unlock(table);
}

/* ---- with the table's lock held ---------------------------------------------------------------------------------- */

static bool is_in(const struct gs_living *one, enum gs_moment moment, uint64_t call) {
  return one->life.moment == moment && (call == 0 || one->life.call == call);
}

/* A record in this moment, of this call; call 0: of any. */
static struct gs_living *in_moment(const struct gs_table *table, uint64_t key, enum gs_moment moment, uint64_t call) {
  struct gs_living *each = NULL;
  while ((each = gs_table_same(table, key, each)) && !is_in(each, moment, call))
    ;
  return each;
}

static bool turn_all(const struct gs_table *table, uint64_t key, struct gs_life from, struct gs_life to) {
  struct gs_living *each = NULL;
  bool any = false;
  while ((each = gs_table_same(table, key, each)))
    if (is_in(each, from.moment, from.call)) {
      each->life = to;
      any = true;
    }
  return any;
}

void *gs_life_find(const struct gs_table *table, uint64_t key) {
  struct gs_living *each = NULL, *newest = NULL;
  while ((each = gs_table_same(table, key, each)))
    if (each->life.moment == GS_LIVE && (!newest || each->made > newest->made))
      newest = each;
  return newest ? newest : in_moment(table, key, GS_LEAVING, 0);
}

/* Of several live records at most one object lives: a record added before the call that made another one began is gone.
 * Returns the oldest record if it is gone, else NULL; *count: number of live records. */
static struct gs_living *outlived(const struct gs_table *table, uint64_t key, unsigned *count) {
  struct gs_living *each = NULL, *oldest = NULL;
  uint64_t last_begun = 0;
  *count = 0;
  while ((each = gs_table_same(table, key, each)))
    if (each->life.moment == GS_LIVE) {
      ++*count;
      oldest = !oldest || each->made < oldest->made ? each : oldest;
      last_begun = each->begun > last_begun ? each->begun : last_begun;
    }
  return oldest && oldest->made <= last_begun ? oldest : NULL;
}

/* ---- what leaves ------------------------------------------------------------------------------------------------- */

bool gs_life_copy(struct gs_table *table, uint64_t key, void *record) {
  gs_table_lock(table);
  const void *found = gs_life_find(table, key);
  if (found)
    memcpy(record, found, table->record_bytes);
  gs_table_unlock(table);
  return found != NULL;
}

/* Storage for any record that gs_life_left may remove. */
union any {
  struct gs_living living;
  struct gs_allocation allocation;
  struct gs_module module;
  struct gs_library library;
};

static void take(struct gs_table *table, struct gs_living *one, union any *record) {
  memcpy(record, one, table->record_bytes);
  gs_table_remove(table, one);
}

static void add_ending(struct gs_table *table, uint64_t key, uint64_t call) {
  union any ending;
  memset(&ending, 0, sizeof ending);
  ending.living = (struct gs_living){.key = key, .life = {call, GS_ENDING}};
  gs_table_add(table, &ending);
}

static void remove_ending(struct gs_table *table, uint64_t key, uint64_t call) {
  struct gs_living *ending = in_moment(table, key, GS_ENDING, call);
  if (ending)
    gs_table_remove(table, ending);
}

static uint32_t contexts_ended(void) { return __atomic_load_n(&gs_books()->contexts_ended, __ATOMIC_SEQ_CST); }

struct beginning {
  const struct gs_family *family;
  struct gs_leaving *leaving;
  void *record;
};

/* Begins the end, unless another call with the key is in progress. */
static bool begin(void *with) {
  const struct beginning *beginning = with;
  struct gs_leaving *leaving = beginning->leaving;
  struct gs_table *table = beginning->family->table;
  uint64_t key = leaving->key;
  gs_table_lock(table);
  bool busy = in_moment(table, key, GS_LEAVING, 0) || in_moment(table, key, GS_ENDING, 0);
  if (!busy) {
    leaving->known = turn_all(table, key, (struct gs_life){0, GS_LIVE}, (struct gs_life){leaving->call, GS_LEAVING});
    if (leaving->known)
      memcpy(beginning->record, in_moment(table, key, GS_LEAVING, 0), table->record_bytes);
    else if (gs_table_extend(table, 1))
      add_ending(table, key, leaving->call);
  }
  gs_table_unlock(table);
  return !busy;
}

/* The call in progress will never return, because its thread was cancelled: the object that it was to end counts as
 * live. */
static void give_up(struct gs_table *table, uint64_t key) {
  gs_table_lock(table);
  turn_all(table, key, (struct gs_life){0, GS_LEAVING}, (struct gs_life){0, GS_LIVE});
  remove_ending(table, key, 0);
  gs_table_unlock(table);
}

bool gs_life_leave(const struct gs_family *family, struct gs_leaving *leaving, uint64_t key, void *record) {
  struct beginning beginning = {family, leaving, record};
  *leaving = (struct gs_leaving){.key = key};
  if (!key)
    return false;
  leaving->call = gs_next_call();
  leaving->contexts_ended = contexts_ended();
  while (!gs_making_await(family->making, begin, &beginning))
    give_up(family->table, key);
  return leaving->known;
}

static bool never(void *with) {
  (void)with;
  return false;
}

/* Whether the only live record is that of the object that the call has ended. Called without the lock. */
static bool is_ours(const struct gs_family *family, const struct gs_leaving *leaving) {
  if (family->is_alive)
    return !family->is_alive(leaving->key);
  return !leaving->known && contexts_ended() == leaving->contexts_ended;
}

/* No record was leaving: the call has ended what another call was making, or what is not in the books. */
static bool take_other(const struct gs_family *family, const struct gs_leaving *leaving, union any *record) {
  struct gs_table *table = family->table;
  struct gs_living *one;
  unsigned count;
  gs_table_lock(table);
  uint64_t before = __atomic_load_n(&gs_books()->calls, __ATOMIC_SEQ_CST);
  bool any = in_moment(table, leaving->key, GS_LIVE, 0);
  gs_table_unlock(table);
  bool ours = any && is_ours(family, leaving);
  gs_table_lock(table);
  one = outlived(table, leaving->key, &count);
  if (!one && ours && (count == 1 || family->is_alive))
    one = in_moment(table, leaving->key, GS_LIVE, 0);
  bool taken = one && one->made <= before;
  if (taken)
    take(table, one, record);
  gs_table_unlock(table);
  return taken;
}

static void end_other(const struct gs_family *family, const struct gs_leaving *leaving,
                      void (*gone)(const void *record, void *with), void *with) {
  union any record;
  bool more;
  gs_making_wait(family->making, never, NULL);
  do {
    more = take_other(family, leaving, &record);
    if (more)
      gone(&record, with);
  } while (more && family->is_alive);
}

void gs_life_left(const struct gs_family *family, const struct gs_leaving *leaving, bool ended,
                  void (*gone)(const void *record, void *with), void *with) {
  struct gs_table *table = family->table;
  const struct gs_life mine = {leaving->call, GS_LEAVING};
  struct gs_living *one;
  union any record;
  bool any = false;
  if (!leaving->call)
    return;
  gs_table_lock(table);
  if (!ended)
    turn_all(table, leaving->key, mine, (struct gs_life){0, GS_LIVE});
  while ((one = in_moment(table, leaving->key, GS_LEAVING, leaving->call))) {
    take(table, one, &record);
    gs_table_unlock(table);
    gone(&record, with);
    any = true;
    gs_table_lock(table);
  }
  gs_table_unlock(table);
  if (ended && !any)
    end_other(family, leaving, gone, with);
  if (!any) {
    gs_table_lock(table);
    remove_ending(table, leaving->key, leaving->call);
    gs_table_unlock(table);
  }
  if (__builtin_expect(__atomic_load_n(&family->making->waiters, __ATOMIC_SEQ_CST) != 0, 0))
    gs_making_wake(family->making);
}
