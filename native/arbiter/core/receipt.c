/* Receipts: record how long each wait and each reclaim took, by which rule, and with which numbers. Makes no
 * decisions. */
#include "arbiter/core/state.h"

/* Interval over which the time that a grant had is measured. */
#define HAD_NS (1000 * MS_NS)

static int bucket_of(uint64_t ns) {
  uint64_t us = ns / 1000;
  int bucket = 0;
  while (bucket < GS_LATENCY_BUCKETS - 1 && us >= (UINT64_C(1) << bucket))
    bucket++;
  return bucket;
}

static void count(struct gs_spans *spans, uint64_t ns) {
  spans->n++;
  spans->total_ns += ns;
  spans->max_ns = core_max(spans->max_ns, ns);
  spans->bucket[bucket_of(ns)]++;
}

static void count_wake(struct core_grant *g, uint64_t ns) {
  g->stats.wake_to_lease[bucket_of(ns)]++;
  g->stats.wake_to_lease_ns += ns;
  g->stats.wake_to_lease_max_ns = core_max(g->stats.wake_to_lease_max_ns, ns);
}

static uint64_t end_wait(struct gs_core *core, struct core_grant *g) {
  struct core_receipt *r = &g->receipt;
  uint64_t waited = r->wait_ns ? core->now_ns - r->wait_ns : 0;
  if (r->wait_ns)
    count(&g->stats.waited, waited);
  r->wait_ns = 0;
  r->limited = false;
  return waited;
}

void core_follow_wait(struct gs_core *core, int32_t grant, bool waits, struct decisions *d) {
  struct core_grant *g = &core->grant[grant];
  struct core_receipt *r = &g->receipt;
  if (waits) {
    r->wait_ns = r->wait_ns ? r->wait_ns : core->now_ns;
    r->limited = r->limited || g->limit_reached;
  } else if (r->wait_ns) {
    uint64_t waited = end_wait(core, g);
    if (room(d))
      emit(d, GS_CORE_LEFT, grant, -1, waited);
  }
}

uint64_t core_note_lease(struct gs_core *core, int32_t grant, int32_t previous) {
  struct core_grant *g = &core->grant[grant];
  struct core_receipt *r = &g->receipt;
  if (g->wake_ns)
    count_wake(g, core->now_ns - g->wake_ns);
  uint32_t rule = r->limited                 ? GS_RULE_LIMIT
                  : previous >= 0            ? core->grant[previous].receipt.rule
                  : core->phase == CORE_HELD ? GS_RULE_ROOM
                                             : GS_RULE_FREE;
  r->served = (struct gs_receipt){
      .rule = rule,
      .flags = g->wake_ns ? GS_RECEIPT_WOKE : 0,
      .wait_ns = end_wait(core, g),
      .reclaim_ns = previous >= 0 ? core->now_ns - core->round_ns : 0,
  };
  return r->served.wait_ns;
}

/* ---- why a lease is revoked ---- */

/* The rule by which c has precedence over the holders, compared with the one of them that has precedence. */
static uint32_t rule_for(const struct gs_core *core, const struct core_grant *h, const struct core_grant *c) {
  if (!c->present) /* it waits on another device of the gang */
    return GS_RULE_GANG;
  if (core->phase == CORE_HELD && core->now_ns >= core->term_end_ns)
    return GS_RULE_TERM;
  const struct core_grant *best = core->phase == CORE_HELD && core->holder >= 0 ? &core->grant[core->holder] : h;
  if (!c->held && core_preempts(core, c, best))
    return c->wake_ns ? GS_RULE_WAKE : core_level(core, c) == LEVEL_GUARANTEE ? GS_RULE_GUARANTEE : GS_RULE_TIER;
  return c->gang || h->gang ? GS_RULE_GANG : GS_RULE_TERM;
}

static uint32_t rule_of(const struct gs_core *core, const struct core_grant *h, int32_t candidate, bool idle) {
  if (!h->view.live)
    return GS_RULE_GONE;
  if (h->view.away)
    return GS_RULE_AWAY;
  if (idle)
    return core_patience(core, h) <= 0 ? GS_RULE_SLEEPING : GS_RULE_IDLE;
  if (h->limit_reached)
    return GS_RULE_LIMIT;
  if (core_unused(core, h))
    return GS_RULE_UNUSED;
  if (h->over_ns >= OVER_NS)
    return GS_RULE_EXCESS;
  if (h->beside)
    return GS_RULE_TERM;
  if (candidate < 0) /* a gang whose turn alongside others has ended, or that yields on another device */
    return h->alongside ? GS_RULE_TERM : GS_RULE_GANG;
  return rule_for(core, h, &core->grant[candidate]);
}

void core_note_revoke(struct gs_core *core, int32_t grant, int32_t candidate, bool idle) {
  struct core_receipt *r = &core->grant[grant].receipt;
  r->rule = rule_of(core, &core->grant[grant], candidate, idle);
  r->taken_for = candidate;
  r->taken_ns = idle ? 0 : core->now_ns;
}

static void end_reclaim(struct gs_core *core, int32_t grant, struct decisions *d) {
  struct core_grant *g = &core->grant[grant];
  uint64_t took = core->now_ns - g->receipt.taken_ns;
  count(&g->stats.reclaimed, took);
  g->receipt.taken_ns = 0;
  if (!room(d))
    return;
  emit(d, GS_CORE_DRAINED, grant, g->receipt.taken_for, took);
  if (core_runs(g, core->now_ns))
    d->out[d->n - 1].receipt.flags = GS_RECEIPT_RUNNING;
}

void core_end_reclaims(struct gs_core *core, struct decisions *d) {
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    if (g->receipt.taken_ns && !g->revoked_ns)
      end_reclaim(core, core->members[i], d);
  }
}

/* ---- the numbers ---- */

static uint32_t had(struct gs_core *core, struct core_grant *g) {
  struct core_receipt *r = &g->receipt;
  uint64_t span = core->now_ns - r->had_at_ns;
  if (span >= HAD_NS) {
    uint64_t milli = (uint64_t)((unsigned __int128)(g->stats.leased_ns - r->had_leased_ns) * 1000 / span);
    r->had_milli = r->had_at_ns ? (uint32_t)core_min(milli, 1000) : 0;
    r->had_at_ns = core->now_ns;
    r->had_leased_ns = g->stats.leased_ns;
  }
  return r->had_milli;
}

static enum gs_level level_of(const struct core_grant *g) {
  return g->level == LEVEL_GUARANTEE || g->level == LEVEL_BOTH ? GS_LEVEL_GUARANTEE
         : g->level == LEVEL_SLACK                             ? GS_LEVEL_SLACK
                                                               : GS_LEVEL_SURPLUS;
}

static void fill_in(struct gs_core *core, struct gs_core_decision *d) {
  struct core_grant *g = &core->grant[d->grant];
  struct gs_receipt *out = &d->receipt;
  int32_t whose = d->other;
  if (d->action == GS_CORE_WAKE || d->action == GS_CORE_CONTENDED)
    return;
  if (d->action == GS_CORE_LEFT) {
    out->wait_ns = d->value;
    whose = d->grant;
  } else if (d->action == GS_CORE_LEASE || d->action == GS_CORE_LEASE_BESIDE) {
    *out = g->receipt.served;
    out->reclaim_ns = d->action == GS_CORE_LEASE_BESIDE ? d->value : out->reclaim_ns;
    whose = d->grant;
  } else {
    out->rule = g->receipt.rule;
    out->reclaim_ns = d->value;
  }
  out->level = d->action == GS_CORE_LEFT ? GS_LEVEL_NONE : level_of(g);
  if (whose < 0 || !core->grant[whose].present)
    return;
  out->guarantee_milli = core->grant[whose].share.guarantee_milli;
  out->had_milli = core->grant[whose].receipt.had_milli;
}

void core_write_receipts(struct gs_core *core, struct decisions *d) {
  for (int i = 0; i < core->nmembers; i++)
    had(core, &core->grant[core->members[i]]);
  for (int i = 0; i < d->n; i++)
    fill_in(core, &d->out[i]);
}

int gs_core_close(gs_core *core, int32_t grant, uint64_t now_ns, struct gs_core_decision *out) {
  struct decisions d = {out, 0};
  core_advance(core, now_ns);
  struct core_grant *g = &core->grant[grant];
  if (g->receipt.wait_ns)
    emit(&d, GS_CORE_LEFT, grant, -1, end_wait(core, g));
  if (g->held) {
    g->receipt.rule = GS_RULE_ENDED;
    emit(&d, GS_CORE_REVOKE, grant, -1, 0);
  }
  if (g->receipt.taken_ns)
    end_reclaim(core, grant, &d);
  core_write_receipts(core, &d);
  return d.n;
}
