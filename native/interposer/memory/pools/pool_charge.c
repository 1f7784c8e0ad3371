#include "interposer/memory/pools/pool_charge.h"

#include "interposer/memory/books/charge.h"
#include "interposer/os/latch.h"
#include "interposer/process/device.h"

enum { POOLS_AT_ONCE = 64 };

/* ---- what the driver reports ---------------------------------------------------------------------------------------- */

static bool ask_pool(uint64_t pool, CUmemPool_attribute which, uint64_t *value) {
  cuuint64_t found = 0;
  if (gs_real.cuMemPoolGetAttribute((CUmemoryPool)(uintptr_t)pool, which, &found) != CUDA_SUCCESS)
    return false;
  *value = found;
  return true;
}

static bool ask_graphs(int ordinal, CUgraphMem_attribute which, uint64_t *value) {
  cuuint64_t found = 0;
  if (gs_real.cuDeviceGetGraphMemAttribute(gs_device_of(ordinal), which, &found) != CUDA_SUCCESS)
    return false;
  *value = found;
  return true;
}

static bool ask_reserved(const struct gs_pool *pool, uint64_t *bytes) {
  return gs_is_graph_pool(pool->number) ? ask_graphs(pool->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes)
                                        : ask_pool(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
}

static bool ask_used(const struct gs_pool *pool, uint64_t *bytes) {
  return gs_is_graph_pool(pool->number) ? ask_graphs(pool->ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, bytes)
                                        : ask_pool(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, bytes);
}

bool gs_pool_ask(CUmemoryPool pool, struct gs_pool_figures *figures) {
  uint64_t handle = (uintptr_t)pool;
  return ask_pool(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &figures->reserved) &&
         ask_pool(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &figures->used);
}

/* Copies a pool; true: the driver may be queried about it until the device's pool lock is released. */
static bool askable(uint64_t number, struct gs_pool *pool) {
  gs_pools_lock();
  const struct gs_pool *known = gs_pool_of(number);
  bool may = gs_pool_askable(known);
  if (may)
    *pool = *known;
  gs_pools_unlock();
  return may;
}

bool gs_pool_ask_known(uint64_t number, struct gs_pool_figures *figures) {
  struct gs_pool pool;
  return askable(number, &pool) && ask_reserved(&pool, &figures->reserved) && ask_used(&pool, &figures->used);
}

/* ---- the charge -------------------------------------------------------------------------------------------------- */

/* How the charge changes. */
struct change {
  uint64_t more, less;   /* bytes to reserve, to give back */
  uint64_t grown, taken; /* what calls in progress no longer reserve, and how much of it they took: gs_grown */
};

/* Calls in progress keep what they may still take of what they have reserved, at most `spare` bytes; the rest is given
 * back, or stays charged as taken. */
static void move(struct gs_pool *pool, uint64_t spare, struct change *change) {
  uint64_t growing = pool->growing;
  growing = growing > pool->coming ? pool->coming : growing;
  growing = growing > spare ? spare : growing;
  change->grown = pool->growing - growing;
  change->taken = change->grown > change->less ? change->grown - change->less : 0;
  change->less -= change->grown - change->taken;
  pool->growing = growing;
}

/* Adapts the charge to the bytes reserved. What calls may still add counts only up to the cap. */
static struct change follow(struct gs_pool *pool, uint64_t reserved) {
  struct change change = {0, 0, 0, 0};
  uint64_t most = pool->coming > UINT64_MAX - reserved ? UINT64_MAX : reserved + pool->coming;
  if (pool->cap && most > pool->cap)
    most = reserved > pool->cap ? reserved : pool->cap;
  if (pool->bytes > most)
    change.less = pool->bytes - most;
  else if (reserved > pool->bytes)
    change.more = reserved - pool->bytes;
  pool->bytes += change.more - change.less;
  move(pool, pool->bytes - reserved, &change);
  if (reserved > pool->seen) {
    pool->grown += reserved - pool->seen;
    if (reserved > pool->threshold)
      gs_pool_loosen(pool);
  }
  pool->seen = reserved;
  return change;
}

static bool apply(struct change change, int ordinal) {
  gs_grown(ordinal, change.grown, change.taken);
  bool fits = change.more == 0 || gs_reserve_now(ordinal, change.more, false) == 0;
  if (!fits)
    gs_charge(ordinal, change.more);
  gs_give_back(ordinal, change.less);
  return fits;
}

/* What is to be settled. */
struct settling {
  bool gone; /* a context has ended: see gs_pools_settle */
  bool call; /* a call has ended: see gs_pool_call_ended */
  uint64_t need, handle;
  uint64_t *grown;
};

/* With the device's pool lock, which keeps the figure and the charge consistent. */
static bool settle(uint64_t number, struct settling what) {
  struct gs_pool before;
  struct change change = {0, 0, 0, 0};
  uint64_t reserved = 0;
  bool may = what.handle || askable(number, &before);
  bool known = what.handle ? ask_pool(what.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved)
                           : may && ask_reserved(&before, &reserved);
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(number);
  int ordinal = pool ? pool->ordinal : GS_NO_DEVICE;
  if (pool) {
    pool->coming -= what.need;
    pool->busy -= what.call;
    if (known || (may && what.gone))
      change = follow(pool, reserved);
    else
      move(pool, pool->coming, &change);
    if (what.call)
      *what.grown = pool->grown;
  }
  gs_pools_unlock();
  return apply(change, ordinal);
}

static void settle_only(uint64_t number) { settle(number, (struct settling){0}); }

void gs_pool_settle(uint64_t number, int ordinal) {
  gs_lock(&gs_process->pool_lock[ordinal]);
  settle_only(number);
  gs_unlock(&gs_process->pool_lock[ordinal]);
}

bool gs_pool_call_ended(uint64_t number, int ordinal, uint64_t handle, uint64_t need, uint64_t *grown) {
  *grown = 0;
  gs_lock(&gs_process->pool_lock[ordinal]);
  bool fits = settle(number, (struct settling){.call = true, .need = need, .handle = handle, .grown = grown});
  gs_unlock(&gs_process->pool_lock[ordinal]);
  return fits;
}

/* The driver's figure of the bytes in use matches the books only if no allocation or free was in the driver. */
static void note_used(struct gs_pool *pool, const struct gs_pool *before, uint64_t used) {
  bool calls = before->busy || pool->busy || before->freeing || pool->freeing;
  if (calls || pool->made != before->made || pool->freed != before->freed)
    return;
  if (used > pool->live)
    pool->fading = used - pool->live;
  else
    gs_pool_none_queued(pool);
}

/* With the device's pool lock. */
static void ask_what_fades(uint64_t number) {
  struct gs_pool before;
  uint64_t used;
  if (!askable(number, &before) || !ask_used(&before, &used))
    return;
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(number);
  if (pool)
    note_used(pool, &before, used);
  gs_pools_unlock();
}

/* ---- after a wait ------------------------------------------------------------------------------------------------ */

/* Once no free is queued any more, the next wait lets the driver give back what it wants to, and after it the pool is
 * tight. That must be a wait that begins later, so it has to be one of the same thread. True: the driver should be
 * asked whether frees are still queued. That costs as much again, so it is done ever more rarely while frees stay
 * queued. */
static bool tighten(uint64_t number, bool may_ask) {
  bool ask = false;
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(number);
  if (!pool || pool->loose == GS_TIGHT) {
  } else if (pool->loose == GS_LOOSE_ONCE && pool->once_by == &gs_self) {
    gs_pool_tighten(pool);
  } else if (pool->fading == 0 && pool->freeing == 0) {
    pool->loose = GS_LOOSE_ONCE;
    pool->once_by = &gs_self;
  } else if (may_ask) {
    ask = (pool->asked & (pool->asked + 1)) == 0;
    pool->asked++;
  }
  gs_pools_unlock();
  return ask;
}

static void settle_loose(uint64_t number, int ordinal, bool waited) {
  gs_lock(&gs_process->pool_lock[ordinal]);
  settle_only(number);
  if (waited && tighten(number, true)) {
    ask_what_fades(number);
    tighten(number, false);
  }
  gs_unlock(&gs_process->pool_lock[ordinal]);
}

static unsigned next_loose(int ordinal, uint32_t *at, uint64_t *numbers) {
  struct gs_table *all = &gs_books()->loose_pools;
  unsigned count = 0;
  gs_pools_lock();
  for (const struct gs_loose_pool *pool; count < POOLS_AT_ONCE && (pool = gs_table_next(all, at));)
    if (pool->ordinal == ordinal)
      numbers[count++] = pool->number;
  gs_pools_unlock();
  return count;
}

void gs_pools_settle_loose(int ordinal, bool waited) {
  uint64_t numbers[POOLS_AT_ONCE];
  uint32_t at = 0;
  for (unsigned count; (count = next_loose(ordinal, &at, numbers)) > 0;)
    for (unsigned i = 0; i < count; i++)
      settle_loose(numbers[i], ordinal, waited);
}

/* ---- all of a device --------------------------------------------------------------------------------------------- */

static unsigned next_pools(int ordinal, uint32_t *at, uint64_t *numbers) {
  struct gs_table *all = &gs_books()->pools;
  unsigned count = 0;
  gs_pools_lock();
  for (const struct gs_pool *pool; count < POOLS_AT_ONCE && (pool = gs_table_next(all, at));)
    if (pool->ordinal == ordinal && !pool->destroyed)
      numbers[count++] = pool->number;
  gs_pools_unlock();
  return count;
}

static void each_pool(int ordinal, void (*act)(uint64_t number, int ordinal)) {
  uint64_t numbers[POOLS_AT_ONCE];
  uint32_t at = 0;
  for (unsigned count; (count = next_pools(ordinal, &at, numbers)) > 0;)
    for (unsigned i = 0; i < count; i++) {
      gs_lock(&gs_process->pool_lock[ordinal]);
      act(numbers[i], ordinal);
      gs_unlock(&gs_process->pool_lock[ordinal]);
    }
}

static void settle_one(uint64_t number, int ordinal) {
  (void)ordinal;
  settle_only(number);
}

static void settle_gone(uint64_t number, int ordinal) {
  (void)ordinal;
  settle(number, (struct settling){.gone = true});
}

static void trim(uint64_t number, int ordinal) {
  struct gs_pool pool;
  (void)ordinal;
  if (!askable(number, &pool))
    return;
  if (gs_is_graph_pool(number))
    gs_real.cuDeviceGraphMemTrim(gs_device_of(pool.ordinal));
  else
    gs_real.cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)pool.handle, 0);
  settle_only(number);
}

void gs_pools_settle(int ordinal, bool gone) { each_pool(ordinal, gone ? settle_gone : settle_one); }

void gs_pools_trim(int ordinal) { each_pool(ordinal, trim); }

/* ---- calls of the program ---------------------------------------------------------------------------------------- */

void gs_pool_departs(struct gs_departure *departure, const struct gs_pool *pool) {
  uint32_t *lock = pool->ordinal == GS_NO_DEVICE ? NULL : &gs_process->pool_lock[pool->ordinal];
  struct gs_pool before = *pool;
  uint64_t used = UINT64_MAX;
  if (lock)
    gs_lock(lock);
  if (askable(pool->number, &before) && !ask_used(&before, &used))
    used = UINT64_MAX;
  gs_pool_leaves(departure, &before, used);
  if (lock)
    gs_unlock(lock);
}

void gs_pool_yielded(const struct gs_pool *pool) {
  struct gs_pool now;
  uint64_t threshold;
  gs_lock(&gs_process->pool_lock[pool->ordinal]);
  if (askable(pool->number, &now) && ask_pool(now.handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) &&
      threshold != now.threshold)
    gs_pool_threshold(now.number, threshold);
  settle_only(pool->number);
  gs_unlock(&gs_process->pool_lock[pool->ordinal]);
}
