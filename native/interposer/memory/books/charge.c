#include "interposer/memory/books/charge.h"

#include <errno.h>

#include "interposer/process/trace.h"
#include "page/page.h"
#include "interposer/time/timing.h"

typedef int claim(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes, bool patient);

static int claim_now(claim *claims, int ordinal, uint64_t bytes, bool patient) {
  struct gs_process *state = gs_process;
  if (ordinal < 0 || (uint32_t)ordinal >= state->ndevices)
    return -ENOMEM;
  struct gs_pages pages = {state->limits, state->usage};
  gs_lock(&state->reserve_lock[ordinal]);
  int rc = claims(&pages, state->slot_index, (uint32_t)ordinal, bytes, patient);
  gs_unlock(&state->reserve_lock[ordinal]);
  return rc;
}

int gs_reserve_now(int ordinal, uint64_t bytes, bool patient) {
  return claim_now(gs_page_reserve, ordinal, bytes, patient);
}

int gs_grow_now(int ordinal, uint64_t bytes, bool patient) { return claim_now(gs_page_grow, ordinal, bytes, patient); }

void gs_grown(int ordinal, uint64_t bytes, uint64_t taken) {
  struct gs_process *state = gs_process;
  if (bytes == 0 || ordinal < 0)
    return;
  struct gs_pages pages = {state->limits, state->usage};
  gs_page_grown(&pages, state->slot_index, (uint32_t)ordinal, bytes, taken);
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

void gs_give_back(int ordinal, uint64_t bytes) {
  struct gs_process *state = gs_process;
  if (bytes == 0 || ordinal < 0)
    return;
  struct gs_pages pages = {state->limits, state->usage};
  gs_page_give_back(&pages, state->slot_index, (uint32_t)ordinal, bytes);
}
