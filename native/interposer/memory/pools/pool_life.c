#include "interposer/memory/pools/pool_life.h"

#include "interposer/memory/books/charge.h"

void gs_pools_lock(void) { gs_table_lock(&gs_books()->pools); }
void gs_pools_unlock(void) { gs_table_unlock(&gs_books()->pools); }

struct gs_pool *gs_pool_of(uint64_t number) { return gs_table_find(&gs_books()->pools, number); }

static struct gs_pool *named(uint64_t handle) {
  const struct gs_pool_handle *known = gs_table_find(&gs_books()->pool_handles, handle);
  return known ? gs_pool_of(known->number) : NULL;
}

/* ---- loose ones -------------------------------------------------------------------------------------------------- */

void gs_pool_loosen(struct gs_pool *pool) {
  if (pool->ordinal == GS_NO_DEVICE || pool->destroyed || gs_is_graph_pool(pool->number))
    return;
  if (pool->loose == GS_TIGHT) {
    gs_table_add(&gs_books()->loose_pools, &(struct gs_loose_pool){pool->number, pool->ordinal});
    __atomic_fetch_add(&gs_process->loose_pools[pool->ordinal], 1, __ATOMIC_RELEASE);
  }
  pool->loose = GS_LOOSE;
  pool->asked = 0;
}

void gs_pool_tighten(struct gs_pool *pool) {
  if (pool->loose == GS_TIGHT)
    return;
  void *record = gs_table_find(&gs_books()->loose_pools, pool->number);
  if (record)
    gs_table_remove(&gs_books()->loose_pools, record);
  __atomic_fetch_sub(&gs_process->loose_pools[pool->ordinal], 1, __ATOMIC_RELEASE);
  pool->loose = GS_TIGHT;
}

/* ---- begin ------------------------------------------------------------------------------------------------------- */

static void add(const struct gs_pool *pool) {
  static uint64_t numbers = GS_MAX_DEVICES;
  struct gs_pool fresh = *pool;
  if (fresh.number == 0) {
    fresh.number = ++numbers;
    gs_table_add(&gs_books()->pool_handles, &(struct gs_pool_handle){fresh.handle, fresh.number});
  }
  gs_table_add(&gs_books()->pools, &fresh);
}

uint64_t gs_graph_pool(int ordinal) {
  uint64_t number = (uint64_t)ordinal + 1;
  gs_pools_lock();
  if (!gs_pool_of(number))
    add(&(struct gs_pool){.number = number, .ordinal = ordinal});
  gs_pools_unlock();
  return number;
}

static void unname(const struct gs_pool *pool) {
  struct gs_pool_handle *known = gs_table_find(&gs_books()->pool_handles, pool->handle);
  if (known && known->number == pool->number)
    gs_table_remove(&gs_books()->pool_handles, known);
}

static void set_destroyed(struct gs_pool *pool) {
  unname(pool);
  gs_pool_tighten(pool);
  pool->destroyed = true;
}

void gs_pool_made(uint64_t handle, int ordinal, uint64_t cap) {
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  gs_pools_lock();
  struct gs_pool *before = named(handle);
  if (before) { /* the call that destroyed it has not returned */
    set_destroyed(before);
    end = gs_pool_end_if_empty(before);
  }
  add(&(struct gs_pool){.handle = handle, .cap = cap, .ordinal = ordinal});
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
}

void gs_pool_met(uint64_t handle, int ordinal, uint64_t threshold) {
  gs_pools_lock();
  if (!named(handle))
    add(&(struct gs_pool){.handle = handle, .threshold = threshold, .ordinal = ordinal});
  gs_pools_unlock();
}

bool gs_pool_named(uint64_t handle, struct gs_pool *pool) {
  gs_pools_lock();
  const struct gs_pool *known = named(handle);
  if (known)
    *pool = *known;
  gs_pools_unlock();
  return known != NULL;
}

enum gs_announced gs_pool_announce(uint64_t handle, uint64_t *number, int *ordinal) {
  struct gs_books *books = gs_books();
  enum gs_announced answer = GS_POOL_UNKNOWN;
  gs_pools_lock();
  struct gs_pool *pool = named(handle);
  if (pool && pool->ordinal == GS_NO_DEVICE) {
    answer = GS_POOL_FREE_OF_CHARGE;
  } else if (pool && !(gs_table_extend(&books->blocks, 1) && gs_table_extend(&books->queued, 1) &&
                       gs_table_extend(&books->loose_pools, 1))) {
    answer = GS_POOL_FULL_TABLES;
  } else if (pool) {
    answer = GS_POOL_ANNOUNCED;
    pool->calls++;
    *number = pool->number;
    *ordinal = pool->ordinal;
  }
  gs_pools_unlock();
  return answer;
}

void gs_pool_threshold(uint64_t number, uint64_t threshold) {
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(number);
  if (pool) {
    pool->threshold = threshold;
    gs_pool_loosen(pool);
  }
  gs_pools_unlock();
}

/* ---- end --------------------------------------------------------------------------------------------------------- */

struct gs_pool_end gs_pool_end_if_empty(struct gs_pool *pool) {
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  if (pool->destroyed && pool->blocks == 0 && pool->calls == 0 && pool->leaving == 0 && pool->awaited == 0) {
    end = (struct gs_pool_end){pool->ordinal, pool->bytes};
    gs_table_remove(&gs_books()->pools, pool);
  }
  return end;
}

static void count_down(uint64_t number, bool announced) {
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(number);
  if (pool) {
    --*(announced ? &pool->calls : &pool->awaited);
    end = gs_pool_end_if_empty(pool);
  }
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
}

void gs_pool_unannounce(uint64_t number) { count_down(number, true); }
void gs_pool_awaited(uint64_t number) { count_down(number, false); }

void gs_pool_awaits(uint64_t number) {
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(number);
  if (pool)
    pool->awaited++;
  gs_pools_unlock();
}

void gs_pool_leaves(struct gs_departure *departure, const struct gs_pool *before, uint64_t used) {
  *departure = (struct gs_departure){.number = before->number, .made = before->made, .freed = before->freed};
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(before->number);
  if (pool) {
    bool quiet = before->calls == 0 && before->freeing == 0 && pool->made == before->made;
    departure->unused = quiet && used == 0;
    departure->settled = quiet && used <= pool->live;
    pool->leaving++;
  }
  gs_pools_unlock();
}

static unsigned take_queued(uint64_t number, struct gs_queued *streams) {
  struct gs_table *all = &gs_books()->queued;
  unsigned count = 0;
  for (struct gs_queued *one; (one = gs_table_find(all, number)); count++) {
    if (streams)
      streams[count] = *one;
    gs_table_remove(all, one);
  }
  return count;
}

unsigned gs_pool_take_queued(uint64_t number, struct gs_queued streams[GS_QUEUED_MAX + 1]) {
  gs_pools_lock();
  unsigned count = take_queued(number, streams);
  gs_pools_unlock();
  return count;
}

void gs_pool_none_queued(struct gs_pool *pool) {
  pool->fading = 0;
  if (pool->queued > 0)
    take_queued(pool->number, NULL);
  pool->queued = 0;
}

/* Whether the pool had no block: those that the books still have ended unnoticed. */
static bool none_left(const struct gs_departure *departure, const struct gs_pool *pool) {
  return departure->unused && pool->made == departure->made && pool->calls == 0;
}

bool gs_pool_left(const struct gs_departure *departure, bool destroyed) {
  struct gs_pool_end end = {GS_NO_DEVICE, 0};
  bool queued = false;
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(departure->number);
  if (pool) {
    pool->leaving--;
    if (!destroyed) {
      gs_pool_loosen(pool);
    } else if (none_left(departure, pool)) {
      set_destroyed(pool);
      pool->blocks = 0;
    } else {
      set_destroyed(pool);
      queued = pool->queued > 0 && !(departure->settled && pool->freed == departure->freed);
      pool->awaited += queued;
    }
    end = gs_pool_end_if_empty(pool);
  }
  gs_pools_unlock();
  gs_give_back(end.ordinal, end.bytes);
  return queued;
}
