/* Calls that a test stops (sim_test.h), as seen by the exported functions (generated sim_exports.c). */
#ifndef SIM_HOLDS_H
#define SIM_HOLDS_H

#include <stdbool.h>

#include "sim/api/sim_test.h"

extern unsigned sim_holds; /* number of holds that have not stopped a call yet */

static inline bool sim_holds_any(void) {
  return __builtin_expect(__atomic_load_n(&sim_holds, __ATOMIC_RELAXED) != 0, 0);
}

/* Stops the calling thread if a hold matches the call. name: the exported function; base: its name without version. */
void sim_hold_here(const char *name, const char *base, enum gs_sim_when when);

#endif
