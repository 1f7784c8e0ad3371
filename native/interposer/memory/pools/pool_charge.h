/* Charges for pools: the driver's memory pools and each device's pool of graph memory. A pool's memory is what the pool
 * has reserved from the device, not what the program has allocated from it, so the charge follows the driver's own
 * figure. A call that can make a pool grow reserves the maximum growth beforehand.
 *
 * A pool shrinks when the program waits, if it has reserved more than its release threshold and has a piece without
 * blocks. After a wait, therefore, only loose pools are queried: those where something was freed, or grew, or the
 * threshold changed, since a wait found everything settled. */
#ifndef GPUSHARE_POOL_CHARGE_H
#define GPUSHARE_POOL_CHARGE_H

#include "interposer/memory/books/books.h"
#include "interposer/memory/pools/pool_life.h"

/* What the driver reports about a pool: bytes reserved, and the part of them in use. */
struct gs_pool_figures {
  uint64_t reserved, used;
};
/* Asks the driver about a pool of the program. Returns whether the handle is a pool's. */
bool gs_pool_ask(CUmemoryPool pool, struct gs_pool_figures *figures);
/* The same for a pool of the books; false also if it is being destroyed. With the device's pool lock held. */
bool gs_pool_ask_known(uint64_t number, struct gs_pool_figures *figures);

/* Sets the charge to what the pool has reserved plus what calls in progress may still add. The latter never raises it:
 * those calls have reserved what they need, or are certain not to need it. */
void gs_pool_settle(uint64_t number, int ordinal);
/* The same after a call has returned that could make the pool grow by `need` bytes. handle: if not 0, that of the pool,
 * which is not destroyed meanwhile. *grown: by how much the pool was seen to grow; less than it grew if it gave memory
 * back just then. False: the growth does not fit, and is charged nevertheless. */
bool gs_pool_call_ended(uint64_t number, int ordinal, uint64_t handle, uint64_t need, uint64_t *grown);
/* Sets the charges of all pools of a device to what they have reserved. gone: a context has ended; pools that can no
 * longer be asked hold nothing. */
void gs_pools_settle(int ordinal, bool gone);
/* The same for the loose pools. waited: the driver had the opportunity to give memory back. */
void gs_pools_settle_loose(int ordinal, bool waited);
/* Makes the driver give back all unused memory in the pools of the device. */
void gs_pools_trim(int ordinal);
/* A call is about to destroy the pool: see gs_pool_leaves. */
void gs_pool_departs(struct gs_departure *departure, const struct gs_pool *pool);
/* To be called after a call of the program that trims the pool or sets its threshold. */
void gs_pool_yielded(const struct gs_pool *pool);

#endif
