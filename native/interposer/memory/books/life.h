/* The life (books.h) of records that are identified by a key alone: allocations, arrays, programs, graphs. */
#ifndef GPUSHARE_MEMORY_LIFE_H
#define GPUSHARE_MEMORY_LIFE_H

#include "interposer/memory/books/books.h"

/* Returns the next call number. */
uint64_t gs_next_call(void);

/* ---- a call that makes something --------------------------------------------------------------------------------- */

struct gs_maker {
  struct gs_making *making;
  CUcontext context; /* with which it ends; NULL: none */
  uint64_t number;   /* of the last call before it */
  uint32_t begun, contexts_ended;
};

/* Adds the record of the object that was made; the record begins with a struct gs_living. */
void gs_life_put(const struct gs_maker *maker, struct gs_table *table, void *record);

/* To be called before the driver; gs_maker_end follows when the books have what the driver made. */
static inline void gs_maker_begin(struct gs_maker *maker, struct gs_making *making, CUcontext context) {
  *maker = (struct gs_maker){.making = making, .context = context};
  maker->number = __atomic_load_n(&gs_books()->calls, __ATOMIC_SEQ_CST);
  maker->contexts_ended = __atomic_load_n(&gs_books()->contexts_ended, __ATOMIC_SEQ_CST);
  maker->begun = gs_making_begin(making);
}
/* Whether maker->context has ended during the call. */
bool gs_maker_late(const struct gs_maker *maker);
/* If maker->context has ended and no new context has its handle, removes what was added to the books after that end. */
void gs_maker_too_late(const struct gs_maker *maker);
static inline void gs_maker_end(const struct gs_maker *maker) {
  gs_making_end(maker->making, maker->begun);
  if (__builtin_expect(__atomic_load_n(&gs_books()->contexts_ended, __ATOMIC_SEQ_CST) != maker->contexts_ended, 0))
    gs_maker_too_late(maker);
}

/* Records that a context has ended. Called with gone_lock held, before the context's records are removed. */
void gs_life_context_ended(CUcontext context);

/* ---- a call that ends something ---------------------------------------------------------------------------------- */

/* Only one call at a time ends the object with a given key: a second call with the same key, which can only be a guess,
 * waits before it reaches the driver. A successful call has therefore ended what was there when it began, and
 * everything added to the books since then lives; or, if nothing was there, it has ended what another call was just
 * making.
 *
 * A handle may be reused in another context before the call that ended it returns. If contexts end meanwhile, it is
 * unknown whose object the call ended; then the live record stays charged until it ends. */

/* A kind of object. */
struct gs_family {
  struct gs_table *table;
  struct gs_making *making;
  /* Asks the driver whether an object with the key exists. NULL: the books have every object of this kind. */
  bool (*is_alive)(uint64_t key);
};

/* A call in progress that ends something. */
struct gs_leaving {
  uint64_t key;
  uint64_t call; /* 0: it ends nothing */
  uint32_t contexts_ended;
  bool known; /* the books had a record with the key when it began */
};

/* With the table's lock held: the newest record that is live, or else one that is leaving; NULL: none. */
void *gs_life_find(const struct gs_table *table, uint64_t key);
/* Copies that record; false: none. */
bool gs_life_copy(struct gs_table *table, uint64_t key, void *record);

/* To be called before the driver: marks the live records with the key as leaving. Returns leaving->known: there is one,
 * and it is copied to record. */
bool gs_life_leave(const struct gs_family *family, struct gs_leaving *leaving, uint64_t key, void *record);
/* The driver's call has returned. ended: it succeeded and has ended an object of this kind, whose record is removed and
 * passed to `gone`. */
void gs_life_left(const struct gs_family *family, const struct gs_leaving *leaving, bool ended,
                  void (*gone)(const void *record, void *with), void *with);

#endif
