/* Contexts. Each one costs device memory beyond the program's allocations: limits->device[].context_bytes, reserved
 * before the driver creates it. Everything allocated in a context ends with it. */
#include <errno.h>

#include "hooks.h"
#include "interposer/hooks/contexts/contexts.h"

#include "interposer/memory/books/books.h"
#include "interposer/memory/implicit/kernels.h"
#include "interposer/memory/books/life.h"
#include "interposer/memory/physical/mappings.h"
#include "interposer/memory/pools/pool_blocks.h"
#include "interposer/memory/pools/pool_charge.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/os/files/files.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"
#include "interposer/process/passage/passage.h"
#include "interposer/process/refused.h"
#include "interposer/process/trace.h"
#include "interposer/residency/host.h"
#include "interposer/residency/leaving.h"
#include "interposer/time/gate/start.h"
#include "interposer/time/marks/contexts.h"

void gs_contexts_changed(uint32_t by) {
  __atomic_fetch_add(&gs_process->contexts, by, __ATOMIC_RELAXED);
  gs_kernels_forget();
}

int gs_context_reserve(CUdevice device, int *ordinal, uint64_t *bytes) {
  *ordinal = gs_device_ordinal(device);
  *bytes = *ordinal == GS_NO_DEVICE ? 0 : gs_process->limits->device[*ordinal].context_bytes;
  return *ordinal == GS_NO_DEVICE ? 0 : gs_reserve_here(*ordinal, *bytes);
}

bool gs_context_again(int reserved, CUresult result, int ordinal, struct gs_patience *patience) {
  if (reserved == -EAGAIN)
    return gs_room_await(patience);
  return reserved == 0 && ordinal != GS_NO_DEVICE &&
         gs_driver_again(result, ordinal, gs_process->limits->device[ordinal].context_bytes, patience);
}

void gs_context_gone(CUcontext context, int ordinal) {
  uint64_t held = gs_held(ordinal), bytes[GS_MAX_DEVICES];
  gs_time_context_gone(context, ordinal);
  gs_contexts_changed(UINT32_MAX);
  gs_greens_remove(context);
  gs_device_context_forget();
  gs_pools_context_gone(context);
  gs_life_context_ended(context);
  gs_buffers_context_gone(context);
  gs_books_drop_context(context, bytes);
  gs_host_context_gone(context);
  gs_movable_context_gone(context, NULL);
  for (int i = 0; i < GS_MAX_DEVICES; i++)
    gs_give_back(i, bytes[i]);
  gs_pools_settle(ordinal, true);
  gs_trace(GS_TRACE_CONTEXT_ENDED, ordinal, held, gs_held(ordinal));
}

/* Finds a context created by cuCtxCreate; false: it is not one. */
static bool created_here(CUcontext context, struct gs_ending *found) {
  struct gs_created known;
  if (!gs_table_copy(&gs_books()->contexts, (uintptr_t)context, &known))
    return false;
  *found = (struct gs_ending){context, known.ordinal, known.number};
  return true;
}

void gs_green_gone(const struct gs_green *green) {
  gs_time_context_gone(green->context, green->ordinal);
  gs_device_context_forget();
  gs_green_remove(green->context);
}

static void green_replaced(CUcontext context) {
  struct gs_green before;
  if (gs_green_find(context, &before))
    gs_green_gone(&before);
}

void gs_context_replaced(CUcontext context) {
  struct gs_ending before;
  green_replaced(context);
  if (!created_here(context, &before))
    return;
  gs_table_put(&gs_books()->replaced, &(struct gs_replaced){(uintptr_t)context});
  gs_context_gone(context, before.ordinal);
}

/* Records a context that the driver has made. begun: a call number from before the driver's call. */
static void created(CUcontext context, int ordinal, uint64_t bytes, uint64_t begun) {
  struct gs_created fresh = {.context = (uintptr_t)context, .bytes = bytes, .holders = 1, .ordinal = ordinal};
  struct gs_created before;
  gs_lock(&gs_process->gone_lock);
  green_replaced(context);
  bool again = gs_table_copy(&gs_books()->contexts, (uintptr_t)context, &before);
  fresh.number = gs_next_call();
  if (again)
    gs_table_put(&gs_books()->replaced, &(struct gs_replaced){(uintptr_t)context});
  if (again && before.number <= begun)
    gs_context_gone(context, before.ordinal);
  if (again && before.number > begun) { /* which of the two is newer is not known: they become one */
    gs_table_replace(&gs_books()->contexts, &fresh);
    gs_give_back(before.ordinal, before.bytes);
  } else {
    gs_table_put(&gs_books()->contexts, &fresh);
    gs_contexts_changed(1);
  }
  gs_unlock(&gs_process->gone_lock);
}

/* Whether contexts can be created with these flags. */
static bool flags_known(unsigned int flags) {
  unsigned int schedule = flags & CU_CTX_SCHED_MASK;
  return !(flags & ~(unsigned int)CU_CTX_FLAGS_MASK) && (schedule & (schedule - 1)) == 0;
}

/* Contexts with only some of the multiprocessors are possible only if the driver reports it. */
static bool affinity_known(const CUexecAffinityParam *params, int count, CUdevice device) {
  bool known = count >= 0 && (count == 0) == (params == NULL);
  for (int i = 0, supported; known && i < count; i++)
    known = gs_real.cuDeviceGetExecAffinitySupport(&supported, params[i].type, device) == CUDA_SUCCESS && supported;
  return known;
}

/* The error for a context that cannot be created: the driver's, if it refuses the call too, else `reason`. */
static CUresult let_refuse(CUresult result, const CUcontext *made, CUresult reason) {
  if (result != CUDA_SUCCESS)
    return result;
  gs_real.cuCtxDestroy_v2(*made); /* this driver accepts what others refuse */
  return reason;
}

/* With the reservation. */
static CUresult create(const struct gs_call *call, CUcontext *context, int ordinal, uint64_t bytes) {
  uint64_t number = gs_next_call();
  gs_settled_begin();
  uint32_t begun = gs_making_begin(&gs_books()->contexts_made);
  CUresult result = gs_call(call);
  if (ordinal != GS_NO_DEVICE && result == CUDA_SUCCESS)
    created(*context, ordinal, bytes, number);
  gs_making_end(&gs_books()->contexts_made, begun);
  gs_settled_end();
  if (result != CUDA_SUCCESS)
    gs_give_back(ordinal, bytes);
  return result;
}

/* 0, or as gs_reserve_here. */
static int reserve(const CUcontext *out, CUdevice device, int *ordinal, uint64_t *bytes) {
  struct gs_books *books = gs_books();
  *ordinal = GS_NO_DEVICE;
  *bytes = 0;
  if (!out)
    return 0; /* the driver refuses it */
  if (gs_device_ordinal(device) != GS_NO_DEVICE &&
      (!gs_table_room(&books->contexts, 1) || !gs_table_room(&books->replaced, 1)))
    return -ENOMEM;
  return gs_context_reserve(device, ordinal, bytes);
}

CUresult gs_do_context_create(const struct gs_call *call, CUcontext *context, CUdevice device, unsigned int flags,
                              const CUexecAffinityParam *affinity, int affinities) {
  struct gs_patience patience = {0};
  int ordinal = GS_NO_DEVICE, reserved = 0;
  uint64_t bytes;
  CUresult result, reason = context && gs_elsewhere(device) ? gs_refuse_elsewhere(device) : CUDA_SUCCESS;
  do {
    reserved = reason == CUDA_SUCCESS ? reserve(context, device, &ordinal, &bytes) : -EPERM;
    result = reserved == 0 ? create(call, context, ordinal, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
  } while (gs_context_again(reserved, result, ordinal, &patience));
  if (reserved < 0) {
    reason = reason == CUDA_SUCCESS ? result : reason;
    return flags_known(flags) && affinity_known(affinity, affinities, device)
               ? gs_refused(reason)
               : let_refuse(gs_call(call), context, reason);
  }
  if (ordinal == GS_NO_DEVICE)
    return result;
  if (result != CUDA_SUCCESS) {
    gs_files_mention("cuCtxCreate", result);
    return gs_refused(result);
  }
  gs_trace(GS_TRACE_CONTEXT_MADE, ordinal, bytes, gs_held(ordinal));
  gs_time_start(ordinal);
  return result;
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

void gs_context_ending(const struct gs_ending *ending) {
  gs_lock(&gs_process->events_lock[ending->ordinal]); /* waits for threads that are querying its events */
  __atomic_fetch_add(&gs_process->ending[ending->ordinal], 1, __ATOMIC_SEQ_CST);
  gs_unlock(&gs_process->events_lock[ending->ordinal]);
  gs_time_context_ending(ending->context, ending->ordinal);
  gs_device_context_forget();
}

void gs_context_ended(const struct gs_ending *ending, bool lives) {
  if (lives)
    gs_time_context_lives(ending->context, ending->ordinal);
  __atomic_fetch_sub(&gs_process->ending[ending->ordinal], 1, __ATOMIC_SEQ_CST);
}

/* Adds `by` to the number of holders of a context and returns the sum, 0 if the context has ended. The driver is not
 * asked whether a context still exists, because its behaviour with a stale handle is undocumented. With gone_lock. */
static int32_t hold(const struct gs_ending *context, int32_t by) {
  struct gs_table *table = &gs_books()->contexts;
  int32_t holders = 0;
  gs_table_lock(table);
  struct gs_created *known = gs_table_find(table, (uintptr_t)context->context);
  if (known && known->number == context->number)
    holders = known->holders += by;
  gs_table_unlock(table);
  return holders;
}

static bool is_still(void *with) {
  const struct gs_ending *ending = with;
  struct gs_ending found;
  return created_here(ending->context, &found) && found.number == ending->number;
}

/* Sets *which to the context that a call made for `ending` has ended: a different one if `ending` had ended already, or
 * was none, and the driver handed its handle out again. False: it has left the books already. With gone_lock. */
static bool ended_which(const struct gs_ending *ending, struct gs_ending *which) {
  struct gs_replaced replaced;
  if (created_here(ending->context, which) && which->number == ending->number)
    return true;
  if (gs_table_take(&gs_books()->replaced, (uintptr_t)ending->context, &replaced))
    return false;
  return created_here(ending->context, which);
}

static CUresult end_context(const struct gs_call *call, CUcontext context, bool last) {
  struct gs_ending ending = {.context = context, .ordinal = GS_NO_DEVICE}, now;
  bool began = created_here(context, &ending);
  if (began)
    gs_context_ending(&ending);
  CUresult result = gs_call(call);
  bool gone = result == CUDA_SUCCESS;
  if (gone)
    gs_making_wait(&gs_books()->contexts_made, is_still, &ending);
  gs_lock(&gs_process->gone_lock);
  bool known = gone ? ended_which(&ending, &now) : created_here(context, &now) && now.number == ending.number;
  bool lives = !gone || (known && !last && hold(&now, -1) > 0);
  if (known && !lives)
    gs_context_gone(context, now.ordinal);
  gs_unlock(&gs_process->gone_lock);
  if (began)
    gs_context_ended(&ending, known && lives);
  return result;
}

CUresult gs_do_context_end(const struct gs_call *call, CUcontext context, bool last) {
  gs_settled_begin();
  CUresult result = end_context(call, context, last);
  gs_settled_end();
  return result;
}

CUresult gs_cuCtxAttach(CUcontext *pctx, unsigned int flags) {
  CUcontext context = NULL;
  struct gs_ending held;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuCtxAttach(pctx, flags) : result;
  bool known = gs_real.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context && created_here(context, &held);
  if (!known)
    return gs_real.cuCtxAttach(pctx, flags);
  gs_lock(&gs_process->gone_lock);
  known = hold(&held, 1) > 0;
  gs_unlock(&gs_process->gone_lock);
  result = gs_real.cuCtxAttach(pctx, flags);
  if (result == CUDA_SUCCESS || !known)
    return result;
  struct gs_ending now;
  gs_lock(&gs_process->gone_lock);
  /* the last other holder may have let go meanwhile, leaving the end to this call */
  if (hold(&held, -1) <= 0 && created_here(context, &now) && now.number == held.number)
    gs_context_gone(context, held.ordinal);
  gs_unlock(&gs_process->gone_lock);
  return result;
}
