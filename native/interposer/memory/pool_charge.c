#include "interposer/memory/pool_charge.h"

#include "interposer/process/device.h"
#include "page/page.h"
#include "interposer/memory/pool_map.h"
#include "interposer/time/timing.h"

enum {
  POOL_RESERVED_CURRENT = 5, /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
  POOL_USED_CURRENT = 7,
  GRAPH_USED_CURRENT = 0, /* CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT */
  GRAPH_RESERVED_CURRENT = 2,
  POOLS_AT_ONCE = 64
};

uint64_t gs_round_up(uint64_t bytes, uint64_t multiple) {
  return bytes > UINT64_MAX - multiple ? UINT64_MAX : (bytes + multiple - 1) / multiple * multiple;
}

/* No pool's handle is as small as a device's ordinal + 1. */
static bool is_graph_pool(uint64_t pool) { return pool <= GS_MAX_DEVICES; }

void gs_pool_add(uint64_t pool, int ordinal, uint64_t cap, uint64_t reserved) {
  gs_book_lock();
  if (!gs_book_find(GS_BOOK_POOL, pool)) {
    gs_book_add(
        &(struct gs_entry){.key = pool, .kind = GS_BOOK_POOL, .ordinal = ordinal, .cap = cap, .seen = reserved});
    if (ordinal != GS_NO_DEVICE)
      __atomic_fetch_add(&gs_process->pools[ordinal], 1, __ATOMIC_RELAXED);
  }
  gs_book_unlock();
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
  if (is_graph_pool(pool))
    return ask_graphs(ordinal, GRAPH_RESERVED_CURRENT, reserved) && ask_graphs(ordinal, GRAPH_USED_CURRENT, used);
  CUmemoryPool handle = (CUmemoryPool)(uintptr_t)pool;
  return ask_pool(handle, POOL_RESERVED_CURRENT, reserved) && ask_pool(handle, POOL_USED_CURRENT, used);
}

/* A call that could make the pool grow by `ended` is over (0: none is). The charge becomes what is reserved and what
 * other calls under way may still add, but never more than it was: what those need they have reserved, or expect not to
 * need. The device's pool lock makes the figure and the charge belong together. */
static bool settle(uint64_t pool, int ordinal, uint64_t ended, bool gone, uint64_t *grew) {
  uint64_t reserved = 0, used, less = 0, more = 0;
  *grew = 0;
  gs_lock(&gs_process->pool_lock[ordinal]);
  bool known = gs_pool_figures(pool, ordinal, &reserved, &used);
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, pool);
  if (entry)
    entry->link -= ended;
  if (entry && (known || gone)) {
    uint64_t most = reserved + entry->link;
    if (entry->bytes > most)
      less = entry->bytes - most;
    else if (reserved > entry->bytes)
      more = reserved - entry->bytes;
    entry->bytes += more - less;
    if (reserved < entry->seen)
      entry->flags |= GS_POOL_SHRUNK;
    else
      *grew = reserved - entry->seen;
    entry->seen = reserved;
  }
  gs_book_unlock();
  bool fits = gs_reserve_now(ordinal, more) == 0;
  if (!fits)
    gs_charge(ordinal, more);
  gs_give_back(ordinal, less);
  gs_unlock(&gs_process->pool_lock[ordinal]);
  return fits;
}

static void add_need(uint64_t pool, uint64_t need, uint64_t bytes) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, pool);
  if (entry) {
    entry->link += need;
    entry->bytes += bytes;
  }
  gs_book_unlock();
}

static bool begin(struct gs_growth *growth, uint64_t need) {
  if (gs_reserve(growth->ordinal, need) < 0)
    return false;
  growth->need = need;
  add_need(growth->pool, need, need);
  return true;
}

static uint64_t cap_of(uint64_t pool) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, pool);
  uint64_t cap = entry ? entry->cap : 0;
  gs_book_unlock();
  return cap;
}

/* The most that `bytes` more can make the pool grow by, and the least where it has to be sparing. */
static void bounds(uint64_t pool, int ordinal, uint64_t bytes, uint64_t *most, uint64_t *least) {
  uint64_t reserved, used, cap = cap_of(pool), fine = gs_round_up(bytes, GS_POOL_GRAIN);
  *most = *least = gs_round_up(bytes, GS_POOL_STEP);
  if (is_graph_pool(pool)) {
    *least = fine;
  } else if (cap && gs_pool_figures(pool, ordinal, &reserved, &used)) {
    uint64_t rest = cap > reserved ? cap - reserved : 0;
    if (*most > rest) {
      *most = rest;
      *least = fine < rest ? fine : rest;
    }
  }
}

/* The pool has a place for it and need not grow: takes part in the bounds without reserving. Graphs map whatever pages
 * are free; a pool needs a place in one piece, and allocates for one call at a time. What calls under way may take of
 * the free memory of graphs is theirs first, as far as it exceeds what they reserved. look: through all that the pool
 * has, which takes long where it has much. */
static bool begin_within(struct gs_growth *growth, uint64_t bytes, uint64_t need, CUstream stream, bool look) {
  uint64_t reserved, used, pool = growth->pool;
  bool room = false;
  gs_lock(&gs_process->pool_lock[growth->ordinal]);
  if (gs_pool_figures(pool, growth->ordinal, &reserved, &used) &&
      (is_graph_pool(pool) || (look ? gs_map_has_room(pool, bytes, stream, reserved, used)
                                    : gs_map_plainly_has_room(pool, bytes, reserved, used)))) {
    gs_book_lock();
    struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, pool);
    if (entry && is_graph_pool(pool))
      room = reserved >= used && reserved - used >= bytes && entry->bytes >= used && entry->bytes - used >= bytes &&
             entry->bytes - used - bytes >= entry->link;
    else
      room = entry && entry->link == 0;
    if (room)
      entry->link += need;
    gs_book_unlock();
  }
  gs_unlock(&gs_process->pool_lock[growth->ordinal]);
  growth->need = need;
  return room;
}

/* What the counts do not tell, such as a piece that came while another went, can then not carry the grant over its
 * limit. */
static bool has_left(int ordinal, uint64_t bytes) {
  struct gs_pages pages = {gs_process->limits, gs_process->usage};
  return gs_page_memory(&pages, (uint32_t)ordinal, UINT64_MAX).free >= bytes;
}

bool gs_growth_begin(struct gs_growth *growth, uint64_t pool, int ordinal, uint64_t bytes, CUstream stream) {
  uint64_t most, least;
  *growth = (struct gs_growth){pool, ordinal, 0, 0};
  bounds(pool, ordinal, bytes, &most, &least);
  /* without a reservation where it plainly needs none: for as long as the call takes, a neighbour would miss it */
  if (is_graph_pool(pool) ? begin_within(growth, bytes, bytes, stream, false)
                          : has_left(ordinal, most) && begin_within(growth, bytes, least, stream, false))
    return true;
  return begin(growth, most) || (least < most && begin(growth, least)) ||
         begin_within(growth, bytes, least, stream, true);
}

/* More than the pool or the grant ever has. */
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
  return settle(growth->pool, growth->ordinal, growth->need, false, &growth->grew);
}

/* The next pools of the device, from *at on. */
static unsigned pools_of(int ordinal, uint32_t *at, uint64_t *pools) {
  unsigned count = 0;
  gs_book_lock();
  for (struct gs_entry *entry; count < POOLS_AT_ONCE && (entry = gs_book_next(GS_BOOK_POOL, at));)
    if (entry->ordinal == ordinal && !(entry->flags & GS_POOL_DESTROYED))
      pools[count++] = entry->key;
  gs_book_unlock();
  return count;
}

void gs_pools_settle(int ordinal, bool gone) {
  uint64_t pools[POOLS_AT_ONCE];
  uint64_t grew;
  uint32_t at = 0;
  for (unsigned count; (count = pools_of(ordinal, &at, pools)) > 0;)
    for (unsigned i = 0; i < count; i++)
      settle(pools[i], ordinal, 0, gone, &grew);
}

void gs_pools_trim(int ordinal) {
  uint64_t pools[POOLS_AT_ONCE];
  uint32_t at = 0;
  for (unsigned count; (count = pools_of(ordinal, &at, pools)) > 0;)
    for (unsigned i = 0; i < count; i++) {
      if (is_graph_pool(pools[i]))
        gs_real.cuDeviceGraphMemTrim(gs_device_of(ordinal));
      else
        gs_real.cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)pools[i], 0);
    }
  gs_pools_settle(ordinal, false);
}
