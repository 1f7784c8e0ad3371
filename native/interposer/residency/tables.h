/* The tables of this room, in memory that a fork wipes. */
#ifndef GPUSHARE_RESIDENCY_TABLES_H
#define GPUSHARE_RESIDENCY_TABLES_H

#include "interposer/residency/movable.h"

struct gs_list {
  void *record;
  uint32_t used, size, bytes; /* bytes: of a record */
};

struct gs_movables {
  uint32_t lock;        /* of the lists */
  struct gs_list table; /* struct gs_movable, by address */
  /* sums over the table, as in struct gs_slot_device */
  uint64_t movable_bytes, hosted_bytes, clean_bytes;
  struct gs_list later; /* leaving.c */
  uint32_t leaving;     /* how many of them have not given their memory back */
};

/* NULL: there are none yet. */
static inline struct gs_movables *gs_movables(void) { return __atomic_load_n(&gs_process->movables, __ATOMIC_ACQUIRE); }
/* Makes them if there are none. NULL: out of memory. */
struct gs_movables *gs_movables_own(void);

/* With the lock held: makes room for one more record of these bytes. False: out of memory. */
bool gs_list_extend(struct gs_list *list, uint32_t bytes);

/* ---- which take the lock themselves ---- */

/* False: out of memory. */
bool gs_movable_add(const struct gs_movable *record);
/* Removes it and copies it to out. False: it is not there any more. */
bool gs_movable_take(uint64_t address, uint64_t number, struct gs_movable *out);
/* Sets its proxy to 0 and copies it to out. */
bool gs_movable_leaves(uint64_t address, uint64_t number, struct gs_movable *out);
/* One that ends with the context. */
bool gs_movable_of(CUcontext context, struct gs_movable *out);
void gs_movable_inherit(CUcontext context, CUcontext heir);

#endif
