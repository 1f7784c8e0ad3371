#include "interposer/residency/quiesce.h"

#include "interposer/memory/books/books.h"
#include "interposer/os/guest.h"
#include "interposer/os/system.h"
#include "interposer/process/greens.h"
#include "interposer/process/passage/passage.h"
#include "interposer/time/streams/repeat.h"

enum {
  LOOK_NS = 50000,
  LOOK_MOST_NS = 2000000,
  STUCK_NS = 500000000, /* many times what the bound of work in flight allows it to take */
  CONTEXTS_MOST = 256
};
#define PATIENCE_NS 3000000000u /* with work that nobody waits for */

bool gs_move_wanted(int ordinal, uint32_t word) {
  return __atomic_load_n(&gs_process->limits->device[ordinal].residency, __ATOMIC_SEQ_CST) == word;
}

/* Whether it makes sense to wait on. A call that waits for the move may be what the work in flight, or an open capture,
 * waits for: then neither would end. since: when such a call was seen first; 0: there is none. began: when
 * the wait did. */
static bool goes_on(uint64_t *since, uint64_t began, int ordinal, uint32_t word) {
  const struct gs_slot_device *slot = &gs_process->slot->device[ordinal];
  bool waits =
      __atomic_load_n(&gs_passage()->wants, __ATOMIC_SEQ_CST) || __atomic_load_n(&slot->waiting, __ATOMIC_SEQ_CST);
  uint64_t now = gs_now();
  *since = !waits ? 0 : *since ? *since : now;
  return gs_move_wanted(ordinal, word) && !(waits && now - *since >= STUCK_NS) && now - began < PATIENCE_NS;
}

static bool none_inside(void *unused) {
  (void)unused;
  return gs_none_inside();
}

static bool no_launch_inside(void *unused) {
  struct gs_passage *passage = gs_passage();
  (void)unused;
  for (uint32_t i = 0; i < GS_LAUNCH_WORDS && passage->launch[i].thread; i++)
    if (__atomic_load_n(&passage->launch[i].inside, __ATOMIC_ACQUIRE))
      return false;
  return true;
}

/* Whether the driver has every submission that was booked on the device. */
static bool all_arrived(void *with) {
  struct gs_time_device *device = with;
  struct gs_time *time = gs_time();
  if (!__atomic_load_n(&device->meter, __ATOMIC_ACQUIRE))
    return true; /* nothing was ever submitted */
  bool arrived = !gs_stream_awaits(device->rest);
  gs_latch_take(&time->tables);
  for (uint32_t i = 0; i < time->buckets && arrived; i++)
    for (const struct gs_stream *stream = time->bucket[i]; stream && arrived; stream = stream->alike)
      arrived = gs_stream_home(stream) != device || !gs_stream_awaits(stream);
  gs_latch_drop(&time->tables);
  return arrived;
}

static bool no_capture(void *unused) {
  (void)unused;
  return __atomic_load_n(&gs_time()->captures, __ATOMIC_SEQ_CST) == 0;
}

/* Waits for it, for as long as the daemon wants the move and it can end. */
static bool await(bool (*ready)(void *with), void *with, int ordinal, uint32_t word) {
  uint64_t nap = LOOK_NS, since = 0, began = gs_now();
  while (!ready(with)) {
    if (!goes_on(&since, began, ordinal, word))
      return false;
    gs_nap(nap);
    nap = nap < LOOK_MOST_NS ? 2 * nap : nap;
  }
  return true;
}

/* From now on every launch takes the gate, and sees that it is closed; those that passed before are seen here. */
static void close_gate(struct gs_time_device *device) {
  gs_stores_seen();
  gs_biased_take(&device->lock);
  gs_biased_drop(&device->lock);
  gs_repeat_end(gs_time());
  gs_stores_seen();
}

/* Contexts on the device: those with known streams, and those of which only the books know. */
struct contexts {
  uint32_t count;
  CUcontext handle[CONTEXTS_MOST];
};

static void add(struct contexts *contexts, CUcontext handle) {
  for (uint32_t i = 0; i < contexts->count && handle; i++)
    handle = contexts->handle[i] == handle ? NULL : handle;
  if (handle && contexts->count < CONTEXTS_MOST)
    contexts->handle[contexts->count++] = handle;
}

static void find_contexts(struct contexts *contexts, int ordinal) {
  struct gs_time *time = gs_time();
  struct gs_table *books = &gs_books()->contexts;
  struct gs_green_list *greens = &gs_process->greens;
  const struct gs_created *created;
  contexts->count = 0;
  add(contexts, __atomic_load_n(&gs_process->primary[ordinal], __ATOMIC_SEQ_CST));
  gs_table_lock(books);
  for (uint32_t at = 0; (created = gs_table_next(books, &at));)
    add(contexts, created->ordinal == ordinal ? (CUcontext)(uintptr_t)created->context : NULL);
  gs_table_unlock(books);
  gs_lock(&greens->lock);
  for (uint32_t i = 0; i < greens->used; i++)
    add(contexts, greens->green[i].ordinal == ordinal ? greens->green[i].context : NULL);
  gs_unlock(&greens->lock);
  if (!time)
    return;
  gs_latch_take(&time->tables);
  for (const struct gs_context *each = time->contexts; each; each = each->next)
    add(contexts, each->ordinal == ordinal ? each->handle : NULL);
  gs_latch_drop(&time->tables);
}

/* Looks until all work of the current context is done. A wait in the driver could not be given up. */
static CUresult await_context(CUcontext context, int ordinal, uint32_t word) {
  CUevent event;
  uint64_t nap = LOOK_NS, since = 0, began = gs_now();
  if (!gs_real_has(GS_INDEX_cuCtxRecordEvent))
    return gs_real.cuCtxSynchronize(); /* drivers before CUDA 12.5 */
  CUresult result = gs_real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS)
    return result;
  result = gs_real.cuCtxRecordEvent(context, event);
  while (result == CUDA_SUCCESS && (result = gs_real.cuEventQuery(event)) == CUDA_ERROR_NOT_READY &&
         goes_on(&since, began, ordinal, word)) {
    gs_nap(nap);
    nap = nap < LOOK_MOST_NS ? 2 * nap : nap;
    result = CUDA_SUCCESS;
  }
  gs_real.cuEventDestroy_v2(event);
  return result;
}

/* Contexts do not end meanwhile: a call that ends one waits at the passage. */
CUresult gs_await_work(int ordinal, uint32_t word) {
  struct contexts contexts;
  CUresult result = CUDA_SUCCESS;
  CUcontext popped;
  find_contexts(&contexts, ordinal);
  if (contexts.count == CONTEXTS_MOST)
    return CUDA_ERROR_NOT_SUPPORTED;
  for (uint32_t i = 0; i < contexts.count && result == CUDA_SUCCESS; i++) {
    result = gs_real.cuCtxPushCurrent_v2(contexts.handle[i]);
    if (result != CUDA_SUCCESS)
      break;
    result = await_context(contexts.handle[i], ordinal, word);
    gs_real.cuCtxPopCurrent_v2(&popped);
  }
  return result;
}

enum gs_move gs_quiesce(int ordinal, uint32_t word) {
  struct gs_time_device *device = &gs_time()->device[ordinal];
  close_gate(device);
  if (!await(none_inside, NULL, ordinal, word) || !await(no_launch_inside, NULL, ordinal, word) ||
      !await(all_arrived, device, ordinal, word) || !await(no_capture, NULL, ordinal, word))
    return GS_MOVE_WORKING;
  /* Peers of a collective on other devices, and network cards, may have been given memory. */
  if (__atomic_load_n(&gs_passage()->unseen, __ATOMIC_ACQUIRE) ||
      __atomic_load_n(&device->slot->collectives, __ATOMIC_RELAXED))
    return GS_MOVE_UNSEEN;
  CUresult result = gs_await_work(ordinal, word);
  if (result == CUDA_ERROR_NOT_READY || !gs_move_wanted(ordinal, word))
    return GS_MOVE_WORKING;
  return result == CUDA_SUCCESS ? GS_MOVED : GS_MOVE_FAILED;
}

bool gs_is_quiet(int ordinal) {
  struct gs_time_device *device = &gs_time()->device[ordinal];
  close_gate(device);
  return none_inside(NULL) && no_launch_inside(NULL) && all_arrived(device) && no_capture(NULL);
}
