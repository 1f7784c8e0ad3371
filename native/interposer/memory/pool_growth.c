#include "interposer/memory/pool_growth.h"

#include "interposer/memory/async_free.h"
#include "interposer/memory/pool_map.h"
#include "interposer/memory/reserve.h"
#include "page/page.h"

static void add_need(uint64_t pool, uint64_t need, uint64_t bytes) {
  struct gs_table *pools = &gs_books()->pools;
  gs_table_lock(pools);
  struct gs_pool *entry = gs_table_find(pools, pool);
  if (entry) {
    entry->coming += need;
    entry->bytes += bytes;
  }
  gs_table_unlock(pools);
}

static bool begin(struct gs_growth *growth, uint64_t need) {
  if (gs_reserve(growth->ordinal, need) < 0)
    return false;
  growth->need = need;
  add_need(growth->pool, need, need);
  return true;
}

static uint64_t cap_of(uint64_t pool) {
  struct gs_pool known;
  return gs_table_copy(&gs_books()->pools, pool, &known) ? known.cap : 0;
}

/* The most by which `bytes` more can make the pool grow, and the least if memory is short. */
static void bounds(uint64_t pool, int ordinal, uint64_t bytes, uint64_t *most, uint64_t *least) {
  uint64_t reserved, used, cap = cap_of(pool), fine = gs_round_up(bytes, GS_POOL_GRAIN);
  *most = *least = gs_round_up(bytes, GS_POOL_STEP);
  if (gs_is_graph_pool(pool)) {
    *least = fine;
  } else if (cap && gs_pool_figures(pool, ordinal, &reserved, &used)) {
    uint64_t rest = cap > reserved ? cap - reserved : 0;
    if (*most > rest) {
      *most = rest;
      *least = fine < rest ? fine : rest;
    }
  }
}

/* The pool has room for the allocation and need not grow: it is booked without a reservation. Graphs map any free
 * pages; a pool needs a contiguous place, and allocates for one call at a time. Calls in progress have precedence for
 * the free memory of the graph pool, as far as their needs exceed their reservations. look: search all blocks of the
 * pool, which takes long if there are many. */
static bool begin_within(struct gs_growth *growth, uint64_t bytes, uint64_t need, CUstream stream, bool look) {
  uint64_t reserved, used, pool = growth->pool;
  bool room = false;
  gs_lock(&gs_process->pool_lock[growth->ordinal]);
  if (gs_pool_figures(pool, growth->ordinal, &reserved, &used) &&
      (gs_is_graph_pool(pool) || (look ? gs_map_has_room(pool, bytes, stream, reserved, used)
                                       : gs_map_plainly_has_room(pool, bytes, reserved, used)))) {
    struct gs_table *pools = &gs_books()->pools;
    gs_table_lock(pools);
    struct gs_pool *entry = gs_table_find(pools, pool);
    if (entry && gs_is_graph_pool(pool))
      room = reserved >= used && reserved - used >= bytes && entry->bytes >= used && entry->bytes - used >= bytes &&
             entry->bytes - used - bytes >= entry->coming;
    else
      room = entry && entry->coming == 0;
    if (room)
      entry->coming += need;
    gs_table_unlock(pools);
  }
  gs_unlock(&gs_process->pool_lock[growth->ordinal]);
  growth->need = need;
  return room;
}

/* Events that the counts do not show, such as one piece added while another is removed, can then not push the grant
 * over its limit. */
static bool has_left(int ordinal, uint64_t bytes) {
  struct gs_pages pages = {gs_process->limits, gs_process->usage};
  return gs_page_memory(&pages, (uint32_t)ordinal, UINT64_MAX).free >= bytes;
}

bool gs_growth_begin(struct gs_growth *growth, uint64_t pool, int ordinal, uint64_t bytes, CUstream stream) {
  uint64_t most, least;
  *growth = (struct gs_growth){pool, ordinal, 0, 0};
  bounds(pool, ordinal, bytes, &most, &least);
  /* without a reservation if it clearly needs none: during the call, the reserved memory would be unavailable to
   * others */
  if (gs_is_graph_pool(pool) ? begin_within(growth, bytes, bytes, stream, false)
                             : has_left(ordinal, most) && begin_within(growth, bytes, least, stream, false))
    return true;
  return begin(growth, most) || (least < most && begin(growth, least)) ||
         begin_within(growth, bytes, least, stream, true);
}

/* More than the pool or the grant can have. */
static bool hopeless(uint64_t pool, int ordinal, uint64_t bytes) {
  uint64_t cap = cap_of(pool), fine = gs_round_up(bytes, GS_POOL_GRAIN);
  return fine > gs_process->limits->device[ordinal].memory_bytes || (cap && fine > cap);
}

bool gs_growth_make_room(uint64_t pool, int ordinal, uint64_t bytes, CUstream stream) {
  if (hopeless(pool, ordinal, bytes))
    return false;
  if (gs_time() && __atomic_load_n(&gs_time()->captures, __ATOMIC_ACQUIRE) > 0)
    return false; /* a wait would end the capture */
  if (gs_real.cuStreamSynchronize(stream) != CUDA_SUCCESS)
    return false;
  gs_frees_settle(ordinal);
  gs_pools_trim(ordinal);
  return true;
}

bool gs_growth_end(struct gs_growth *growth) {
  return gs_pool_settle(growth->pool, growth->ordinal, growth->need, false, &growth->grew);
}
