#include "interposer/memory/pools/pool_growth.h"

#include <errno.h>

#include "interposer/memory/pools/async_free.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/os/guest.h"
#include "interposer/os/system.h"
#include "interposer/time/streams/capture.h"

#define WAIT_MAX_NS 5000000000ull
#define NAP_NS 20000ull
#define NAP_MAX_NS 1000000ull

/* The call proceeds to the driver. coming: what it may add and was not announced; reserved: what was reserved for
 * it. */
static void go(struct gs_growth *growth, uint64_t coming, uint64_t reserved) {
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(growth->pool);
  if (pool) {
    pool->coming += coming;
    pool->growing += reserved;
    pool->bytes += reserved;
    pool->busy++;
    if (coming)
      pool->grown = 0;
    growth->handle = gs_pool_askable(pool) ? pool->handle : 0;
  }
  gs_pools_unlock();
}

/* settles: as for gs_reserve_growth. */
static int reserve(struct gs_growth *growth, uint64_t coming, uint64_t bytes, bool settles) {
  int rc = gs_reserve_growth(growth->ordinal, bytes, settles);
  if (rc == 0)
    go(growth, coming, bytes);
  return rc;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Whether the bytes fit in the free memory of the graph pool, which belongs first to the calls in progress. What is in
 * use plus what these may add never exceeds the charge, even if the pool is trimmed meanwhile. Graphs map any free
 * pages. */
static bool within_graphs(struct gs_growth *growth, uint64_t bytes) {
  struct gs_pool_figures now;
  bool room = false;
  gs_lock(&gs_process->pool_lock[growth->ordinal]);
  bool known = gs_pool_ask_known(growth->pool, &now);
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(growth->pool);
  if (pool && known)
    room = pool->bytes >= now.used && pool->bytes - now.used >= bytes && pool->bytes - now.used - bytes >= pool->coming;
  if (room) {
    pool->coming += bytes;
    pool->busy++;
  }
  gs_pools_unlock();
  gs_unlock(&gs_process->pool_lock[growth->ordinal]);
  return room;
}

static int begin_graph(struct gs_growth *growth, uint64_t bytes) {
  uint64_t fine = gs_round_up(bytes, GS_DEVICE_PAGE), step = gs_round_up(bytes, GS_POOL_STEP);
  growth->need = bytes;
  if (within_graphs(growth, bytes))
    return 0;
  growth->need = step;
  int rc = reserve(growth, step, step, false);
  if (rc != -ENOMEM)
    return rc;
  growth->need = fine;
  return reserve(growth, fine, fine, true);
}

/* ---- pools of the driver ----------------------------------------------------------------------------------------- */

/* From now on the charge does not fall below what the call may need. Returns the most by which it may have to rise: a
 * pool does not exceed its cap. */
static uint64_t announce(const struct gs_growth *growth) {
  uint64_t most = growth->need;
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(growth->pool);
  if (pool) {
    pool->coming += growth->need;
    pool->grown = 0;
    uint64_t rest = pool->cap > pool->bytes ? pool->cap - pool->bytes : 0;
    if (pool->cap && most > rest)
      most = rest;
  }
  gs_pools_unlock();
  return most;
}

static void withdraw(const struct gs_growth *growth) {
  gs_pools_lock();
  struct gs_pool *pool = gs_pool_of(growth->pool);
  if (pool)
    pool->coming -= growth->need;
  gs_pools_unlock();
  gs_pool_settle(growth->pool, growth->ordinal);
}

/* Only the driver knows what else is free in the pool; what it has behind the last block of the piece by which it grew
 * last certainly is. If it gives that piece back in mid-call, it grows by no more than the piece, and the charge does not
 * fall before the call returns. */
static bool fits_in_piece(const struct gs_growth *growth, uint64_t bytes) {
  gs_pools_lock();
  const struct gs_pool *pool = gs_pool_of(growth->pool);
  bool fits = pool && pool->piece.block && pool->seen <= pool->bytes && !gs_contexts_ending() &&
              gs_round_up(bytes, GS_BLOCK_ROUND) <= pool->piece.end - pool->piece.from &&
              growth->need <= pool->piece.end - pool->piece.at;
  gs_pools_unlock();
  return fits;
}

static int begin_pool(struct gs_growth *growth, uint64_t bytes) {
  growth->need = gs_round_up(bytes, GS_POOL_STEP);
  int rc = reserve(growth, growth->need, growth->need, false);
  if (rc != -ENOMEM)
    return rc;
  uint64_t most = announce(growth);
  if (fits_in_piece(growth, bytes)) {
    go(growth, 0, 0);
    return 0;
  }
  rc = reserve(growth, 0, most, true);
  if (rc < 0)
    withdraw(growth);
  return rc;
}

/* ------------------------------------------------------------------------------------------------------------------ */

int gs_growth_begin(struct gs_growth *growth, uint64_t pool, int ordinal, uint64_t bytes) {
  *growth = (struct gs_growth){.pool = pool, .ordinal = ordinal};
  return gs_is_graph_pool(pool) ? begin_graph(growth, bytes) : begin_pool(growth, bytes);
}

/* Whether the bytes are more than the pool or the grant can ever have. */
static bool hopeless(uint64_t number, int ordinal, uint64_t bytes) {
  uint64_t fine = gs_round_up(bytes, GS_DEVICE_PAGE);
  gs_pools_lock();
  const struct gs_pool *pool = gs_pool_of(number);
  bool over = pool && pool->cap && fine > pool->cap;
  gs_pools_unlock();
  return over || fine > gs_process->limits->device[ordinal].memory_bytes;
}

/* A wait or a query would end the capture. */
static bool capturing(void) { return gs_time() && __atomic_load_n(&gs_time()->captures, __ATOMIC_ACQUIRE) > 0; }

/* Waits for the stream, but not for ever: a program can hold it back itself, such as by a value that it has yet to write,
 * and is then refused as by a driver whose memory is full. So it is where a capture begins meanwhile. */
static bool drained(CUstream stream) {
  uint64_t begin = gs_now(), nap = NAP_NS;
  CUresult result = CUDA_ERROR_NOT_READY;
  while (!capturing() && (result = gs_real.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
         gs_now() - begin <= WAIT_MAX_NS) {
    gs_nap(nap);
    nap = nap < NAP_MAX_NS ? 2 * nap : nap;
  }
  return result == CUDA_SUCCESS && gs_real.cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

bool gs_growth_make_room(uint64_t pool, int ordinal, uint64_t bytes, CUstream stream) {
  if (hopeless(pool, ordinal, bytes))
    return false;
  int mode = gs_capture_mode_push();
  bool is_drained = drained(stream);
  gs_capture_mode_pop(mode);
  if (!is_drained)
    return false;
  gs_frees_settle(ordinal);
  gs_pools_trim(ordinal);
  return true;
}

bool gs_growth_end(struct gs_growth *growth) {
  return gs_pool_call_ended(growth->pool, growth->ordinal, growth->handle, growth->need, &growth->grown);
}
