/* The grant's memory as this process takes and gives it. */
#include "interposer/memory/books.h"

#include <errno.h>

#include "interposer/process/trace.h"
#include "page/page.h"
#include "interposer/memory/pool_charge.h"
#include "interposer/time/timing.h"

int gs_reserve_now(int ordinal, uint64_t bytes) {
  struct gs_process *state = gs_process;
  if (ordinal < 0 || (uint32_t)ordinal >= state->ndevices)
    return -ENOMEM;
  struct gs_pages pages = {state->limits, state->usage};
  gs_lock(&state->reserve_lock[ordinal]);
  int rc = gs_page_reserve(&pages, state->slot_index, (uint32_t)ordinal, bytes);
  gs_unlock(&state->reserve_lock[ordinal]);
  return rc;
}

static void trace_no_room(int ordinal, uint64_t bytes) {
  if (ordinal < 0 || (uint32_t)ordinal >= gs_process->ndevices)
    return;
  struct gs_pages pages = {gs_process->limits, gs_process->usage};
  struct gs_memory memory = gs_page_memory(&pages, (uint32_t)ordinal, gs_process->total_bytes[ordinal]);
  gs_trace(GS_TRACE_NO_ROOM, ordinal, bytes, memory.free);
}

int gs_reserve(int ordinal, uint64_t bytes) {
  int rc = gs_reserve_now(ordinal, bytes);
  if (rc < 0 && ordinal >= 0 && (uint32_t)ordinal < gs_process->ndevices &&
      bytes <= gs_process->limits->device[ordinal].memory_bytes) {
    for (uint32_t i = 0; i < gs_process->ndevices; i++) /* freed in a stream of another device */
      if ((int)i != ordinal && __atomic_load_n(&gs_process->frees[i], __ATOMIC_RELAXED))
        gs_frees_settle((int)i);
    gs_memory_synced(ordinal);
    rc = gs_reserve_now(ordinal, bytes);
  }
  if (rc < 0)
    trace_no_room(ordinal, bytes);
  return rc;
}

CUresult gs_no_room(void) {
  const size_t more_than_any_device_has = (size_t)1 << 62;
  CUdeviceptr address;
  if (!gs_time() || __atomic_load_n(&gs_time()->captures, __ATOMIC_ACQUIRE) == 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = gs_real.cuMemAlloc_v2(&address, more_than_any_device_has);
  return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

void gs_charge(int ordinal, uint64_t bytes) {
  struct gs_process *state = gs_process;
  if (bytes == 0 || ordinal < 0)
    return;
  __atomic_fetch_add(&state->slot->device[ordinal].memory_bytes, bytes, __ATOMIC_SEQ_CST);
  gs_trace(GS_TRACE_OVERDRAWN, ordinal, bytes, gs_held(ordinal));
}

void gs_memory_synced(int ordinal) {
  if (ordinal < 0)
    return;
  if (__atomic_load_n(&gs_process->frees[ordinal], __ATOMIC_RELAXED))
    gs_frees_settle(ordinal);
  if (__atomic_load_n(&gs_process->pools[ordinal], __ATOMIC_RELAXED))
    gs_pools_settle(ordinal, false);
}

void gs_give_back(int ordinal, uint64_t bytes) {
  struct gs_process *state = gs_process;
  if (bytes == 0 || ordinal < 0)
    return;
  struct gs_pages pages = {state->limits, state->usage};
  gs_page_give_back(&pages, state->slot_index, (uint32_t)ordinal, bytes);
}
