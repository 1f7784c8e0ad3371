/* The life (books.h) of what is in a table of the books by a key alone: allocations, arrays, programs, graphs. */
#ifndef GPUSHARE_MEMORY_LIFE_H
#define GPUSHARE_MEMORY_LIFE_H

#include "interposer/memory/books.h"

/* How such a record begins. */
struct gs_living {
  uint64_t key;
  struct gs_life life;
};

/* A number for a call that ends something. */
uint64_t gs_next_call(void);

/* ---- a call that makes something --------------------------------------------------------------------------------- */

struct gs_maker {
  struct gs_making *making;
  CUcontext context; /* with which it ends; NULL: none */
  uint32_t begun, contexts_ended;
};

/* To be called before the driver; then gs_maker_end, when the books have what the driver made. */
static inline void gs_maker_begin(struct gs_maker *maker, struct gs_making *making, CUcontext context) {
  *maker = (struct gs_maker){.making = making, .context = context};
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

/* With the table's lock held: the live record, or one that is leaving; NULL: none. */
void *gs_life_find(const struct gs_table *table, uint64_t key);
/* Copies that record; false: none. */
bool gs_life_copy(struct gs_table *table, uint64_t key, void *record);

/* The live record begins to leave, and is copied. False: there is none. */
bool gs_life_leave(struct gs_table *table, uint64_t key, void *record);
/* The driver's call has returned. left: what gs_life_leave returned, with the copy that it made. ended: the call
 * succeeded: removes a record of the key, copies it and returns true; it is another than the one that began to leave if
 * another call has ended that one, and none if none was in the books or its context has ended meanwhile. making: calls
 * that make such things. is_alive: whether something of that key exists, so that the call has ended something that is
 * not in the books; NULL: all are in the books. */
bool gs_life_left(struct gs_table *table, struct gs_making *making, bool left, bool ended, void *record, uint64_t key,
                  bool (*is_alive)(uint64_t key));

#endif
