/* The charge of pools: the driver's memory pools and each device's pool of graph memory. A pool's memory is what it has
 * reserved from the device, not what the program holds of it, so the charge follows the driver's own figure. A call
 * that can make a pool grow says by how much at most beforehand. */
#ifndef GPUSHARE_POOL_CHARGE_H
#define GPUSHARE_POOL_CHARGE_H

#include "interposer/memory/books.h"

enum {
  GS_POOL_STEP = 33554432, /* drivers grow a pool by multiples of 32 MiB */
  GS_POOL_GRAIN = 2097152  /* and by 2 MiB where a step has no room: the page of device memory */
};

/* UINT64_MAX where that is too large. */
static inline uint64_t gs_round_up(uint64_t bytes, uint64_t multiple) {
  return bytes > UINT64_MAX - multiple ? UINT64_MAX : (bytes + multiple - 1) / multiple * multiple;
}

/* The key of a device's pool of graph memory; in the books from the first call on. */
uint64_t gs_graph_pool(int ordinal);
/* reserved: what it holds already. */
void gs_pool_add(uint64_t pool, int ordinal, uint64_t cap, uint64_t reserved);

/* No pool's handle is as small as a device's ordinal + 1. */
static inline bool gs_is_graph_pool(uint64_t pool) { return pool <= GS_MAX_DEVICES; }

/* What the driver says: bytes reserved and bytes of those in use; false when it cannot say. */
bool gs_pool_figures(uint64_t pool, int ordinal, uint64_t *reserved, uint64_t *used);

/* A call that could make the pool grow by `ended` is over (0: none is). The charge becomes what is reserved and what
 * other calls under way may still add, but never more than it was: what those need they have reserved, or expect not to
 * need. gone: see gs_pools_settle. *grew: what the pool has more than when it was last asked. False: that does not fit,
 * and is charged all the same. */
bool gs_pool_settle(uint64_t pool, int ordinal, uint64_t ended, bool gone, uint64_t *grew);
/* Makes the charges what is reserved. gone: a context was ended, pools that cannot be asked any more hold nothing. */
void gs_pools_settle(int ordinal, bool gone);
/* Has the driver give back all that pools of the device hold unused. */
void gs_pools_trim(int ordinal);

#endif
