#include <errno.h>

#include "interposer/process/join.h"
#include "interposer/process/process.h"
#include "interposer/process/trace.h"

/* Set while this thread joins: CUDA calls that the driver makes meanwhile are not the program's. */
GS_TLS bool joining;

bool gs_enter_slow(CUresult *result) {
  *result = CUDA_SUCCESS;
  if (joining)
    return false;
  struct gs_process *state = gs_process_own();
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
