/* The charge of pools: the driver's memory pools and each device's pool of graph memory. A pool's memory is what it has
 * reserved from the device, not what the program holds of it, so the charge follows the driver's own figure. A call
 * that can make a pool grow says by how much at most beforehand. */
#ifndef GPUSHARE_POOL_CHARGE_H
#define GPUSHARE_POOL_CHARGE_H

#include "interposer/memory/books.h"

enum {
  GS_POOL_STEP = 33554432, /* drivers grow a pool by multiples of 32 MiB */
  GS_POOL_GRAIN = 2097152, /* and by 2 MiB where a step has no room: the page of device memory */
  GS_POOL_DESTROYED = 1,   /* gs_entry.flags: ends with its last block */
  GS_POOL_SHRUNK = 2       /* gave memory back since pool_map.c looked */
};

/* A call under way that can make a pool grow. */
struct gs_growth {
  uint64_t pool;
  int ordinal;
  uint64_t need;
  uint64_t grew; /* by gs_growth_end: what the pool has more, as far as it is this call's */
};

uint64_t gs_round_up(uint64_t bytes, uint64_t multiple); /* UINT64_MAX where that is too large */

/* The key of a device's pool of graph memory; in the books from the first call on. */
uint64_t gs_graph_pool(int ordinal);
/* reserved: what it holds already. */
void gs_pool_add(uint64_t pool, int ordinal, uint64_t cap, uint64_t reserved);

/* What the driver says: bytes reserved and bytes of those in use; false when it cannot say. */
bool gs_pool_figures(uint64_t pool, int ordinal, uint64_t *reserved, uint64_t *used);

/* Before a call that takes bytes from the pool: reserves what it may grow by, or sees that it need not. False: it does
 * not fit. */
bool gs_growth_begin(struct gs_growth *growth, uint64_t pool, int ordinal, uint64_t bytes, CUstream stream);
/* So many bytes of the pool did not fit. Has queued frees of stream happen and unused memory given back, as drivers do
 * when a device is full; with no lock held. False: it cannot be done here, or would not help. */
bool gs_growth_make_room(uint64_t pool, int ordinal, uint64_t bytes, CUstream stream);
/* After the call, whatever it answered. False: the pool grew beyond what the grant has; that is charged all the same. */
bool gs_growth_end(struct gs_growth *growth);

/* Makes the charges what is reserved. gone: a context was ended, pools that cannot be asked any more hold nothing. */
void gs_pools_settle(int ordinal, bool gone);
/* Has the driver give back all that pools of the device hold unused. */
void gs_pools_trim(int ordinal);

#endif
