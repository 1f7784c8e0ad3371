/* cuMemFreeAsync of memory that no pool owns: it stays charged until the stream reaches the free. An event recorded
 * after the free shows when. If events are not allowed (a profiler would show them) or recording fails, the charge ends
 * when all work of the stream is done. The frees of a stream happen in order, so only its oldest one is looked at. */
#include "interposer/memory/pools/async_free.h"

#include "interposer/memory/books/books.h"
#include "interposer/memory/books/charge.h"
#include "interposer/memory/pools/pool_life.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/streams.h"

enum { LINES_AT_ONCE = 256 };

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

/* Whether the driver has reported that the work is done, or that it does not know the event or stream any more. Errors of
 * captures and of the device say nothing: memory whose free never happens is there until its context ends. */
static bool says_done(CUresult result) {
  return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_CONTEXT ||
         result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_DEINITIALIZED;
}

/* A stream that has ended cannot be queried; a per-thread default stream can only be queried by its thread. During a
 * capture the query of a default stream would end it. */
static bool stream_done(const struct gs_fading *fading) {
  CUstream stream = fading->stream;
  if (gs_stream_known(stream) != fading->known)
    return stream != CU_STREAM_PER_THREAD;
  return __atomic_load_n(&gs_time()->captures, __ATOMIC_ACQUIRE) == 0 && says_done(gs_real.cuStreamQuery(stream));
}

static bool done(const struct gs_fading *fading) {
  CUcontext current;
  bool pushed, is;
  if (fading->ended || !fading->context)
    return true;
  if (fading->event)
    return says_done(gs_real.cuEventQuery(fading->event));
  is = go_to(fading->context, &current, &pushed) && stream_done(fading);
  leave(pushed);
  return is;
}

static void give_back(const struct gs_fading *fading) {
  if (fading->pool)
    gs_pool_awaited(fading->pool);
  gs_give_back(fading->ordinal, fading->bytes);
}

static bool first_of(uint64_t key, struct gs_fading *first) {
  struct gs_books *books = gs_books();
  gs_table_lock(&books->fading);
  const struct gs_fading_line *line = gs_table_find(&books->fading_lines, key);
  const struct gs_fading *found = line ? gs_table_find(&books->fading, line->first) : NULL;
  if (found)
    *first = *found;
  gs_table_unlock(&books->fading);
  return found != NULL;
}

/* Only the holder of the device's events_lock takes from a line. */
static void take(uint64_t key, struct gs_fading *first) {
  struct gs_books *books = gs_books();
  gs_table_lock(&books->fading);
  struct gs_fading_line *line = gs_table_find(&books->fading_lines, key);
  struct gs_fading *found = gs_table_find(&books->fading, first->key);
  *first = *found;
  line->first = found->next;
  if (line->first == 0)
    gs_table_remove(&books->fading_lines, line);
  gs_table_remove(&books->fading, found);
  gs_table_unlock(&books->fading);
}

/* Gives back what the stream has reached. False: a free is outstanding. */
static bool advance(uint64_t key) {
  struct gs_fading first;
  while (first_of(key, &first)) {
    if (!done(&first))
      return false;
    take(key, &first);
    if (first.ended)
      continue;
    if (first.event)
      gs_real.cuEventDestroy_v2(first.event);
    give_back(&first);
  }
  return true;
}

/* The next few lines of the device, from *at on. */
static unsigned next_lines(int ordinal, uint32_t *at, uint64_t *keys) {
  struct gs_table *all = &gs_books()->fading_lines;
  unsigned count = 0;
  gs_table_lock(all);
  for (const struct gs_fading_line *line; count < LINES_AT_ONCE && (line = gs_table_next(all, at));)
    if (line->ordinal == ordinal)
      keys[count++] = line->key;
  gs_table_unlock(all);
  return count;
}

/* Takes the device's events_lock, unless a context of the device is ending: no event is queried while its context
 * ends. */
bool gs_events_begin(int ordinal) {
  uint32_t *lock = &gs_process->events_lock[ordinal], unlocked = 0;
  if (!__atomic_compare_exchange_n(lock, &unlocked, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return false;
  if (__atomic_load_n(&gs_process->ending[ordinal], __ATOMIC_SEQ_CST) == 0)
    return true;
  gs_unlock(lock);
  return false;
}

void gs_events_end(int ordinal) { gs_unlock(&gs_process->events_lock[ordinal]); }

void gs_frees_settle(int ordinal) {
  uint64_t keys[LINES_AT_ONCE];
  unsigned awaited, ended, batches, count;
  if (!gs_events_begin(ordinal))
    return; /* a context begins or ends, or another thread is here: the next thread that waits for work checks again */
  __atomic_store_n(&gs_process->frees[ordinal], 0, __ATOMIC_SEQ_CST);
  int mode = gs_capture_mode_push();
  do { /* repeats if the removal of one line may have moved others past the next position */
    uint32_t at = 0;
    awaited = ended = batches = 0;
    for (; (count = next_lines(ordinal, &at, keys)) > 0; batches++)
      for (unsigned i = 0; i < count; i++)
        ++*(advance(keys[i]) ? &ended : &awaited);
  } while (batches > 1 && ended > 0);
  gs_capture_mode_pop(mode);
  if (awaited)
    __atomic_store_n(&gs_process->frees[ordinal], 1, __ATOMIC_SEQ_CST);
  gs_events_end(ordinal);
}

/* Checks the line at once: an idle stream has freed already, and a free is only noticed by looking. */
static void settle_line(int ordinal, uint64_t key) {
  if (!gs_events_begin(ordinal))
    return;
  int mode = gs_capture_mode_push();
  advance(key);
  gs_capture_mode_pop(mode);
  gs_events_end(ordinal);
}

static uint64_t number(void) {
  static uint64_t numbers;
  return __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
}

/* By stream and device, since a stream's place in the books is reused. */
static uint64_t line_of(const struct gs_stream *stream, int ordinal) {
  return (uint64_t)(uintptr_t)stream * GS_MAX_DEVICES + (unsigned)ordinal;
}

static void join(struct gs_fading *fading, int ordinal) {
  struct gs_books *books = gs_books();
  gs_table_lock(&books->fading);
  struct gs_fading_line *line = gs_table_find(&books->fading_lines, fading->line);
  struct gs_fading *last = line ? gs_table_find(&books->fading, line->last) : NULL;
  if (last) {
    last->next = fading->key;
    line->last = fading->key;
  } else {
    gs_table_add(&books->fading_lines, &(struct gs_fading_line){fading->line, fading->key, fading->key, ordinal});
  }
  gs_table_add(&books->fading, fading);
  gs_table_unlock(&books->fading);
}

/* Queues what is to be given back once the stream has come this far. False: that cannot be observed. */
static bool queue(struct gs_fading *fading, CUstream stream) {
  int ordinal = gs_stream_device(stream);
  if (ordinal == GS_NO_DEVICE)
    ordinal = fading->ordinal;
  if (!gs_time() || !gs_table_room(&gs_books()->fading, 1) || !gs_table_room(&gs_books()->fading_lines, 1))
    return false;
  int mode = gs_capture_mode_push();
  CUcontext context = context_of(stream);
  fading->event = record_behind(stream, context);
  gs_capture_mode_pop(mode);
  fading->context = gs_context_owner(context); /* once it has ended, so has the free */
  fading->key = number();
  fading->known = gs_stream_of(stream);
  if (!fading->event && !fading->known) /* nothing to wait for */
    return false;
  fading->stream = stream ? stream : CU_STREAM_LEGACY;
  fading->line = fading->known ? line_of(fading->known, ordinal) : fading->key;
  join(fading, ordinal);
  __atomic_store_n(&gs_process->frees[ordinal], 1, __ATOMIC_RELEASE);
  settle_line(ordinal, fading->line);
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
  struct gs_fading fading = {.key = number(), .pool = pool, .context = context, .ordinal = GS_NO_DEVICE};
  if (!context || !gs_table_room(&gs_books()->fading, 1)) {
    gs_pool_awaited(pool);
    return;
  }
  gs_table_put(&gs_books()->fading, &fading);
  __atomic_fetch_add(&lost, 1, __ATOMIC_RELEASE);
}

/* Copies the next entry of the context, from *at on, and ends it; false: there is none. all: every entry, rather than
 * only those that wait for the whole context. */
static bool end_next(CUcontext context, bool all, uint32_t *at, struct gs_fading *out) {
  struct gs_table *table = &gs_books()->fading;
  struct gs_fading *one;
  gs_table_lock(table);
  while ((one = gs_table_next(table, at)) && (one->context != context || one->ended || (one->line && !all)))
    ;
  if (one)
    *out = *one;
  if (one && one->line) {
    one->ended = true; /* its line removes it when it gets there */
  } else if (one) {
    gs_table_remove(table, one);
    --*at; /* another has moved here */
  }
  gs_table_unlock(table);
  return one != NULL;
}

static void end_all(CUcontext context, bool all) {
  struct gs_fading fading;
  for (uint32_t at = 0; end_next(context, all, &at, &fading);) {
    if (fading.line == 0)
      __atomic_fetch_sub(&lost, 1, __ATOMIC_RELAXED);
    give_back(&fading);
  }
}

void gs_frees_context_waited(CUcontext context) {
  if (__atomic_load_n(&lost, __ATOMIC_ACQUIRE) > 0)
    end_all(gs_context_owner(context), false);
}

/* Events end with their context. */
void gs_frees_context_gone(CUcontext context) { end_all(context, true); }
