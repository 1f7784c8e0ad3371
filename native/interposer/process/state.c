#include "interposer/process/process.h"

#include <sys/mman.h>

static struct gs_process nobody;
struct gs_process *gs_process = &nobody;

struct gs_process *gs_process_own(void) {
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
