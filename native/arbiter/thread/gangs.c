/* Gangs in the arbiter's thread: the decisions of core/gangs.c, and the cuts of their ranks. */
#include "arbiter/thread/state.h"

bool arbiter_run_gangs(gs_arbiter *a, uint64_t now) {
  struct gs_gang_decision decisions[GS_GANG_DECISIONS];
  uint32_t again;
  for (int32_t g = 0; g < GS_ARBITER_MAX_GRANTS; g++)
    if (a->grant[g].present && a->grant[g].cuts)
      arbiter_observe(a, g, now);
  int n = gs_gangs_step(a->gangs, a->core, now, decisions, &again, &a->gangs_due_ns);
  for (int i = 0; i < n; i++)
    arbiter_carry_out(a, decisions[i].device, &decisions[i].core, now);
  for (uint32_t d = 0; d < GS_ARBITER_MAX_DEVICES; d++)
    if (again & UINT32_C(1) << d)
      a->due_ns[d] = now;
  return again != 0;
}

void arbiter_follow_gangs(gs_arbiter *a, uint64_t now) {
  for (int32_t g = 0; g < GS_ARBITER_MAX_GRANTS; g++) {
    struct entry *e = &a->grant[g];
    bool drained = true;
    uint64_t next;
    if (!e->present || !e->cuts)
      continue;
    for (uint32_t o = 0; o < e->ndevices; o++)
      drained = drained && !gs_core_undrained_since(a->core[e->device[o]], g);
    bool knew = drained, held = gs_gangs_held(a->gangs, g);
    arbiter_wake_cut(a, e, arbiter_follow_ranks(e, held, &drained, now, &next));
    for (uint32_t o = 0; o < e->ndevices && knew && !drained && !held; o++)
      gs_core_gang_clear_drained(a->core[e->device[o]], g, now);
    if (next < a->gangs_due_ns)
      a->gangs_due_ns = next;
  }
}
