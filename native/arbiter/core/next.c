/* When the core has to be stepped again if nothing happens. */
#include "arbiter/core/state.h"

static uint64_t when_credit(const struct gs_core *core, const struct core_grant *g) {
  int64_t rate = core_rate(core, g), missing = core_floor(core) - g->credit;
  if (rate == 0)
    return UINT64_MAX;
  return missing <= 0 ? core->now_ns : core->now_ns + (uint64_t)(missing / rate) + 1;
}

static uint64_t next_for_waiter(const struct gs_core *core, const struct core_grant *g) {
  if (core_silent(core, g))
    return UINT64_MAX; /* it is checked as a tail */
  if (g->limit_reached) {
    int64_t missing = core_limit_resume(core, g) - g->allowance;
    uint64_t limit = g->share.limit_milli ? g->share.limit_milli : 1;
    return core->now_ns + (missing > 0 ? (uint64_t)missing / limit : 0) + 1;
  }
  if (g->retry_ns > core->now_ns)
    return g->retry_ns;
  if (g->beside) /* it depends on its own credit, not on whether others wait */
    return core_max(when_credit(core, g), core->now_ns + core->config.lease_ns / 4);
  if (g->due_ns || core->phase != CORE_HELD || core->grant[core->holder].level == LEVEL_GUARANTEE)
    return UINT64_MAX;
  return core_max(when_credit(core, g), core->grant[core->holder].lease_ns + core->config.lease_ns / 4);
}

static uint64_t next_for_holder(const struct gs_core *core, const struct core_grant *h, bool shared) {
  uint64_t next = UINT64_MAX, now = core->now_ns;
  if (h->share.limit_milli < 1000)
    next =
        now + core_max((uint64_t)(h->allowance > 0 ? h->allowance : 0) / (1000 - h->share.limit_milli), LIMIT_LOOK_NS);
  if (shared) /* to measure what each of them fills, and whether one takes too much */
    next = core_min(next, now + core->config.lease_ns);
  if (h->beside)
    next = core_min(next, h->lease_ns + core->config.lease_ns);
  if (h->rests) /* a holder does not ring the bell when it has work again */
    next = core_min(next, now + IDLE_LOOK_MAX_NS);
  if (core->wanted && h->view.waiting && h->view.launches == h->launches_at_lease && h->lease_ns + PICKUP_NS > now)
    next = core_min(next, h->lease_ns + PICKUP_NS);
  return next;
}

static uint64_t next_idle(struct gs_core *core) {
  uint64_t idle = UINT64_MAX, now = core->now_ns;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *h = &core->grant[core->members[i]];
    if (core_main(h)) /* what runs for longer than expected rings no bell when it ends */
      idle = core_min(idle, core_idle_since(h, now) + (uint64_t)core_patience(core, h));
  }
  if (idle >= now + core->idle_look_ns)
    return idle;
  idle = now + core->idle_look_ns;
  core->idle_look_ns = core_min(2 * core->idle_look_ns, IDLE_LOOK_MAX_NS);
  return idle;
}

uint64_t core_next_look(struct gs_core *core) {
  uint64_t next = UINT64_MAX;
  bool shared = core_shared(core);
  if (core->alongside_left)
    return core->now_ns + 1;
  if (core->phase == CORE_HELD && core->wanted)
    next = core->term_end_ns;
  if (core->phase == CORE_DRAINING && core->called < 0)
    next = core->round_ns + core->config.revoke_overlap_ns;
  else if (core->phase == CORE_HELD && core->had_waiters)
    next = core_min(next_idle(core), core->term_end_ns);
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    if (g->held)
      next = core_min(next, next_for_holder(core, g, shared));
    if (g->was_waiting)
      next = core_min(next, next_for_waiter(core, g));
    if (g->revoked_ns && !(core->phase == CORE_DRAINING && g->revoked_ns == core->round_ns))
      next = core_min(next, g->late ? core_max(g->revoked_ns + TAIL_MAX_NS, core->now_ns + TAIL_LOOK_NS) : g->late_ns);
    /* When it no longer counts as a neighbour, others may be alone. */
    bool fading = g->last_ran_ns && core->now_ns < g->last_ran_ns + RECENT_NS && !g->held && !g->was_waiting;
    if (fading && core->nmembers > 1)
      next = core_min(next, g->last_ran_ns + RECENT_NS);
  }
  return core_max(next, core->now_ns + 1);
}
