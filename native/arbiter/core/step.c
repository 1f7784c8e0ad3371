/* One step of a core: notices what is new, decides who yields, and who gets a lease. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "arbiter/core/state.h"

int gs_core_create(gs_core **out, const struct gs_arbiter_config *config, uint64_t now_ns) {
  struct gs_core *core = calloc(1, sizeof *core);
  if (!core)
    return -ENOMEM;
  core->config = *config;
  core->holder = core->previous = core->called = -1;
  core->now_ns = now_ns;
  *out = core;
  return 0;
}

void gs_core_destroy(gs_core *core) { free(core); }

int gs_core_add(gs_core *core, int32_t grant, const struct gs_share *share, int held, uint64_t now_ns) {
  core_advance(core, now_ns);
  struct core_grant *g = &core->grant[grant];
  memset(g, 0, sizeof *g);
  g->present = g->asleep = true;
  g->beside = share->flags & GS_SHARE_BESIDE;
  g->gang = (share->flags & GS_SHARE_GANG) && !g->beside;
  core_forget_fill(g);
  core_set_share(core, g, share);
  /* Enough for a prompt start, and too little to gain from creating new grants. */
  int64_t start = 2 * core_floor(core);
  g->credit = start < g->credit_cap ? start : g->credit_cap;
  g->allowance = (int64_t)share->limit_milli * (int64_t)LIMIT_WINDOW_NS;
  core->members[core->nmembers++] = grant;
  if (!held || (core->holder >= 0 && !g->beside))
    return 0;
  core_give_lease(core, g);
  if (!g->alongside)
    core_start_term(core, grant);
  return 1;
}

void gs_core_remove(gs_core *core, int32_t grant, uint64_t now_ns) {
  core_advance(core, now_ns);
  for (int i = 0; i < core->nmembers; i++) {
    if (core->members[i] != grant)
      continue;
    memmove(&core->members[i], &core->members[i + 1], (size_t)(core->nmembers - i - 1) * sizeof core->members[0]);
    core->nmembers--;
    break;
  }
  core->grant[grant].present = core->grant[grant].held = false;
  if (core->called == grant)
    core->called = -1;
  if (core->previous == grant)
    core->previous = -1;
  if (core->holder != grant)
    return;
  core->holder = core_lead(core);
  core->phase = core->holder >= 0 ? CORE_HELD : core->called >= 0 ? CORE_DRAINING : CORE_FREE;
}

void gs_core_share(gs_core *core, int32_t grant, const struct gs_share *share, uint64_t now_ns) {
  core_advance(core, now_ns);
  struct core_grant *g = &core->grant[grant];
  bool joins = share->tier != g->share.tier || (share->weight == 0) != (g->share.weight == 0);
  core_set_share(core, g, share);
  if (joins)
    core_join_tier(core, g);
}

void gs_core_observe(gs_core *core, int32_t grant, const struct gs_core_view *view) { core->grant[grant].view = *view; }

void gs_core_charge(gs_core *core, uint64_t now_ns) { core_advance(core, now_ns); }

/* ---- taking leases back ---- */

enum yield { KEEP, RENEW, YIELD, YIELD_IDLE };

void gs_core_bell_rang(gs_core *core, int32_t grant) {
  struct core_grant *g = &core->grant[grant];
  g->retry_ns = core_min(g->retry_ns, g->missed_ns + MISS_BACKOFF_MAX_NS);
}

/* Whether a holder yields, independent of which grants wait. waited: some grant waits. patience: how long the holder
 * may then be idle, in ns. */
static enum yield holder_yield_reason(struct gs_core *core, struct core_grant *h, bool waited, int64_t patience) {
  if (core_unable(h))
    return YIELD_IDLE;
  if (h->limit_reached)
    return YIELD;
  if (h->view.launches != h->launches_at_lease)
    h->misses = 0;
  if (!waited)
    return KEEP;
  if (h->view.waiting == 0 && core_idle_since(h, core->now_ns) + (uint64_t)patience <= core->now_ns)
    return YIELD_IDLE;
  if (!core_unused(core, h))
    return KEEP;
  core_note_miss(core, h);
  return YIELD;
}

/* A gang's leases end on all its devices at once, through gangs.c; until then the gang is marked. */
static void end_lease(struct gs_core *core, int32_t grant, int32_t candidate, bool idle, struct decisions *d) {
  struct core_grant *h = &core->grant[grant];
  if (!h->gang) {
    core_revoke(core, grant, candidate, idle, d);
  } else if (idle && !core_unable(h)) {
    core_rest(h);
  } else {
    h->yields = true;
    h->yields_to = candidate;
  }
}

/* Returns whether all main leases ended at once. */
static bool end_all_leases(struct gs_core *core, int32_t candidate, bool idle, struct decisions *d) {
  bool all = true;
  for (int i = 0; i < core->nmembers; i++) {
    if (core_main(&core->grant[core->members[i]]))
      end_lease(core, core->members[i], candidate, idle, d);
    all = all && !core_main(&core->grant[core->members[i]]);
  }
  core->phase = CORE_DRAINING;
  core->round_ns = core->now_ns;
  return all;
}

/* If there are several holders, each yields on its own, and the others continue. */
static void end_joined_leases(struct gs_core *core, int32_t candidate, struct decisions *d) {
  for (int i = 0; i < core->nmembers && core_joined(core); i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    if (!core_main(g))
      continue;
    enum yield yield = holder_yield_reason(core, g, candidate >= 0, QUIET_NS);
    bool over = g->over_ns >= OVER_NS;
    if (over || yield != KEEP)
      end_lease(core, core->members[i], candidate, !over && yield == YIELD_IDLE, d);
    if (over) /* the receipt needs the fill up to this point */
      core_forget_fill(g);
  }
  core->holder = core_lead(core);
}

static bool all_idle(const struct gs_core *core, int32_t candidate) {
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    if (!core_main(g))
      continue;
    uint64_t until = core_idle_since(g, core->now_ns) + (uint64_t)core_patience_for(core, g, candidate);
    if (g->view.waiting || until > core->now_ns)
      return false;
  }
  return true;
}

/* Whether the holder yields. Several holders all yield or none does; the one with precedence decides. An idle holder
 * keeps nobody's tail from running: it yields to the candidate, which waits. Others also yield to the rival, which may
 * be a tail. */
static enum yield holder_yields(struct gs_core *core, int32_t candidate, int32_t rival) {
  struct core_grant *h = &core->grant[core->holder];
  enum yield yield =
      core_joined(core) ? KEEP : holder_yield_reason(core, h, candidate >= 0, core_patience_for(core, h, candidate));
  if (yield != KEEP)
    return yield;
  bool idle = all_idle(core, candidate);
  if (rival < 0 || (candidate < 0 && idle)) /* terms count while a gang waits for this and other devices */
    return core->wanted && core->now_ns >= core->term_end_ns ? RENEW : KEEP;
  if (idle)
    return YIELD_IDLE;
  const struct core_grant *c = &core->grant[rival];
  if (core->now_ns < core->term_end_ns && !core_preempts(core, c, h))
    return KEEP;
  /* its credit may have grown since the lease was given */
  return core_goes_before(core, c, h) ? YIELD : RENEW;
}

/* ---- giving leases ---- */

/* Grants leases to waiting grants that fit on the device together with the holders, in order of precedence. Stops at
 * the first that does not fit, so that smaller grants do not overtake it for ever. */
static void lease_beside(struct gs_core *core, struct decisions *d) {
  for (;;) {
    core_mark_due(core, false);
    int32_t candidate = core_pick(core, false);
    if (candidate < 0 || core->grant[candidate].gang || !core_fits_beside(core, &core->grant[candidate]))
      return;
    core_lease(core, candidate, -1, d);
  }
}

/* The grant that gets the free device, or -1. A tail needs no lease unless others wait. */
static int32_t pick_next(struct gs_core *core) {
  core_mark_due(core, false);
  int32_t next = core_pick(core, false);
  if (next < 0) {
    core_mark_due(core, true);
    next = core_pick(core, true);
  }
  return next < 0 ? -1 : core_pick_or_tail(core, next);
}

/* Decides about the main leases. Returns false if no lease is to be granted now. */
static bool decide_holders(struct gs_core *core, struct decisions *d) {
  lease_beside(core, d);
  end_joined_leases(core, core_pick(core, false), d);
  int32_t candidate = core_pick(core, false), rival = core_pick_or_tail(core, candidate);
  enum yield yield = holder_yields(core, candidate, rival);
  if (yield == RENEW && core_asks_gangs(core))
    return false;
  if (yield == RENEW) {
    core->term_end_ns = core->now_ns + core_term(core);
    for (int i = 0; i < core->nmembers; i++)
      if (core_main(&core->grant[core->members[i]]))
        core->grant[core->members[i]].level = core_level(core, &core->grant[core->members[i]]);
  }
  if (yield == KEEP || yield == RENEW)
    return false;
  return end_all_leases(core, yield == YIELD_IDLE ? candidate : rival, yield == YIELD_IDLE, d);
}

static void decide(struct gs_core *core, struct decisions *d) {
  core->asks = false;
  core_decide_alongside(core, d);
  if (core->called >= 0)
    return;
  core_wake_resting_gangs(core, d);
  if (core->phase == CORE_HELD && !decide_holders(core, d))
    return;
  if (core->phase == CORE_DRAINING) {
    if (!core_drained(core) && core->now_ns < core->round_ns + core->config.revoke_overlap_ns)
      return;
    core->previous = core->holder;
    core->freed_ns = core->now_ns;
    core->phase = CORE_FREE;
    core->holder = -1;
  }
  int32_t previous = core->freed_ns == core->now_ns ? core->previous : -1;
  int32_t next = pick_next(core);
  if (next < 0 || core_asks_gangs(core))
    return;
  if (previous >= 0 && previous != next)
    emit(d, GS_CORE_HANDOVER, previous, next, core->now_ns - core->round_ns);
  core_lease(core, next, previous, d);
  core_start_term(core, next);
  lease_beside(core, d);
}

int gs_core_step(gs_core *core, uint64_t now_ns, struct gs_core_decision *out, uint64_t *next_ns) {
  struct decisions d = {out, 0};
  core_advance(core, now_ns);
  for (int i = 0; i < core->nmembers; i++)
    if (core->grant[core->members[i]].held)
      core_measure(core, &core->grant[core->members[i]]);
  core_notice_waits(core, &d);
  core_notice_tails(core, &d);
  decide(core, &d);
  core_notice_waits(core, &d); /* a revoked holder with threads in the gate waits from now on */
  core_end_reclaims(core, &d);
  core_write_receipts(core, &d);
  bool all = core_publish_contention(core, &d);
  int32_t candidate = core_pick(core, core->phase == CORE_FREE);
  core->had_waiters = candidate >= 0;
  core->wanted = core_pick_or_tail(core, candidate) >= 0;
  for (int i = 0; i < core->nmembers; i++) { /* others always want a device on which leases are held alongside theirs */
    const struct core_grant *g = &core->grant[core->members[i]];
    core->wanted = core->wanted || g->due_ns || (g->held && g->alongside && core_shared(core));
  }
  *next_ns = all ? core_next_look(core) : core->now_ns + 1;
  return d.n;
}

/* ---- reading ---- */

int gs_core_watched(const gs_core *core, int32_t *out) {
  int n = 0;
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    if (core->grant[m].was_waiting || core->grant[m].revoked_ns || core->grant[m].held || m == core->holder)
      out[n++] = m;
  }
  return n;
}

int32_t gs_core_holder(const gs_core *core) { return core->phase == CORE_HELD ? core->holder : -1; }

int gs_core_holds(const gs_core *core, int32_t grant) { return core->grant[grant].held; }

/* What other grants use of the device, each up to all of it. *others: how many they are. */
static uint32_t used_milli(const gs_core *core, int32_t grant, int *others) {
  uint32_t used = 0;
  *others = 0;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    if (core->members[i] == grant || !(g->held || core_overruns(g)))
      continue;
    used += g->held ? g->fill_milli : 1000;
    ++*others;
  }
  return used;
}

uint32_t gs_core_foreign_work(const gs_core *core, int32_t grant) {
  int others;
  uint32_t used = used_milli(core, grant, &others);
  return others == 0 ? 0 : used > 1000 ? (used + 999) / 1000 : 1;
}

uint32_t gs_core_spare_milli(const gs_core *core, int32_t grant) {
  int others;
  uint32_t used = used_milli(core, grant, &others);
  return used < 1000 ? 1000 - used : 0;
}

void gs_core_grant_stats(const gs_core *core, int32_t grant, struct gs_core_stats *out) {
  const struct core_grant *g = &core->grant[grant];
  *out = g->stats;
  out->waiting = g->was_waiting;
  out->held = g->held;
}

void gs_core_device_stats(const gs_core *core, struct gs_device_stats *out) { *out = core->stats; }
