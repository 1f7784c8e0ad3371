/* What the exported functions (generated sim_exports.c) do around each call: count it, and wait while the process is
 * locked for a checkpoint; refuse it in a context with a fault; and stop it for a test (sim_test.h). */
#ifndef SIM_HOLDS_H
#define SIM_HOLDS_H

#include <stdbool.h>

#include "sim/api/sim_test.h"
#include "sim/model/context.h"

void sim_await_unlock(const struct sim_lane *gate);

/* Returns what sim_leave needs. */
static inline struct sim_lane *sim_enter(void) {
  struct sim_lane **named = __atomic_load_n(&sim_gate, __ATOMIC_ACQUIRE);
  struct sim_lane *gate = named ? __atomic_load_n(named, __ATOMIC_ACQUIRE) : NULL;
  while (gate) {
    __atomic_add_fetch(&gate->calls, 1, __ATOMIC_SEQ_CST);
    if (__builtin_expect(__atomic_load_n(&gate->locked, __ATOMIC_SEQ_CST) == 0, 1))
      break;
    __atomic_sub_fetch(&gate->calls, 1, __ATOMIC_SEQ_CST);
    sim_await_unlock(gate);
  }
  return gate;
}

static inline void sim_leave(struct sim_lane *gate) {
  if (gate)
    __atomic_sub_fetch(&gate->calls, 1, __ATOMIC_SEQ_CST);
}

/* What the current context's work did wrong; CUDA_SUCCESS: nothing. */
static inline CUresult sim_fault(void) {
  bool any = __builtin_expect(__atomic_load_n(&sim_context_faults, __ATOMIC_ACQUIRE), 0);
  return any ? sim_ctx_current_fault() : CUDA_SUCCESS;
}

extern unsigned sim_holds; /* number of holds that have not stopped a call yet */

static inline bool sim_holds_any(void) {
  return __builtin_expect(__atomic_load_n(&sim_holds, __ATOMIC_RELAXED) != 0, 0);
}

/* Stops the calling thread if a hold matches the call. name: the exported function; base: its name without version. */
void sim_hold_here(const char *name, const char *base, enum gs_sim_when when);

#endif
