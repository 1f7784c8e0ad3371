/* This process as gpushare sees it: not joined, joined, or refused. */
#include "interposer/process/process.h"

#include <errno.h>
#include <sys/mman.h>

#include "interposer/process/join.h"
#include "interposer/process/trace.h"

static struct gs_process nobody;
struct gs_process *gs_process = &nobody;

/* Set while this thread joins: whatever the driver calls meanwhile is not the program's. */
GS_TLS bool joining;

static struct gs_process *own_state(void) {
  struct gs_process *state = __atomic_load_n(&gs_process, __ATOMIC_ACQUIRE);
  if (state != &nobody)
    return state;
  struct gs_process *fresh = gs_private_map(sizeof *fresh);
  if (!fresh)
    return NULL;
  if (!__atomic_compare_exchange_n(&gs_process, &state, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    munmap(fresh, sizeof *fresh);
    return state;
  }
  return fresh;
}

bool gs_enter_slow(CUresult *result) {
  *result = CUDA_SUCCESS;
  if (joining)
    return false;
  struct gs_process *state = own_state();
  if (!state) {
    *result = CUDA_ERROR_SYSTEM_NOT_READY;
    return false;
  }
  uint32_t joined = __atomic_load_n(&state->joined, __ATOMIC_ACQUIRE);
  if (joined == GS_JOIN_NOT_YET) {
    int saved = errno;
    joining = true;
    gs_lock(&state->join_lock);
    joined = __atomic_load_n(&state->joined, __ATOMIC_ACQUIRE);
    if (joined == GS_JOIN_NOT_YET) {
      joined = gs_join(state);
      __atomic_store_n(&state->joined, joined, __ATOMIC_RELEASE);
      if (joined == GS_JOINED)
        gs_trace_joined();
    }
    gs_unlock(&state->join_lock);
    joining = false;
    errno = saved;
  }
  if (joined == GS_JOIN_FAILED)
    *result = CUDA_ERROR_SYSTEM_NOT_READY;
  return joined == GS_JOINED;
}
