/* Charges for pools: the driver's memory pools and each device's pool of graph memory. A pool's memory is what the pool
 * has reserved from the device, not what the program has allocated from it, so the charge follows the driver's own
 * figure. A call that can make a pool grow reserves the maximum growth beforehand. */
#ifndef GPUSHARE_POOL_CHARGE_H
#define GPUSHARE_POOL_CHARGE_H

#include "interposer/memory/books.h"

enum {
  GS_POOL_STEP = 33554432, /* drivers grow a pool by multiples of 32 MiB */
  GS_POOL_GRAIN = 2097152  /* and by 2 MiB if a step does not fit: the page size of device memory */
};

/* Rounds up to a multiple; UINT64_MAX if the result would overflow. */
static inline uint64_t gs_round_up(uint64_t bytes, uint64_t multiple) {
  return bytes > UINT64_MAX - multiple ? UINT64_MAX : (bytes + multiple - 1) / multiple * multiple;
}

/* The key of a device's pool of graph memory; the first call adds the pool to the books. */
uint64_t gs_graph_pool(int ordinal);
/* Adds a pool to the books. cap: upper bound of its size in bytes, 0: none; reserved: bytes that it holds already. */
void gs_pool_add(uint64_t pool, int ordinal, uint64_t cap, uint64_t reserved);

/* No pool's handle is as small as a device's ordinal + 1. */
static inline bool gs_is_graph_pool(uint64_t pool) { return pool <= GS_MAX_DEVICES; }

/* Asks the driver for the bytes reserved by the pool and the part of them in use; false if the driver cannot say. */
bool gs_pool_figures(uint64_t pool, int ordinal, uint64_t *reserved, uint64_t *used);

/* A call that could make the pool grow by `ended` bytes has returned (0: no call has). The charge becomes what the pool
 * has reserved plus what other calls in progress may still add, but never more than it was: those calls have reserved
 * what they need, or expect not to need it. gone: see gs_pools_settle. *grew: how much the pool has grown since it was
 * last asked. False: the growth does not fit, and is charged nevertheless. */
bool gs_pool_settle(uint64_t pool, int ordinal, uint64_t ended, bool gone, uint64_t *grew);
/* Sets the charges of a device's pools to what they have reserved. gone: a context has ended; pools that can no longer
 * be asked hold nothing. */
void gs_pools_settle(int ordinal, bool gone);
/* Makes the driver give back all unused memory in the pools of the device. */
void gs_pools_trim(int ordinal);

#endif
