/* Calls that can make a pool grow: each reserves its maximum growth beforehand. */
#ifndef GPUSHARE_MEMORY_POOL_GROWTH_H
#define GPUSHARE_MEMORY_POOL_GROWTH_H

#include "interposer/memory/pools/pool_charge.h"

/* A call in progress that can make a pool grow. */
struct gs_growth {
  uint64_t pool;
  int ordinal;
  uint64_t need;   /* the most that the pool can grow by during the call, even if it gives memory back meanwhile */
  uint64_t grown;  /* set by gs_growth_end: by how much the pool grew for this call, at least */
  uint64_t handle; /* of a pool that is not destroyed before the call has ended; or 0 */
};

/* To be called before a call that allocates bytes from the pool; for a pool of the driver, with the device's alloc_lock
 * held until gs_growth_end. 0, or as gs_reserve_here. */
int gs_growth_begin(struct gs_growth *growth, uint64_t pool, int ordinal, uint64_t bytes);

/* To be called, with no lock held, after bytes of the pool did not fit. Completes queued frees of the stream and gives
 * unused memory back, as drivers do when a device is full. False: this is not possible here, or would not help. */
bool gs_growth_make_room(uint64_t pool, int ordinal, uint64_t bytes, CUstream stream);

/* To be called after the call, whatever it returned. False: the pool grew beyond what the grant has; that is charged
 * nevertheless. */
bool gs_growth_end(struct gs_growth *growth);

#endif
