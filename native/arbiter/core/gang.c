/* Leases that depend on more than this device: those of gangs, which gangs.c grants and revokes on all devices at once,
 * and those held alongside others, however much of the device they fill. */
#include "arbiter/core/state.h"

/* ---- gangs, as this device sees them ---- */

/* Whether c, which has precedence among the waiting grants, would get the device now. */
static bool would_get(const struct gs_core *core, const struct core_grant *c) {
  if (core->phase != CORE_HELD)
    return core->phase == CORE_FREE;
  const struct core_grant *h = &core->grant[core->holder];
  if (core_fits_beside(core, c) || core_holder_idle(core, h, core->now_ns) || core_unused(core, h))
    return true;
  return core_preempts(core, c, h) || (core->now_ns >= core->term_end_ns && core_goes_before(core, c, h));
}

void core_mark_due(struct gs_core *core, bool ignore_backoff) {
  for (;;) {
    int32_t best = core_pick(core, ignore_backoff);
    if (best < 0 || !core->grant[best].gang || !would_get(core, &core->grant[best]))
      return;
    core->grant[best].due_ns = core->now_ns;
  }
}

bool core_asks_gangs(struct gs_core *core) {
  bool due = false;
  for (int i = 0; i < core->nmembers; i++)
    due = due || core->grant[core->members[i]].due_ns;
  core->asks = due && core->asked_ns != core->now_ns;
  core->asked_ns = core->now_ns;
  return core->asks;
}

int gs_core_asks_gangs(const gs_core *core) { return core->asks; }

void core_rest(struct core_grant *g) {
  g->rests = true;
  g->launches_at_rest = g->view.launches;
}

static bool gang_leads(const struct gs_core *core) { return gs_core_gang_main(core, -1) >= 0; }

static void resume_gang(struct gs_core *core, int32_t gang, struct decisions *d) {
  struct core_grant *g = &core->grant[gang];
  bool within = core->now_ns < g->lease_ns + core->config.lease_ns;
  if (core_fits_beside(core, g)) {
    g->rests = false;
    core->holder = core_lead(core);
  } else if (gang_leads(core) || (!within && !core_goes_before(core, g, &core->grant[core->holder]))) {
    g->yields = true;
    g->yields_to = core->holder;
  } else {
    for (int i = 0; i < core->nmembers; i++)
      if (core_main(&core->grant[core->members[i]]))
        core_revoke(core, core->members[i], gang, false, d);
    g->rests = false;
    core->holder = gang; /* it already has its lease; what the others still run is their tail */
    core->term_end_ns = core_max(g->lease_ns + core->config.lease_ns, core->now_ns + core->config.lease_ns / 4);
  }
}

void core_wake_resting_gangs(struct gs_core *core, struct decisions *d) {
  for (int i = 0; i < core->nmembers; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    bool has_work = g->view.waiting || g->view.busy_until_ns > core->now_ns || g->view.launches != g->launches_at_rest;
    if (!g->held || !g->rests || g->yields)
      continue;
    if (core->phase == CORE_FREE) {
      g->rests = false;
      core_start_term(core, core->members[i]);
    } else if (has_work && core->phase == CORE_HELD) {
      resume_gang(core, core->members[i], d);
    }
  }
}

enum gs_core_call gs_core_gang_callable(const gs_core *core, int32_t grant, uint64_t *due_ns, uint64_t *next_ns) {
  const struct core_grant *g = &core->grant[grant];
  *due_ns = g->due_ns;
  *next_ns = UINT64_MAX;
  if (!g->due_ns)
    return GS_CORE_NOT_DUE;
  if (core->phase == CORE_DRAINING || core->called >= 0)
    return GS_CORE_DUE; /* until the end of the overlap at the latest, when the core is stepped */
  if (core->phase == CORE_FREE || core_fits_beside(core, g))
    return GS_CORE_CALLABLE;
  const struct core_grant *h = &core->grant[core->holder];
  if (core_holder_idle(core, h, core->now_ns) || core_unused(core, h) || core_goes_before(core, g, h))
    return GS_CORE_CALLABLE;
  /* The holder has precedence over the gang and continues. But other devices are not synchronised with this one, so the
   * gang is eventually called even if others have precedence. */
  *next_ns = g->due_ns + DUE_LEASES_MAX * core->config.lease_ns;
  return core->now_ns >= *next_ns ? GS_CORE_CALLABLE : GS_CORE_DUE;
}

int gs_core_gang_fits(const gs_core *core, int32_t grant) {
  return core->phase == CORE_HELD && core_fits_beside(core, &core->grant[grant]);
}

int gs_core_gang_call(gs_core *core, int32_t grant, uint64_t now_ns, struct gs_core_decision *out) {
  struct decisions d = {out, 0};
  core_advance(core, now_ns);
  core->called = grant;
  if (core->phase == CORE_DRAINING || gs_core_gang_fits(core, grant))
    return 0;
  if (core->phase == CORE_HELD) {
    bool idle = core_holder_idle(core, &core->grant[core->holder], core->now_ns) && !core_joined(core);
    if (core_unused(core, &core->grant[core->holder]))
      core_note_miss(core, &core->grant[core->holder]);
    for (int i = 0; i < core->nmembers; i++)
      if (core_main(&core->grant[core->members[i]]))
        core_revoke(core, core->members[i], grant, idle, &d);
  }
  if (core->phase == CORE_FREE) /* the gang gets it when its other devices have drained */
    core->holder = core->freed_ns == core->now_ns ? core->previous : -1;
  core->phase = CORE_DRAINING;
  core->round_ns = core->now_ns;
  core_write_receipts(core, &d);
  return d.n;
}

void gs_core_gang_uncall(gs_core *core, int32_t grant) {
  if (core->called == grant)
    core->called = -1;
}

int gs_core_gang_ready(gs_core *core, int32_t grant, uint64_t *next_ns) {
  *next_ns = UINT64_MAX;
  if (core->called != grant)
    return 0;
  if (core->phase != CORE_DRAINING)
    return 1;
  *next_ns = core->round_ns + core->config.revoke_overlap_ns;
  return core_drained(core) || core->now_ns >= *next_ns;
}

int gs_core_gang_lease(gs_core *core, int32_t grant, int beside, uint64_t now_ns, struct gs_core_decision *out) {
  struct decisions d = {out, 0};
  core_advance(core, now_ns);
  struct core_grant *g = &core->grant[grant];
  if (beside) {
    uint64_t undrained = g->revoked_ns ? core->now_ns - g->revoked_ns : 0;
    core_lease(core, grant, -1, &d);
    d.n = 0;
    emit(&d, GS_CORE_LEASE_BESIDE, grant, core->holder, undrained);
    g->alongside = true;
    g->level = g->share.guarantee_milli ? LEVEL_GUARANTEE : LEVEL_SURPLUS; /* paid as the tail that it continues */
    core_write_receipts(core, &d);
    return d.n;
  }
  int32_t previous = core->phase == CORE_DRAINING ? core->holder : -1;
  if (previous >= 0)
    emit(&d, GS_CORE_HANDOVER, previous, grant, core->now_ns - core->round_ns);
  core_lease(core, grant, previous, &d);
  core->called = -1;
  if (core->phase == CORE_HELD) {
    core->holder = core_lead(core);
  } else {
    core_start_term(core, grant);
    for (int i = 0; i < core->nmembers; i++) /* gangs that were due are to be compared with this holder */
      core->grant[core->members[i]].due_ns = 0;
  }
  core_write_receipts(core, &d);
  return d.n;
}

int gs_core_gang_revoke(gs_core *core, int32_t grant, int32_t other, int idle, uint64_t now_ns,
                        struct gs_core_decision *out) {
  struct decisions d = {out, 0};
  core_advance(core, now_ns);
  bool main = core_main(&core->grant[grant]);
  core_revoke(core, grant, other, idle, &d);
  core_write_receipts(core, &d);
  if (!main || core->phase != CORE_HELD)
    return d.n;
  int32_t lead = core_lead(core);
  core->holder = lead < 0 ? grant : lead;
  if (lead < 0) {
    core->phase = CORE_DRAINING;
    core->round_ns = core->now_ns;
  }
  return d.n;
}

int gs_core_gang_yields(const gs_core *core, int32_t grant, int32_t *other) {
  const struct core_grant *g = &core->grant[grant];
  *other = g->yields ? g->yields_to : -1;
  return g->yields;
}

int gs_core_gang_idle(const gs_core *core, int32_t grant, int *rests) {
  const struct core_grant *g = &core->grant[grant];
  *rests = g->rests;
  return g->held && core_holder_idle(core, g, core->now_ns);
}

void gs_core_gang_rest(gs_core *core, int32_t grant) {
  core_rest(&core->grant[grant]);
  core->holder = core_lead(core);
  if (core->holder < 0)
    core->phase = CORE_FREE;
}

int32_t gs_core_gang_main(const gs_core *core, int32_t after) {
  int32_t found = -1;
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    if (core->grant[m].gang && core_main(&core->grant[m]) && m > after && (found < 0 || m < found))
      found = m;
  }
  return found;
}

int gs_core_gang_wants(const gs_core *core, int32_t grant) {
  return core_wants(&core->grant[grant]) && !core->grant[grant].limit_reached;
}

void gs_core_gang_clear_drained(gs_core *core, int32_t grant, uint64_t now_ns) {
  struct core_grant *g = &core->grant[grant];
  core_advance(core, now_ns);
  g->revoked_ns = core->now_ns;
  g->late_ns = core->now_ns + LATE_NS + core->config.bound_ns;
}

int gs_core_gang_solvent(const gs_core *core, int32_t grant) {
  const struct core_grant *g = &core->grant[grant];
  return g->view.spins && g->share.guarantee_milli && g->credit > -(int64_t)AGAIN_DEBT_NS * CREDIT_PER_NS;
}

uint64_t gs_core_undrained_since(const gs_core *core, int32_t grant) { return core->grant[grant].revoked_ns; }

/* ---- leases alongside others ---- */

/* Whether a grant that wants or holds the device has precedence over this one. */
static bool others_go_first(const struct gs_core *core, const struct core_grant *g) {
  if (core_level(core, g) < LEVEL_SURPLUS)
    return false;
  int32_t best = core_pick(core, false);
  if (core->phase == CORE_HELD && core_goes_before(core, &core->grant[core->holder], g))
    return true;
  return best >= 0 && core_goes_before(core, &core->grant[best], g);
}

static void decide_beside(struct gs_core *core, int32_t m, struct decisions *d) {
  struct core_grant *g = &core->grant[m];
  uint64_t now = core->now_ns;
  if (!g->held) {
    if (core_wants(g) && !g->limit_reached && !others_go_first(core, g))
      core_lease(core, m, -1, d);
  } else if (core_unable(g) || g->limit_reached) {
    core_revoke(core, m, -1, core_unable(g), d);
  } else if (now >= g->lease_ns + core->config.lease_ns) {
    bool over = others_go_first(core, g);
    if (over)
      core_revoke(core, m, core->holder, core_holder_idle(core, g, now), d);
    else /* the next term */
      g->lease_ns = now, g->level = core_level(core, g);
  }
}

void core_decide_alongside(struct gs_core *core, struct decisions *d) {
  core->alongside_left = false;
  for (int i = 0; i < core->nmembers; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    if (g->beside && room(d)) {
      decide_beside(core, core->members[i], d);
    } else if (g->beside) {
      core->alongside_left = true;
    } else if (g->gang && g->held && g->alongside && !g->yields && (core_unable(g) || g->limit_reached)) {
      g->yields = true;
      g->yields_to = -1;
    }
  }
}
