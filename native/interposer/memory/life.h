/* The life (books.h) of what is in a table of the books by a key alone: allocations, arrays, programs, graphs. */
#ifndef GPUSHARE_MEMORY_LIFE_H
#define GPUSHARE_MEMORY_LIFE_H

#include "interposer/memory/books.h"

/* A number for a call that ends something. */
uint64_t gs_next_call(void);

/* ---- a call that makes something --------------------------------------------------------------------------------- */

struct gs_maker {
  struct gs_making *making;
  CUcontext context; /* with which it ends; NULL: none */
  uint64_t number;   /* of the calls before it */
  uint32_t begun, contexts_ended;
};

/* Adds the record of what was made, which begins with a struct gs_living. */
void gs_life_put(const struct gs_maker *maker, struct gs_table *table, void *record);

/* To be called before the driver; then gs_maker_end, when the books have what the driver made. */
static inline void gs_maker_begin(struct gs_maker *maker, struct gs_making *making, CUcontext context) {
  *maker = (struct gs_maker){.making = making, .context = context};
  maker->number = __atomic_load_n(&gs_books()->calls, __ATOMIC_SEQ_CST);
  maker->contexts_ended = __atomic_load_n(&gs_books()->contexts_ended, __ATOMIC_SEQ_CST);
  maker->begun = gs_making_begin(making);
}
/* The context has ended during the call. */
bool gs_maker_late(const struct gs_maker *maker);
/* What was made in a context that has ended since is gone: removes what came into the books after that. */
void gs_maker_too_late(const struct gs_maker *maker);
static inline void gs_maker_end(const struct gs_maker *maker) {
  gs_making_end(maker->making, maker->begun);
  if (__builtin_expect(__atomic_load_n(&gs_books()->contexts_ended, __ATOMIC_SEQ_CST) != maker->contexts_ended, 0))
    gs_maker_too_late(maker);
}

/* A context has ended; called with gone_lock held, before its records are removed. */
void gs_life_context_ended(CUcontext context);

/* ---- a call that ends something ---------------------------------------------------------------------------------- */

/* What has a key is ended by one call at a time: another one with the same key, which only a guess can be, waits before it
 * asks the driver. So a call that succeeded has ended what was there when it began, and everything that came into the books
 * since lives; or there was nothing, and it has ended what another call was just making.
 *
 * A handle may be reused by another context before a call that ended it returns, and when contexts end meanwhile nobody
 * knows whose end it was: then what lives is charged on, until it ends. */

/* A kind of object. */
struct gs_family {
  struct gs_table *table;
  struct gs_making *making;
  /* Not all that the driver ends by such a key is in the books: asks it whether there is something of that key. NULL: all
   * is. */
  bool (*is_alive)(uint64_t key);
};

/* A call on its way. */
struct gs_leaving {
  uint64_t key;
  uint64_t call; /* 0: it ends nothing */
  uint32_t contexts_ended;
  bool known; /* there was something when it began */
};

/* With the table's lock held: the newest record that is live, or else one that is leaving; NULL: none. */
void *gs_life_find(const struct gs_table *table, uint64_t key);
/* Copies that record; false: none. */
bool gs_life_copy(struct gs_table *table, uint64_t key, void *record);

/* To be called before the driver: what has the key begins to leave. Returns leaving->known: there is something, and it is
 * copied. */
bool gs_life_leave(const struct gs_family *family, struct gs_leaving *leaving, uint64_t key, void *record);
/* The driver's call has returned. ended: it succeeded, and has ended something of this kind: removes the record of that,
 * and passes it to `gone`. */
void gs_life_left(const struct gs_family *family, const struct gs_leaving *leaving, bool ended,
                  void (*gone)(const void *record, void *with), void *with);

#endif
