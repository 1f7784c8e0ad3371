#include "interposer/memory/pool_growth.h"

#include "interposer/memory/async_free.h"
#include "interposer/memory/pool_map.h"
#include "interposer/memory/reserve.h"
#include "page/page.h"

static void add_need(uint64_t pool, uint64_t need) {
  gs_pools_lock();
  struct gs_pool *entry = gs_pool_of(pool);
  if (entry) {
    entry->coming += need;
    entry->bytes += need;
  }
  gs_pools_unlock();
}

static bool reserve(struct gs_growth *growth, uint64_t need) {
  if (gs_reserve(growth->ordinal, need) < 0)
    return false;
  growth->need = need;
  growth->reserved = true;
  add_need(growth->pool, need);
  return true;
}

/* begins: a call that can make the pool grow does, and no other such call of this pool is in progress. */
static uint64_t cap_of(uint64_t pool, bool begins) {
  gs_pools_lock();
  struct gs_pool *known = gs_pool_of(pool);
  uint64_t cap = known ? known->cap : 0;
  if (known && begins)
    known->shrank = false;
  gs_pools_unlock();
  return cap;
}

/* Call with the device's pool lock. */
static uint64_t rest_below(uint64_t cap, uint64_t pool) {
  struct gs_pool_figures figures;
  if (!gs_pool_ask_known(pool, &figures))
    return UINT64_MAX;
  return cap > figures.reserved ? cap - figures.reserved : 0;
}

/* The most by which `bytes` more can make the pool grow, and the least if memory is short. */
static void bounds(uint64_t pool, int ordinal, uint64_t bytes, uint64_t *most, uint64_t *least) {
  uint64_t cap = cap_of(pool, true), fine = gs_round_up(bytes, GS_POOL_GRAIN);
  *most = *least = gs_round_up(bytes, GS_POOL_STEP);
  if (gs_is_graph_pool(pool)) {
    *least = fine;
  } else if (cap) {
    gs_lock(&gs_process->pool_lock[ordinal]);
    uint64_t rest = rest_below(cap, pool);
    gs_unlock(&gs_process->pool_lock[ordinal]);
    if (*most > rest) {
      *most = rest;
      *least = fine < rest ? fine : rest;
    }
  }
}

/* ---- without a reservation: the pool has room and need not grow -------------------------------------------------- */

/* The free memory of the graph pool belongs first to the calls in progress, as far as their needs exceed their
 * reservations. Graphs map any free pages. */
static bool within_graphs(struct gs_growth *growth, uint64_t bytes, uint64_t need) {
  struct gs_pool_figures now;
  bool room = false;
  gs_lock(&gs_process->pool_lock[growth->ordinal]);
  bool known = gs_pool_ask_known(growth->pool, &now);
  gs_pools_lock();
  struct gs_pool *entry = gs_pool_of(growth->pool);
  if (entry && known)
    room = now.reserved >= now.used && now.reserved - now.used >= bytes && entry->bytes >= now.used &&
           entry->bytes - now.used >= bytes && entry->bytes - now.used - bytes >= entry->coming;
  if (room)
    entry->coming += need;
  gs_pools_unlock();
  gs_unlock(&gs_process->pool_lock[growth->ordinal]);
  growth->need = need;
  return room;
}

/* A pool needs a contiguous place, and allocates for one call at a time. need: what it would grow by if memory were
 * given back meanwhile; so much of its charge stays until the call has returned. */
static bool announce(struct gs_growth *growth, uint64_t need, uint64_t bytes, bool certain) {
  gs_pools_lock();
  struct gs_pool *entry = gs_pool_of(growth->pool);
  bool room = gs_pool_askable(entry) && entry->coming == 0 && entry->bytes >= entry->seen &&
              (certain || gs_map_plainly_has_room(entry, bytes));
  if (room)
    entry->coming += need;
  gs_pools_unlock();
  growth->need = need;
  return room;
}

/* By what the driver says about the pool now, so that what came and went unseen counts too. */
static bool plainly_within(struct gs_growth *growth, uint64_t bytes, uint64_t need) {
  return gs_pool_refresh(growth->pool, growth->ordinal) && announce(growth, need, bytes, false);
}

/* Searches all blocks of the pool, which takes long if there are many. */
static bool found_within(struct gs_growth *growth, uint64_t bytes, uint64_t need, CUstream stream) {
  struct gs_pool_figures now;
  bool exact = gs_pool_refresh(growth->pool, growth->ordinal);
  gs_lock(&gs_process->pool_lock[growth->ordinal]);
  bool room = gs_pool_ask_known(growth->pool, &now) &&
              gs_map_has_room(growth->pool, bytes, stream, now.reserved, exact) && announce(growth, need, bytes, true);
  gs_unlock(&gs_process->pool_lock[growth->ordinal]);
  return room;
}

/* Events that the counts do not show, such as one piece added while another is removed, can then not push the grant
 * over its limit. */
static bool has_left(int ordinal, uint64_t bytes) {
  struct gs_pages pages = {gs_process->limits, gs_process->usage};
  return gs_page_memory(&pages, (uint32_t)ordinal, UINT64_MAX).free >= bytes;
}

/* Without a reservation if it clearly needs none: during the call, the reserved memory would be unavailable to others. */
static bool begin_pool(struct gs_growth *growth, uint64_t bytes, uint64_t most, uint64_t least, CUstream stream) {
  bool roomy = has_left(growth->ordinal, most);
  if (roomy ? plainly_within(growth, bytes, least) : found_within(growth, bytes, least, stream))
    return true;
  return reserve(growth, most) || (least < most && reserve(growth, least)) ||
         (roomy && found_within(growth, bytes, least, stream));
}

bool gs_growth_begin(struct gs_growth *growth, uint64_t pool, int ordinal, uint64_t bytes, CUstream stream) {
  uint64_t most, least;
  *growth = (struct gs_growth){.pool = pool, .ordinal = ordinal};
  bounds(pool, ordinal, bytes, &most, &least);
  if (gs_is_graph_pool(pool))
    return within_graphs(growth, bytes, bytes) || reserve(growth, most) || (least < most && reserve(growth, least)) ||
           within_graphs(growth, bytes, least);
  return begin_pool(growth, bytes, most, least, stream);
}

/* More than the pool or the grant can have. */
static bool hopeless(uint64_t pool, int ordinal, uint64_t bytes) {
  uint64_t cap = cap_of(pool, false), fine = gs_round_up(bytes, GS_POOL_GRAIN);
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

/* The pool may have grown by as much as it gave back. */
static void note_none(uint64_t pool) {
  gs_pools_lock();
  struct gs_pool *known = gs_pool_of(pool);
  if (known)
    known->shrunk |= known->seen > known->threshold;
  gs_pools_unlock();
}

bool gs_growth_end(struct gs_growth *growth) {
  bool fits = gs_pool_settle(growth->pool, growth->ordinal, growth->need, &growth->grew);
  if (growth->reserved && growth->grew == 0)
    note_none(growth->pool);
  return fits;
}
