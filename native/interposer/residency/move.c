#include "interposer/residency/move.h"

#include <sys/mman.h>

#include "interposer/memory/books/sizes.h"
#include "interposer/os/guest.h"
#include "interposer/process/passage/passage.h"
#include "interposer/process/trace.h"
#include "interposer/residency/host.h"
#include "interposer/residency/backing.h"
#include "interposer/residency/quiesce.h"
#include "interposer/residency/state.h"

enum {
  IN_FLIGHT = 64,        /* allocations whose copies are queued: memory is mapped for the next ones meanwhile */
  PIECE_BYTES = 64 << 20 /* copied ahead at once: a call that has to wait for it waits about 1 ms */
};

/* All movable allocations that move, in an order. */
struct all {
  struct gs_movable *one;
  uint32_t count, size;
};

static void drop_all(struct all *all) {
  if (all->one)
    munmap(all->one, all->size * sizeof *all->one);
  *all = (struct all){NULL, 0, 0};
}

/* False: out of memory. */
static bool find_all(struct all *all) {
  struct gs_movable each;
  uint32_t count = 0;
  for (uint64_t from = 0; gs_movable_next(from, &each); from = each.address + 1)
    count++;
  *all = (struct all){.size = count + 64};
  all->one = gs_private_map(all->size * sizeof *all->one);
  for (uint64_t from = 0; all->one && all->count < all->size && gs_movable_next(from, &each); from = each.address + 1)
    if (!each.fixed && each.proxy)
      all->one[all->count++] = each;
  return all->one;
}

static bool largest_first(const struct gs_movable *a, const struct gs_movable *b) { return a->bytes > b->bytes; }
static bool by_place(const struct gs_movable *a, const struct gs_movable *b) { return a->host < b->host; }

/* Shell's: libc's qsort may allocate memory of the program's. */
static void sort(struct all *all, bool (*before)(const struct gs_movable *a, const struct gs_movable *b)) {
  for (uint32_t gap = all->count / 2; gap > 0; gap /= 2)
    for (uint32_t i = gap; i < all->count; i++) {
      struct gs_movable moved = all->one[i];
      uint32_t to = i;
      for (; to >= gap && before(&moved, &all->one[to - gap]); to -= gap)
        all->one[to] = all->one[to - gap];
      all->one[to] = moved;
    }
}

/* ---- places in host memory ---- */

/* The first gap of these bytes among the placed ones, which are the first `placed`, sorted by place. */
static uint64_t gap(const struct all *all, uint32_t placed, uint64_t bytes, uint32_t *index) {
  uint64_t end = 0;
  for (*index = 0; *index < placed; ++*index) {
    if (all->one[*index].host - end >= bytes)
      break;
    end = all->one[*index].host + all->one[*index].bytes;
  }
  return end;
}

/* Gives all of them places. Returns the bytes of host memory that this needs. */
static uint64_t place_all(struct all *all) {
  uint32_t placed = 0, index;
  uint64_t end = 0;
  sort(all, by_place);
  while (placed < all->count && all->one[placed].host != GS_NO_PLACE)
    placed++;
  for (; placed < all->count; placed++) {
    struct gs_movable fresh = all->one[placed];
    fresh.host = gap(all, placed, fresh.bytes, &index);
    for (uint32_t i = placed; i > index; i--)
      all->one[i] = all->one[i - 1];
    all->one[index] = fresh;
    gs_movable_place(&fresh, fresh.where, fresh.host);
  }
  for (uint32_t i = 0; i < all->count; i++)
    if (all->one[i].host + all->one[i].bytes > end)
      end = all->one[i].host + all->one[i].bytes;
  return end;
}

static uint64_t sum(const struct all *all) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < all->count; i++)
    bytes += all->one[i].bytes;
  return bytes;
}

static bool any_hosted(const struct all *all) {
  for (uint32_t i = 0; i < all->count; i++)
    if (all->one[i].where == GS_ON_HOST)
      return true;
  return false;
}

static void unplace(struct all *all) {
  for (uint32_t i = 0; i < all->count; i++) {
    all->one[i].host = GS_NO_PLACE;
    all->one[i].where = GS_ON_DEVICE;
    gs_movable_place(&all->one[i], GS_ON_DEVICE, GS_NO_PLACE);
  }
}

enum gs_move gs_move_prepare(int ordinal) {
  struct all all;
  if (!find_all(&all))
    return GS_MOVE_NO_HOST;
  uint64_t end = place_all(&all);
  if (end > sum(&all) &&
      !any_hosted(&all)) { /* the daemon gives as much as there is to move, and not what gaps waste */
    unplace(&all);
    end = place_all(&all);
  }
  int rc = gs_host_get(ordinal, end);
  drop_all(&all);
  return rc == 0 ? GS_MOVED : GS_MOVE_NO_HOST;
}

/* ---- copies ---- */

/* What a move needs of the driver: a context, which stays current meanwhile, and a stream and events in it. */
struct engine {
  CUcontext context;
  int ordinal;
  CUstream stream;
  CUevent done[IN_FLIGHT];
  struct gs_movable moving[IN_FLIGHT];
  uint32_t begun, ended;
  uint32_t word; /* on the way out: the residency word that wants it */
};

static void engine_stop(struct engine *engine) {
  struct gs_process *state = gs_process;
  CUcontext popped;
  gs_lock(&state->events_lock[engine->ordinal]); /* calls that end a context take it before they do */
  bool lives = __atomic_exchange_n(&state->mover->works_in, NULL, __ATOMIC_ACQ_REL) &&
               __atomic_load_n(&state->ending[engine->ordinal], __ATOMIC_SEQ_CST) == 0;
  for (uint32_t i = 0; i < IN_FLIGHT && lives; i++)
    if (engine->done[i])
      gs_real.cuEventDestroy_v2(engine->done[i]);
  if (lives && engine->stream)
    gs_real.cuStreamDestroy_v2(engine->stream);
  gs_unlock(&state->events_lock[engine->ordinal]);
  if (engine->context)
    gs_real.cuCtxPopCurrent_v2(&popped);
}

static CUresult engine_start(struct engine *engine, const struct gs_movable *first, uint32_t word) {
  CUcontext context = first->context;
  *engine = (struct engine){.context = context, .ordinal = first->ordinal, .word = word};
  CUresult result = gs_real.cuCtxPushCurrent_v2(context);
  if (result != CUDA_SUCCESS) {
    engine->context = NULL;
    return result;
  }
  __atomic_store_n(&gs_process->mover->works_in, context, __ATOMIC_RELEASE);
  result = gs_real.cuStreamCreate(&engine->stream, CU_STREAM_NON_BLOCKING);
  for (uint32_t i = 0; i < IN_FLIGHT && result == CUDA_SUCCESS; i++)
    result = gs_real.cuEventCreate(&engine->done[i], CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS)
    engine_stop(engine);
  return result;
}

static void pin_all(const struct engine *engine) {
  while (gs_host_pin_next(engine->context))
    ;
}

static CUresult copy(const struct engine *engine, const struct gs_movable *one, uint64_t from, uint64_t bytes,
                     bool to_host) {
  CUresult result = CUDA_SUCCESS;
  for (uint64_t at = from, span; at < from + bytes && result == CUDA_SUCCESS; at += span) {
    void *host = gs_host_at(one->host + at);
    span = gs_host_span(one->host + at, from + bytes - at);
    result = to_host ? gs_real.cuMemcpyDtoHAsync_v2(host, one->address + at, span, engine->stream)
                     : gs_real.cuMemcpyHtoDAsync_v2(one->address + at, host, span, engine->stream);
  }
  if (result == CUDA_SUCCESS)
    __atomic_fetch_add(&gs_process->slot->device[one->ordinal].copied_bytes, bytes, __ATOMIC_RELAXED);
  return result;
}

typedef CUresult finish_one(const struct engine *engine, const struct gs_movable *one);

/* Waits for the oldest copy. */
static CUresult end_oldest(struct engine *engine, finish_one *finish) {
  uint32_t at = engine->ended % IN_FLIGHT;
  CUresult result = gs_real.cuEventSynchronize(engine->done[at]);
  engine->ended++;
  return result == CUDA_SUCCESS ? finish(engine, &engine->moving[at]) : result;
}

static CUresult end_all(struct engine *engine, finish_one *finish, CUresult result) {
  while (engine->ended < engine->begun) {
    CUresult one = end_oldest(engine, finish);
    result = result == CUDA_SUCCESS ? one : result;
  }
  return result;
}

/* Copies one, and finishes it later. */
static CUresult begin_one(struct engine *engine, const struct gs_movable *one, bool to_host, finish_one *finish) {
  CUresult result = CUDA_SUCCESS;
  if (engine->begun - engine->ended == IN_FLIGHT)
    result = end_oldest(engine, finish);
  uint32_t at = engine->begun % IN_FLIGHT;
  if (result == CUDA_SUCCESS)
    result = copy(engine, one, 0, one->bytes, to_host);
  if (result == CUDA_SUCCESS)
    result = gs_real.cuEventRecord(engine->done[at], engine->stream);
  if (result != CUDA_SUCCESS)
    return result;
  engine->moving[at] = *one;
  engine->begun++;
  return CUDA_SUCCESS;
}

/* ---- out and in ---- */

/* The slot says so before anything leaves: a process that has nothing hosted is resident to the daemon, whatever it has
 * answered. The daemon writes the word and then reads the slot. */
static CUresult leave(const struct engine *engine, const struct gs_movable *one) {
  gs_movable_place(one, GS_ON_HOST, one->host);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  CUresult result = gs_move_wanted(one->ordinal, engine->word) ? gs_movable_unmap(one) : CUDA_ERROR_NOT_READY;
  if (result != CUDA_SUCCESS)
    gs_movable_place(one, one->where, one->host);
  return result;
}

static CUresult arrive(const struct engine *engine, const struct gs_movable *one) {
  (void)engine;
  gs_movable_place(one, GS_ON_DEVICE, GS_NO_PLACE);
  return CUDA_SUCCESS;
}

static enum gs_move outcome(int ordinal, CUresult result, bool no_room) {
  if (result == CUDA_SUCCESS)
    return GS_MOVED;
  if (result == CUDA_ERROR_NOT_READY)
    return GS_MOVE_WORKING; /* it is not wanted any more: nobody asks why */
  gs_trace(GS_TRACE_MOVE_FAILED, ordinal, (uint64_t)result, gs_process->slot->device[ordinal].hosted_bytes);
  return no_room ? GS_MOVE_NO_DEVICE : GS_MOVE_FAILED;
}

bool gs_move_copies(void) {
  struct all all;
  bool any = false;
  if (!find_all(&all))
    return false;
  for (uint32_t i = 0; i < all.count && !any; i++)
    any = all.one[i].where == GS_ON_DEVICE;
  drop_all(&all);
  return any;
}

enum gs_move gs_move_out(int ordinal, uint32_t word) {
  struct engine engine;
  struct all all;
  CUresult result = CUDA_SUCCESS;
  if (!find_all(&all))
    return GS_MOVE_FAILED;
  sort(&all, largest_first);
  bool any = all.count > 0;
  if (any && (result = engine_start(&engine, &all.one[0], word)) == CUDA_SUCCESS) {
    pin_all(&engine);
    for (uint32_t i = 0; i < all.count && result == CUDA_SUCCESS; i++) {
      if (all.one[i].where == GS_COPIED)
        result = leave(&engine, &all.one[i]);
      else if (all.one[i].where == GS_ON_DEVICE)
        result = begin_one(&engine, &all.one[i], true, leave);
    }
    result = end_all(&engine, leave, result);
    engine_stop(&engine);
  }
  drop_all(&all);
  return outcome(ordinal, result, false);
}

enum gs_move gs_move_in(int ordinal, bool anyhow) {
  struct engine engine;
  struct all all;
  CUresult result = CUDA_SUCCESS;
  bool no_room = false;
  if (!anyhow && !gs_none_inside()) /* one that passed while it was away may be ending some of it */
    return gs_movable_any_hosted() ? GS_MOVE_WORKING : GS_MOVED;
  if (!find_all(&all))
    return GS_MOVE_FAILED;
  sort(&all, largest_first);
  if (any_hosted(&all) && (result = engine_start(&engine, &all.one[0], 0)) == CUDA_SUCCESS) {
    pin_all(&engine);
    for (uint32_t i = 0; i < all.count && result == CUDA_SUCCESS; i++) {
      if (all.one[i].where != GS_ON_HOST)
        continue;
      result = gs_movable_map(&all.one[i]);
      no_room = result == CUDA_ERROR_OUT_OF_MEMORY;
      if (result != CUDA_SUCCESS)
        break;
      result = begin_one(&engine, &all.one[i], false, arrive);
      if (result != CUDA_SUCCESS)
        gs_movable_unmap(&all.one[i]);
    }
    result = end_all(&engine, arrive, result);
    engine_stop(&engine);
  }
  drop_all(&all);
  return outcome(ordinal, result, no_room);
}

/* ---- ahead ---- */

static bool watched(void) { return __atomic_load_n(&gs_passage()->state, __ATOMIC_SEQ_CST) == GS_WATCHED; }

/* Copies a piece unless the program runs. */
static bool ahead(const struct engine *engine, const struct gs_movable *one, uint64_t from) {
  uint64_t bytes = one->bytes - from < PIECE_BYTES ? one->bytes - from : PIECE_BYTES;
  gs_lock(&gs_passage()->piece);
  bool copied = watched() && copy(engine, one, from, bytes, true) == CUDA_SUCCESS &&
                gs_real.cuStreamSynchronize(engine->stream) == CUDA_SUCCESS;
  gs_unlock(&gs_passage()->piece);
  return copied && watched();
}

/* Pins a segment unless the program runs. */
static bool pinned_next(const struct engine *engine) {
  gs_lock(&gs_passage()->piece);
  bool pinned = watched() && gs_host_pin_next(engine->context);
  gs_unlock(&gs_passage()->piece);
  return pinned;
}

bool gs_move_ahead(int ordinal, uint32_t word) {
  struct engine engine;
  struct all all;
  gs_lock(&gs_passage()->piece);
  bool ready = watched() && gs_await_work(ordinal, word) == CUDA_SUCCESS && find_all(&all);
  bool started = ready && all.count > 0 && engine_start(&engine, &all.one[0], word) == CUDA_SUCCESS;
  gs_unlock(&gs_passage()->piece);
  bool goes = started;
  while (started && pinned_next(&engine))
    ;
  for (uint32_t i = 0; goes && i < all.count; i++) {
    if (all.one[i].where != GS_ON_DEVICE)
      continue;
    for (uint64_t from = 0; goes && from < all.one[i].bytes; from += PIECE_BYTES)
      goes = ahead(&engine, &all.one[i], from);
    if (goes)
      gs_movable_place(&all.one[i], GS_COPIED, all.one[i].host);
  }
  bool empty = ready && all.count == 0;
  gs_lock(&gs_passage()->piece);
  if (started)
    engine_stop(&engine);
  gs_unlock(&gs_passage()->piece);
  if (ready)
    drop_all(&all);
  gs_movable_publish();
  return (goes || empty) && watched();
}

void gs_move_forget(void) {
  struct gs_movable each;
  for (uint64_t from = 0; gs_movable_next(from, &each); from = each.address + 1)
    if (each.where == GS_COPIED)
      gs_movable_place(&each, GS_ON_DEVICE, each.host);
  gs_movable_publish();
}
