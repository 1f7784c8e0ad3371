/* Which pools there are, and when they end. */
#ifndef GPUSHARE_POOL_LIFE_H
#define GPUSHARE_POOL_LIFE_H

#include "interposer/memory/books/books.h"

/* Numbers up to this one belong to the devices' graph pools. */
static inline bool gs_is_graph_pool(uint64_t number) { return number <= GS_MAX_DEVICES; }

/* The number of a device's pool of graph memory; the first call adds the pool to the books. */
uint64_t gs_graph_pool(int ordinal);
/* The driver has just made a pool with this handle: an earlier pool with the handle has ended. ordinal: GS_NO_DEVICE
 * for a pool that is not charged here; cap: upper bound of its size in bytes, 0: none. The tables must have room. */
void gs_pool_made(uint64_t handle, int ordinal, uint64_t cap);
/* Adds a pool that the program did not make, unless it is known already. */
void gs_pool_met(uint64_t handle, int ordinal, uint64_t threshold);
/* Copies the pool that the handle names now; false: none is known. */
bool gs_pool_named(uint64_t handle, struct gs_pool *pool);

enum gs_announced { GS_POOL_UNKNOWN, GS_POOL_FREE_OF_CHARGE, GS_POOL_FULL_TABLES, GS_POOL_ANNOUNCED };
/* A call is about to allocate from the pool, which does not end before gs_block_made or gs_pool_unannounce. *number: the
 * pool's. Makes room in the tables for the block. */
enum gs_announced gs_pool_announce(uint64_t handle, uint64_t *number, int *ordinal);
/* The call has made no block. */
void gs_pool_unannounce(uint64_t number);

/* The state of a pool when a call was about to destroy it. */
struct gs_departure {
  uint64_t number; /* 0: not known */
  uint64_t made, freed;
  bool unused;  /* no block was in use, announced or fading */
  bool settled; /* none was fading */
};
/* From now on the driver is not queried about the pool. before: a copy of the pool; used: the bytes in use, queried
 * after the copy was made (UINT64_MAX: not known). With the device's pool lock held. */
void gs_pool_leaves(struct gs_departure *departure, const struct gs_pool *before, uint64_t used);
/* The call has returned. True: queued frees may keep its memory alive, so the caller now adds what waits for them
 * (gs_pool_awaits) and then calls gs_pool_awaited once. */
bool gs_pool_left(const struct gs_departure *departure, bool destroyed);
/* The end of a destroyed pool waits for one more queued free. */
void gs_pool_awaits(uint64_t number);
/* One of those has happened. */
void gs_pool_awaited(uint64_t number);
/* Moves the records of the streams in which frees of the pool may be queued to `streams`. Returns their number. */
unsigned gs_pool_take_queued(uint64_t number, struct gs_queued streams[GS_QUEUED_MAX + 1]);

/* The program has set its release threshold to this many bytes. */
void gs_pool_threshold(uint64_t number, uint64_t threshold);

/* ---- with the lock of the pools' tables held ---- */

void gs_pools_lock(void);
void gs_pools_unlock(void);
struct gs_pool *gs_pool_of(uint64_t number);
/* Whether the driver may be queried about the pool. */
static inline bool gs_pool_askable(const struct gs_pool *pool) {
  return pool && !pool->destroyed && pool->leaving == 0;
}
/* The pool may give memory back at the next wait. */
void gs_pool_loosen(struct gs_pool *pool);
void gs_pool_tighten(struct gs_pool *pool);
/* No free in stream order is queued any more. */
void gs_pool_none_queued(struct gs_pool *pool);

/* Whether a call may have ended a context without the books knowing it yet: blocks may have ended with it. */
static inline bool gs_contexts_ending(void) {
  uint32_t ending = 0;
  for (uint32_t i = 0; i < gs_process->ndevices; i++)
    ending += __atomic_load_n(&gs_process->ending[i], __ATOMIC_SEQ_CST);
  return ending > 0;
}

/* What to give back once the lock is released. */
struct gs_pool_end {
  int ordinal;
  uint64_t bytes;
};
/* Removes a pool that has ended. */
struct gs_pool_end gs_pool_end_if_empty(struct gs_pool *pool);

#endif
