/* cuMemFreeAsync of memory that no pool owns: the driver frees it when the stream gets there, so until then it is charged. An
 * event behind the free says when. */
#include "books.h"
#include "implicit.h"
#include "timing.h"

enum { DISABLE_TIMING = 2, FREES_AT_ONCE = 256 };

static CUevent record_behind(CUstream stream) {
  CUevent event = NULL;
  if (!gs_time())
    return NULL;
  int mode = gs_relax();
  if (gs_real.cuEventCreate(&event, DISABLE_TIMING) != CUDA_SUCCESS) {
    event = NULL;
  } else if (gs_real.cuEventRecord(event, stream) != CUDA_SUCCESS) {
    gs_real.cuEventDestroy_v2(event);
    event = NULL;
  }
  gs_unrelax(mode);
  return event;
}

void gs_free_queued(const struct gs_entry *entry, CUstream stream) {
  CUevent event = record_behind(stream);
  if (!event) { /* nothing to wait for: rather too early than never */
    gs_give_back(entry->ordinal, entry->bytes);
    return;
  }
  struct gs_entry fading = *entry;
  fading.kind = GS_BOOK_FADING;
  fading.key = (uintptr_t)event;
  fading.context = gs_owner_current(); /* the event's and the stream's: when it ends, the stream got there */
  gs_book_put(&fading);
  __atomic_store_n(&gs_process->frees[entry->ordinal], 1, __ATOMIC_RELEASE);
  gs_frees_settle(entry->ordinal); /* idle streams free at once */
}

/* Gives how many of those looked at were still awaited and how many were done. With the device's events_lock, so that no event is
 * asked while its context ends. */
static void look(int ordinal, unsigned *awaited, unsigned *done) {
  uint64_t events[FREES_AT_ONCE];
  unsigned count = 0;
  uint32_t at = 0;
  gs_book_lock();
  for (struct gs_entry *entry; count < FREES_AT_ONCE && (entry = gs_book_next(GS_BOOK_FADING, &at));)
    if (entry->ordinal == ordinal)
      events[count++] = entry->key;
  gs_book_unlock();
  *awaited = *done = 0;
  if (count == 0)
    return;
  int mode = gs_relax();
  for (unsigned i = 0; i < count; i++) {
    struct gs_entry entry;
    CUevent event = (CUevent)(uintptr_t)events[i];
    if (gs_real.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
      ++*awaited;
    } else if (gs_book_take(GS_BOOK_FADING, events[i], &entry)) {
      gs_real.cuEventDestroy_v2(event);
      gs_give_back(ordinal, entry.bytes);
      ++*done;
    }
  }
  gs_unrelax(mode);
}

void gs_frees_settle(int ordinal) {
  uint32_t *lock = &gs_process->events_lock[ordinal], unlocked = 0;
  unsigned awaited, done;
  if (!__atomic_compare_exchange_n(lock, &unlocked, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return; /* another thread is here: the next one to wait for work looks again */
  if (__atomic_load_n(&gs_process->ending[ordinal], __ATOMIC_SEQ_CST) == 0) {
    __atomic_store_n(&gs_process->frees[ordinal], 0, __ATOMIC_SEQ_CST);
    do
      look(ordinal, &awaited, &done);
    while (awaited + done == FREES_AT_ONCE && done > 0);
    if (awaited)
      __atomic_store_n(&gs_process->frees[ordinal], 1, __ATOMIC_SEQ_CST);
  }
  gs_unlock(lock);
}
