/* cuMemFreeAsync of memory that no pool owns: it stays charged until the stream reaches the free. An event recorded
 * after the free shows when. If events are not allowed (a profiler would show them) or recording fails, the charge ends
 * when all work of the stream is done. */
#include "interposer/memory/async_free.h"

#include "interposer/memory/books.h"
#include "interposer/memory/charge.h"
#include "interposer/memory/pool_life.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/time/capture.h"
#include "interposer/time/streams.h"

enum { FREES_AT_ONCE = 256 };

static bool by_event(const struct gs_fading *fading) { return fading->stream == NULL; }

/* Makes context current for a few calls; pass *pushed to leave. False: not possible. */
static bool go_to(CUcontext context, CUcontext *current, bool *pushed) {
  *pushed = false;
  if (gs_real.cuCtxGetCurrent(current) != CUDA_SUCCESS || !context)
    return false;
  *pushed = *current != context && gs_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  return *pushed || *current == context;
}

static void leave(bool pushed) {
  CUcontext popped;
  if (pushed)
    gs_real.cuCtxPopCurrent_v2(&popped);
}

static CUcontext context_of(CUstream stream) {
  CUcontext context = NULL;
  bool named = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
  CUresult result = named ? gs_real.cuStreamGetCtx(stream, &context) : gs_real.cuCtxGetCurrent(&context);
  return result == CUDA_SUCCESS ? context : NULL;
}

static CUevent record_behind(CUstream stream, CUcontext context) {
  CUevent event = NULL;
  CUcontext current;
  bool pushed;
  if (gs_time()->profiled)
    return NULL;
  if (go_to(context, &current, &pushed) && gs_real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    event = NULL;
  if (event && gs_real.cuEventRecord(event, stream) != CUDA_SUCCESS) {
    gs_real.cuEventDestroy_v2(event);
    event = NULL;
  }
  leave(pushed);
  return event;
}

/* ---- is it done -------------------------------------------------------------------------------------------------- */

/* A stream that has ended cannot be queried; a per-thread default stream can only be queried by its thread. */
static bool stream_done(const struct gs_fading *fading) {
  CUstream stream = fading->stream;
  if (gs_stream_known(stream) != fading->known)
    return stream != CU_STREAM_PER_THREAD;
  return !gs_stream_capturing(stream) && gs_real.cuStreamQuery(stream) != CUDA_ERROR_NOT_READY;
}

/* A query that fails in another way means that the context is broken. */
static bool done(const struct gs_fading *fading) {
  CUcontext current;
  bool pushed, is;
  if (by_event(fading))
    return gs_real.cuEventQuery((CUevent)(uintptr_t)fading->key) != CUDA_ERROR_NOT_READY;
  is = !go_to(fading->context, &current, &pushed) || stream_done(fading);
  leave(pushed);
  return is;
}

static void give_back(const struct gs_fading *fading) {
  if (by_event(fading))
    gs_real.cuEventDestroy_v2((CUevent)(uintptr_t)fading->key);
  if (fading->pool)
    gs_pool_awaited(fading->pool);
  gs_give_back(fading->ordinal, fading->bytes);
}

/* Gives the bytes back if the free is done. */
static bool end_one(uint64_t key) {
  struct gs_table *all = &gs_books()->fading;
  struct gs_fading fading;
  bool known = gs_table_copy(all, key, &fading);
  if (known && !done(&fading))
    return false;
  if (known && gs_table_take(all, key, &fading))
    give_back(&fading);
  return true;
}

/* Checks the next few frees in streams of the device, from *at on; returns how many. */
static unsigned look(int ordinal, uint32_t *at, unsigned *awaited, unsigned *ended) {
  uint64_t keys[FREES_AT_ONCE];
  struct gs_table *all = &gs_books()->fading;
  unsigned count = 0;
  gs_table_lock(all);
  for (const struct gs_fading *fading; count < FREES_AT_ONCE && (fading = gs_table_next(all, at));)
    if (fading->stream_ordinal == ordinal)
      keys[count++] = fading->key;
  gs_table_unlock(all);
  if (count == 0)
    return 0;
  int mode = gs_capture_mode_push();
  for (unsigned i = 0; i < count; i++)
    ++*(end_one(keys[i]) ? ended : awaited);
  gs_capture_mode_pop(mode);
  return count;
}

/* Takes the device's events_lock, unless a context of the device is ending: no event is queried while its context
 * ends. */
static bool begin(int ordinal) {
  uint32_t *lock = &gs_process->events_lock[ordinal], unlocked = 0;
  if (!__atomic_compare_exchange_n(lock, &unlocked, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return false;
  if (__atomic_load_n(&gs_process->ending[ordinal], __ATOMIC_SEQ_CST) == 0)
    return true;
  gs_unlock(lock);
  return false;
}

static void end(int ordinal) { gs_unlock(&gs_process->events_lock[ordinal]); }

void gs_frees_settle(int ordinal) {
  unsigned awaited, ended, looks;
  if (!begin(ordinal))
    return; /* a context begins or ends, or another thread is here: the next thread that waits for work checks again */
  __atomic_store_n(&gs_process->frees[ordinal], 0, __ATOMIC_SEQ_CST);
  do { /* repeats if the removal of one entry may have moved others past the next position */
    uint32_t at = 0;
    awaited = ended = looks = 0;
    while (look(ordinal, &at, &awaited, &ended) == FREES_AT_ONCE)
      looks++;
  } while (looks > 0 && ended > 0);
  if (awaited)
    __atomic_store_n(&gs_process->frees[ordinal], 1, __ATOMIC_SEQ_CST);
  end(ordinal);
}

/* Freed memory is only noticed when it is looked for: check a few entries now, others the next time. */
static void settle_some(int ordinal) {
  static uint32_t next[GS_MAX_DEVICES];
  unsigned awaited = 0, ended = 0;
  if (!begin(ordinal))
    return;
  if (look(ordinal, &next[ordinal], &awaited, &ended) < FREES_AT_ONCE)
    next[ordinal] = 0;
  end(ordinal);
}

static uint64_t number(void) {
  static uint64_t numbers; /* odd, which no event is */
  return __atomic_add_fetch(&numbers, 2, __ATOMIC_RELAXED) | 1;
}

/* Adds what is to be given back once the stream has come so far. False: that cannot be known. */
static bool queue(struct gs_fading *fading, CUstream stream) {
  int stream_ordinal = gs_stream_device(stream);
  if (stream_ordinal == GS_NO_DEVICE)
    stream_ordinal = fading->ordinal;
  if (!gs_time() || !gs_table_room(&gs_books()->fading, 1))
    return false;
  int mode = gs_capture_mode_push();
  CUcontext context = context_of(stream);
  CUevent event = record_behind(stream, context);
  gs_capture_mode_pop(mode);
  fading->key = (uintptr_t)event;
  fading->context = gs_context_owner(context); /* once it is done, the stream has reached the free */
  fading->stream_ordinal = stream_ordinal;
  if (!event) {
    fading->known = gs_stream_of(stream);
    if (!fading->known) /* nothing to wait for */
      return false;
    fading->key = number();
    fading->stream = stream ? stream : CU_STREAM_LEGACY;
  }
  gs_table_put(&gs_books()->fading, fading);
  __atomic_store_n(&gs_process->frees[stream_ordinal], 1, __ATOMIC_RELEASE);
  settle_some(stream_ordinal); /* idle streams free at once */
  return true;
}

void gs_free_queued(int ordinal, uint64_t bytes, CUstream stream) {
  struct gs_fading fading = {.bytes = bytes, .ordinal = ordinal};
  if (!queue(&fading, stream)) /* rather too early than never */
    gs_give_back(ordinal, bytes);
}

void gs_pool_free_queued(uint64_t pool, CUstream stream) {
  struct gs_fading fading = {.pool = pool, .ordinal = GS_NO_DEVICE};
  if (!queue(&fading, stream))
    gs_pool_awaited(pool);
}

/* ---- streams that have ended ------------------------------------------------------------------------------------- */

static uint32_t lost; /* entries that wait for their whole context */

void gs_pool_free_lost(uint64_t pool, CUcontext context) {
  struct gs_fading fading = {.key = number(),
                             .stream = CU_STREAM_LEGACY,
                             .pool = pool,
                             .context = context,
                             .ordinal = GS_NO_DEVICE,
                             .stream_ordinal = GS_NO_DEVICE}; /* is not looked at */
  if (!context || !gs_table_room(&gs_books()->fading, 1)) {
    gs_pool_awaited(pool);
    return;
  }
  gs_table_put(&gs_books()->fading, &fading);
  __atomic_fetch_add(&lost, 1, __ATOMIC_RELEASE);
}

/* Removes one entry of the context from the books; false: there is none. */
static bool take_of(CUcontext context, bool all, struct gs_fading *out) {
  struct gs_table *table = &gs_books()->fading;
  uint32_t at = 0;
  struct gs_fading *one;
  gs_table_lock(table);
  while ((one = gs_table_next(table, &at)) &&
         !(one->context == context && one->pool && (all || one->stream_ordinal == GS_NO_DEVICE)))
    ;
  if (one) {
    *out = *one;
    gs_table_remove(table, one);
  }
  gs_table_unlock(table);
  return one != NULL;
}

static void pools_await_no_more(CUcontext context, bool all) {
  struct gs_fading fading;
  while (take_of(context, all, &fading)) {
    if (fading.stream_ordinal == GS_NO_DEVICE)
      __atomic_fetch_sub(&lost, 1, __ATOMIC_RELAXED);
    gs_pool_awaited(fading.pool);
  }
}

void gs_frees_context_waited(CUcontext context) {
  if (__atomic_load_n(&lost, __ATOMIC_ACQUIRE) > 0)
    pools_await_no_more(gs_context_owner(context), false);
}

/* Events end with their context. */
void gs_frees_context_gone(CUcontext context) { pools_await_no_more(context, true); }
