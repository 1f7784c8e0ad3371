/* Calls that can make a pool grow: each says by how much at most before it is made. */
#ifndef GPUSHARE_MEMORY_POOL_GROWTH_H
#define GPUSHARE_MEMORY_POOL_GROWTH_H

#include "interposer/memory/pool_charge.h"

/* A call under way that can make a pool grow. */
struct gs_growth {
  uint64_t pool;
  int ordinal;
  uint64_t need;
  uint64_t grew; /* by gs_growth_end: what the pool has more, as far as it is this call's */
};

/* Before a call that takes bytes from the pool: reserves what it may grow by, or sees that it need not. False: it does
 * not fit. */
bool gs_growth_begin(struct gs_growth *growth, uint64_t pool, int ordinal, uint64_t bytes, CUstream stream);

/* So many bytes of the pool did not fit. Has queued frees of stream happen and unused memory given back, as drivers do
 * when a device is full; with no lock held. False: it cannot be done here, or would not help. */
bool gs_growth_make_room(uint64_t pool, int ordinal, uint64_t bytes, CUstream stream);

/* After the call, whatever it answered. False: the pool grew beyond what the grant has; that is charged all the
 * same. */
bool gs_growth_end(struct gs_growth *growth);

#endif
