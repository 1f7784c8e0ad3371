/* Device memory that the driver allocates implicitly in a context, reserved before the call that causes it:
 *
 *   stack       local memory for all threads that the device can hold at once, sized by the largest need of any kernel
 *               so far. It grows at the first launch of such a kernel (or when its graph is instantiated), or by
 *               cuCtxSetLimit, and is kept until the context ends.
 *   fifo, heap  the buffers of printf and of malloc in kernels, sized by cuCtxSetLimit.
 *   sync depth, launches
 *               what the device runtime (kernels that launch kernels) sets aside for waiting parents and for pending
 *               launches, sized by cuCtxSetLimit. Only the maximum per level of parents is documented, so that is
 *               charged; per launch, the maximum size of its parameters plus 512 bytes.
 *   code        programs, see library_code.c and hooks/programs/modules.c.
 *
 * All are allocated in pieces of 2 MiB. limits->context_bytes includes what a new context has of them, so only the
 * excess is charged. Each is a struct gs_taken in the books. */
#include "interposer/memory/implicit/implicit.h"

#include <errno.h>

#include "interposer/memory/books/books.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/process/refused.h"

enum {
  STACK_ROUND = 16, /* the local memory of a warp is a multiple of 512 bytes */
  SYNC_LEVEL_BYTES = 860000000,
  LAUNCH_BYTES = 4096 + 512
};

static uint64_t pieces(uint64_t bytes) { return bytes / GS_DEVICE_PAGE + (bytes % GS_DEVICE_PAGE != 0); }

static uint64_t resident_threads(int ordinal) {
  uint64_t *known = &gs_process->resident_threads[ordinal], threads = __atomic_load_n(known, __ATOMIC_RELAXED);
  int count = 0, each = 0;
  if (threads)
    return threads;
  CUdevice device = gs_device_of(ordinal);
  if (gs_real.cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
      gs_real.cuDeviceGetAttribute(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) != CUDA_SUCCESS ||
      count <= 0 || each <= 0)
    return 0;
  threads = (uint64_t)count * (uint64_t)each;
  __atomic_store_n(known, threads, __ATOMIC_RELAXED);
  return threads;
}

static uint64_t stack_bytes(int ordinal, uint64_t per_thread) {
  uint64_t each = gs_round_up(per_thread, STACK_ROUND);
  return pieces(each * resident_threads(ordinal)) * GS_DEVICE_PAGE;
}

static uint64_t key_of(CUcontext context, uint32_t what) { return (uintptr_t)context + what; }

/* ---- the entries ------------------------------------------------------------------------------------------------- */

/* The pieces that a buffer takes for a value of its limit. */
static uint64_t buffer_pieces(uint32_t what, uint64_t value) {
  uint64_t each = what == GS_IMPLICIT_SYNC_DEPTH ? SYNC_LEVEL_BYTES : what == GS_IMPLICIT_LAUNCHES ? LAUNCH_BYTES : 1;
  return pieces(value > UINT64_MAX / each ? UINT64_MAX - GS_DEVICE_PAGE : value * each);
}

/* The context's initial value; the context is current, and its limit unchanged so far. */
static uint32_t beginning(uint32_t what) {
  size_t value = 0;
  if (what == GS_IMPLICIT_CODE || gs_real.cuCtxGetLimit(&value, (CUlimit)what) != CUDA_SUCCESS)
    return 0;
  uint64_t units = what == GS_IMPLICIT_STACK ? value : buffer_pieces(what, value);
  return units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
}

static bool make_entry(CUcontext context, int ordinal, uint32_t what) {
  struct gs_table *all = &gs_books()->taken;
  struct gs_taken fresh;
  if (gs_table_copy(all, key_of(context, what), &fresh))
    return true;
  if (!gs_table_room(all, 1))
    return false;
  fresh = (struct gs_taken){
      .key = key_of(context, what), .began = beginning(what), .context = gs_context_owner(context), .ordinal = ordinal};
  gs_table_lock(all);
  if (!gs_table_find(all, fresh.key))
    gs_table_add(all, &fresh);
  gs_table_unlock(all);
  return true;
}

/* Called with implicit_lock held: entries change only here, except that they are removed with their context. */
static bool read_entry(CUcontext context, uint32_t what, struct gs_taken *out) {
  return gs_table_copy(&gs_books()->taken, key_of(context, what), out);
}

static bool write_entry(const struct gs_taken *changed) { return gs_table_replace(&gs_books()->taken, changed); }

/* Bytes beyond those of a new context, for a value of the driver's limit. */
static uint64_t bytes_above(const struct gs_taken *entry, uint32_t what, uint64_t value) {
  uint64_t from, to;
  if (what == GS_IMPLICIT_STACK) {
    from = stack_bytes(entry->ordinal, entry->began);
    to = stack_bytes(entry->ordinal, value < GS_STACK_MAX ? value : GS_STACK_MAX);
  } else {
    from = (uint64_t)entry->began * GS_DEVICE_PAGE;
    to = buffer_pieces(what, value) * GS_DEVICE_PAGE;
  }
  return to > from ? to - from : 0;
}

/* 0, or as gs_reserve_here. With implicit_lock held. */
static int begin_growth(struct gs_growing *growing, struct gs_taken *entry, uint64_t value) {
  growing->bytes = bytes_above(entry, growing->what, value);
  growing->grows = growing->what != GS_IMPLICIT_STACK || growing->bytes > entry->sure;
  if (!growing->grows)
    return 0;
  int rc = growing->bytes > entry->bytes ? gs_reserve_here(entry->ordinal, growing->bytes - entry->bytes) : 0;
  growing->grows = rc == 0;
  if (rc < 0)
    return rc;
  entry->bytes = growing->bytes > entry->bytes ? growing->bytes : entry->bytes;
  entry->calls++;
  write_entry(entry);
  return 0;
}

CUresult gs_implicit_begin(struct gs_growing *growing, CUcontext context, int ordinal, uint32_t what, uint64_t value) {
  struct gs_patience patience = {0};
  struct gs_taken entry;
  int rc;
  *growing = (struct gs_growing){.context = context, .what = what};
  if (!make_entry(context, ordinal, what))
    return CUDA_ERROR_OUT_OF_MEMORY;
  do { /* waits without the lock; the entry may go with its context meanwhile */
    growing->grows = false;
    gs_lock(&gs_process->implicit_lock);
    rc = read_entry(context, what, &entry) ? begin_growth(growing, &entry, value) : 0;
    gs_unlock(&gs_process->implicit_lock);
  } while (rc == -EAGAIN && gs_room_await(&patience));
  return gs_refused(rc < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

/* Makes the context current if it is not, because `beginning` queries the current one. */
CUresult gs_stack_begin(struct gs_growing *growing, CUcontext context, int ordinal, uint64_t stack) {
  CUcontext popped, current = gs_owner_current();
  bool pushed = context != current && gs_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  CUresult result = gs_implicit_begin(growing, context, ordinal, GS_IMPLICIT_STACK, stack);
  if (pushed)
    gs_real.cuCtxPopCurrent_v2(&popped);
  return result;
}

void gs_implicit_end(const struct gs_growing *growing, bool taken) {
  struct gs_taken entry;
  uint64_t rest = 0;
  if (!growing->grows)
    return;
  gs_lock(&gs_process->implicit_lock);
  if (read_entry(growing->context, growing->what, &entry)) {
    bool keeps = growing->what == GS_IMPLICIT_STACK && growing->bytes < entry.sure;
    if (taken && !keeps)
      entry.sure = growing->bytes;
    if (entry.calls > 0 && --entry.calls == 0) {
      rest = entry.bytes - entry.sure;
      entry.bytes = entry.sure;
    }
    if (!write_entry(&entry))
      rest = 0; /* it was removed with its context */
  }
  gs_give_back(entry.ordinal, rest);
  gs_unlock(&gs_process->implicit_lock);
}

/* ---- code: as many pieces as the sum of all images needs --------------------------------------------------------- */

/* 0, or as gs_reserve_here. With implicit_lock held. */
static int take_code(struct gs_taken *entry, uint64_t bytes) {
  uint64_t want = pieces(entry->sure + bytes) * GS_DEVICE_PAGE;
  int rc = want > entry->bytes ? gs_reserve_here(entry->ordinal, want - entry->bytes) : 0;
  if (rc < 0)
    return rc;
  entry->sure += bytes;
  entry->bytes = want;
  write_entry(entry);
  return 0;
}

CUresult gs_code_take(CUcontext context, int ordinal, uint64_t bytes) {
  struct gs_patience patience = {0};
  struct gs_taken entry;
  int rc;
  if (!make_entry(context, ordinal, GS_IMPLICIT_CODE))
    return CUDA_ERROR_OUT_OF_MEMORY;
  do {
    gs_lock(&gs_process->implicit_lock);
    rc = read_entry(context, GS_IMPLICIT_CODE, &entry) ? take_code(&entry, bytes) : 0;
    gs_unlock(&gs_process->implicit_lock);
  } while (rc == -EAGAIN && gs_room_await(&patience));
  return gs_refused(rc < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

void gs_code_give(CUcontext context, uint64_t bytes) {
  struct gs_taken entry;
  gs_lock(&gs_process->implicit_lock);
  if (read_entry(context, GS_IMPLICIT_CODE, &entry)) {
    uint64_t before = entry.bytes;
    entry.sure -= bytes < entry.sure ? bytes : entry.sure;
    entry.bytes = pieces(entry.sure) * GS_DEVICE_PAGE;
    if (write_entry(&entry))
      gs_give_back(entry.ordinal, before - entry.bytes);
  }
  gs_unlock(&gs_process->implicit_lock);
}
