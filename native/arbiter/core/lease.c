/* The states of a lease: it is granted, left unused, revoked, and drains. step.c, gang.c and gangs.c decide about
 * it. */
#include "arbiter/core/state.h"

void core_give_lease(struct gs_core *core, struct core_grant *g) {
  if (!core_runs(g, core->now_ns))
    g->stint = (struct core_stint){.metered_ns = g->view.busy_ns};
  g->metered_at_lease_ns = g->view.busy_ns;
  g->held = true;
  g->alongside = g->beside;
  g->rests = g->yields = false;
  g->due_ns = 0;
  g->level = core_level(core, g);
  g->lease_ns = core->now_ns;
  g->launches_at_lease = g->view.launches;
  g->revoked_ns = g->overrun_ns = 0;
  g->engaged_ns = core_engaged(g, core->now_ns) ? core->now_ns : 0;
  g->late = g->was_waiting = g->asleep = false;
  g->quiet_ns = g->over_ns = 0;
  core->idle_look_ns = IDLE_LOOK_MIN_NS;
}

void core_start_term(struct gs_core *core, int32_t grant) {
  core->phase = CORE_HELD;
  core->holder = grant;
  core->term_end_ns = core->now_ns + core_term(core);
}

void core_lease(struct gs_core *core, int32_t grant, int32_t previous, struct decisions *d) {
  struct core_grant *g = &core->grant[grant];
  uint64_t waited = core_note_lease(core, grant, previous);
  g->wake_ns = 0;
  core_give_lease(core, g);
  g->stats.leases++;
  core->stats.leases++;
  emit(d, GS_CORE_LEASE, grant, previous, waited);
}

void core_note_miss(struct gs_core *core, struct core_grant *h) {
  /* The first time, the reason may be that the machine is busy. After that the pause doubles, starting at the pickup
   * time. */
  uint64_t pause = h->misses ? core_min(PICKUP_NS << core_min(h->misses - 1, 12), SILENCE_MAX_NS) : 0;
  h->misses++;
  h->missed_ns = core->now_ns;
  h->retry_ns = core->now_ns + pause;
  if (!core_shared(core)) /* else other holders used the device */
    core->stats.idle_with_waiters_ns += core->now_ns - h->lease_ns;
}

void core_revoke(struct gs_core *core, int32_t grant, int32_t candidate, bool idle, struct decisions *d) {
  struct core_grant *h = &core->grant[grant];
  uint64_t now = core->now_ns;
  bool deep = !h->company || now - h->contended_ns < BOUND_CHANGE_NS;
  core_note_revoke(core, grant, candidate, idle);
  h->held = h->alongside = h->rests = h->yields = false;
  h->revoked_ns = idle && !core_runs(h, now) ? 0 : now;
  h->late_ns = now + LATE_NS + (deep ? core->config.bound_alone_ns : core->config.bound_ns);
  h->asleep = idle;
  h->dry_ns = idle ? core_min(core_idle_since(h, now), now) : 0;
  h->stats.revokes++;
  emit(d, GS_CORE_REVOKE, grant, candidate, 0);
}

void core_end_tail(const struct gs_core *core, struct core_grant *g) {
  g->overran_ns = g->overrun_ns;
  g->revoked_ns = 0;
  g->late = false;
  if (!core_runs(g, core->now_ns) && g->view.waiting == 0)
    g->dry_ns = core_idle_since(g, core->now_ns);
}

bool core_drained(struct gs_core *core) {
  bool all = true;
  for (int i = 0; i < core->nmembers; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    if (g->revoked_ns != core->round_ns || g->asleep) /* a grant that seemed idle is not waited for */
      continue;
    if (!core_runs(g, core->now_ns))
      core_end_tail(core, g);
    else if (!g->view.drained)
      all = false;
  }
  return all;
}
