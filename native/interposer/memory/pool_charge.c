#include "interposer/memory/pool_charge.h"

#include "interposer/process/device.h"
#include "interposer/memory/charge.h"

enum { POOLS_AT_ONCE = 64 };

void gs_pool_add(uint64_t pool, int ordinal, uint64_t cap, uint64_t reserved) {
  struct gs_table *pools = &gs_books()->pools;
  gs_table_lock(pools);
  if (!gs_table_find(pools, pool)) {
    gs_table_add(pools, &(struct gs_pool){.pool = pool, .cap = cap, .seen = reserved, .ordinal = ordinal});
    if (ordinal != GS_NO_DEVICE)
      __atomic_fetch_add(&gs_process->pools[ordinal], 1, __ATOMIC_RELAXED);
  }
  gs_table_unlock(pools);
}

uint64_t gs_graph_pool(int ordinal) {
  uint64_t pool = (uint64_t)ordinal + 1;
  gs_pool_add(pool, ordinal, 0, 0);
  return pool;
}

static bool ask_pool(CUmemoryPool pool, int which, uint64_t *value) {
  cuuint64_t said = 0;
  if (gs_real.cuMemPoolGetAttribute(pool, which, &said) != CUDA_SUCCESS)
    return false;
  *value = said;
  return true;
}

static bool ask_graphs(int ordinal, int which, uint64_t *value) {
  cuuint64_t said = 0;
  if (gs_real.cuDeviceGetGraphMemAttribute(gs_device_of(ordinal), which, &said) != CUDA_SUCCESS)
    return false;
  *value = said;
  return true;
}

bool gs_pool_figures(uint64_t pool, int ordinal, uint64_t *reserved, uint64_t *used) {
  if (gs_is_graph_pool(pool))
    return ask_graphs(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, reserved) &&
           ask_graphs(ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, used);
  CUmemoryPool handle = (CUmemoryPool)(uintptr_t)pool;
  return ask_pool(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved) &&
         ask_pool(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, used);
}

/* The device's pool lock keeps the figure and the charge consistent. */
bool gs_pool_settle(uint64_t pool, int ordinal, uint64_t ended, bool gone, uint64_t *grew) {
  uint64_t reserved = 0, used, less = 0, more = 0;
  struct gs_table *pools = &gs_books()->pools;
  *grew = 0;
  gs_lock(&gs_process->pool_lock[ordinal]);
  bool known = gs_pool_figures(pool, ordinal, &reserved, &used);
  gs_table_lock(pools);
  struct gs_pool *entry = gs_table_find(pools, pool);
  if (entry)
    entry->coming -= ended;
  if (entry && (known || gone)) {
    uint64_t most = reserved + entry->coming;
    if (entry->bytes > most)
      less = entry->bytes - most;
    else if (reserved > entry->bytes)
      more = reserved - entry->bytes;
    entry->bytes += more - less;
    if (reserved < entry->seen)
      entry->shrunk = true;
    else
      *grew = reserved - entry->seen;
    entry->seen = reserved;
  }
  gs_table_unlock(pools);
  bool fits = gs_reserve_now(ordinal, more) == 0;
  if (!fits)
    gs_charge(ordinal, more);
  gs_give_back(ordinal, less);
  gs_unlock(&gs_process->pool_lock[ordinal]);
  return fits;
}

/* The next pools of the device, from *at on. */
static unsigned pools_of(int ordinal, uint32_t *at, uint64_t *pools) {
  struct gs_table *all = &gs_books()->pools;
  unsigned count = 0;
  gs_table_lock(all);
  for (const struct gs_pool *pool; count < POOLS_AT_ONCE && (pool = gs_table_next(all, at));)
    if (pool->ordinal == ordinal && !pool->destroyed)
      pools[count++] = pool->pool;
  gs_table_unlock(all);
  return count;
}

void gs_pools_settle(int ordinal, bool gone) {
  uint64_t pools[POOLS_AT_ONCE];
  uint64_t grew;
  uint32_t at = 0;
  for (unsigned count; (count = pools_of(ordinal, &at, pools)) > 0;)
    for (unsigned i = 0; i < count; i++)
      gs_pool_settle(pools[i], ordinal, 0, gone, &grew);
}

void gs_pools_trim(int ordinal) {
  uint64_t pools[POOLS_AT_ONCE];
  uint32_t at = 0;
  for (unsigned count; (count = pools_of(ordinal, &at, pools)) > 0;)
    for (unsigned i = 0; i < count; i++) {
      if (gs_is_graph_pool(pools[i]))
        gs_real.cuDeviceGraphMemTrim(gs_device_of(ordinal));
      else
        gs_real.cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)pools[i], 0);
    }
  gs_pools_settle(ordinal, false);
}
