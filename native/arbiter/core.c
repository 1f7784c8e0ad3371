#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core_state.h"

struct decisions {
  struct gs_core_decision *out;
  int n;
};

static void emit(struct decisions *d, enum gs_core_action action, int32_t grant, int32_t other, uint64_t value) {
  d->out[d->n++] = (struct gs_core_decision){(uint32_t)action, grant, other, value};
}

/* Room for what only informs; the last places are kept for one revoke, hand-over and lease. */
static bool room(const struct decisions *d) {
  return d->n < GS_CORE_DECISIONS - 8;
}

int gs_core_create(gs_core **out, const struct gs_arbiter_config *config, uint64_t now_ns) {
  struct gs_core *core = calloc(1, sizeof *core);
  if (!core)
    return -ENOMEM;
  core->config = *config;
  core->holder = core->taken_for = -1;
  core->now_ns = core->start_ns = now_ns;
  *out = core;
  return 0;
}

void gs_core_destroy(gs_core *core) {
  free(core);
}

static void start_lease(struct gs_core *core, int32_t grant, uint64_t now) {
  struct core_grant *g = &core->grant[grant];
  core->phase = CORE_HELD;
  core->holder = grant;
  core->level = core_level(core, g);
  core->lease_ns = now;
  core->idle_look_ns = IDLE_LOOK_MIN_NS;
  g->launches_at_lease = g->view.launches;
  g->revoked_ns = 0;
  g->late = g->was_waiting = g->asleep = false;
  g->quiet_ns = 0;
  core->term_end_ns = now + core_term(core);
}

int gs_core_add(gs_core *core, int32_t grant, const struct gs_share *share, int held, uint64_t now_ns) {
  core_advance(core, now_ns);
  struct core_grant *g = &core->grant[grant];
  memset(g, 0, sizeof *g);
  g->present = g->asleep = true;
  core_set_share(core, g, share);
  /* Enough for a prompt start, too little to be worth making grants for. */
  int64_t start = 2 * core_floor(core);
  g->credit = start < g->credit_cap ? start : g->credit_cap;
  g->allowance = (int64_t)share->limit_milli * (int64_t)LIMIT_WINDOW_NS;
  core->members[core->nmembers++] = grant;
  if (!held || core->holder >= 0)
    return 0;
  start_lease(core, grant, core->now_ns);
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
  core->grant[grant].present = false;
  if (core->holder == grant) {
    core->phase = CORE_FREE;
    core->holder = -1;
  }
  if (core->taken_for == grant)
    core->taken_for = -1;
}

void gs_core_share(gs_core *core, int32_t grant, const struct gs_share *share, uint64_t now_ns) {
  core_advance(core, now_ns);
  core_set_share(core, &core->grant[grant], share);
}

void gs_core_observe(gs_core *core, int32_t grant, const struct gs_core_view *view) {
  core->grant[grant].view = *view;
}

/* ---- choosing ---- */

/* > 0 when bucket a is fuller for its size by more than margin/1000 of it. */
static int compare_fill(int64_t a, int64_t a_cap, int64_t b, int64_t b_cap, int margin) {
  __int128 left = (__int128)a * b_cap;
  __int128 right = (__int128)b * a_cap + (__int128)a_cap * b_cap * margin / 1000;
  return left > right ? 1 : left < right ? -1 : 0;
}

/* > 0 when a may borrow before b whatever their virtual times. */
static int compare_borrowing(const struct core_grant *a, const struct core_grant *b) {
  if ((a->share.weight == 0) != (b->share.weight == 0))
    return a->share.weight ? 1 : -1;
  if (a->share.weight && a->share.tier != b->share.tier)
    return a->share.tier > b->share.tier ? 1 : -1;
  return 0;
}

static bool goes_before(const struct gs_core *core, const struct core_grant *a, const struct core_grant *b) {
  enum core_level level = core_level(core, a);
  if (level != core_level(core, b))
    return level < core_level(core, b);
  int order;
  if (level == LEVEL_GUARANTEE)
    order = compare_fill(a->credit, a->credit_cap, b->credit, b->credit_cap, 0);
  else if (level == LEVEL_SLACK)
    order = compare_fill(a->slack, a->slack_cap, b->slack, b->slack_cap, 0);
  else
    order = compare_borrowing(a, b);
  if (order)
    return order > 0;
  if (level == LEVEL_SURPLUS && a->vtime != b->vtime)
    return a->vtime < b->vtime;
  return a->last_ran_ns < b->last_ran_ns;
}

/* The best of those that wait and may run; besides (or -1) competes too. Grants that let leases pass unused are left out
 * until their time, unless desperate. */
static int32_t pick(const struct gs_core *core, int32_t besides, bool desperate) {
  int32_t best = besides;
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    const struct core_grant *g = &core->grant[m];
    if (m == core->holder && core->phase == CORE_HELD)
      continue;
    if (!g->view.waiting || !g->view.live || g->limit_reached || g->late)
      continue;
    if (g->retry_ns > core->now_ns && !desperate)
      continue;
    if (best < 0 || goes_before(core, g, &core->grant[best]))
      best = m;
  }
  return best;
}

enum yield { KEEP, RENEW, YIELD, YIELD_IDLE };

static bool preempts(const struct gs_core *core, const struct core_grant *c, const struct core_grant *h) {
  /* A sleeper that wakes is served at once. Who has waited anyway lets a lease run for a quarter, or switches eat the gain. */
  bool prompt = c->wake_ns != 0 || core->now_ns >= core->lease_ns + core->config.lease_ns / 4;
  if (core_level(core, c) != LEVEL_GUARANTEE)
    return core->level >= LEVEL_SURPLUS && prompt && compare_borrowing(c, h) > 0;
  if (core->level != LEVEL_GUARANTEE)
    return prompt;
  return c->wake_ns != 0 && compare_fill(c->credit, c->credit_cap, h->credit, h->credit_cap, 50) > 0;
}

static enum yield holder_yields(struct gs_core *core, int32_t candidate) {
  struct core_grant *h = &core->grant[core->holder];
  uint64_t now = core->now_ns;
  if (!h->view.live)
    return YIELD_IDLE;
  if (h->limit_reached)
    return YIELD;
  if (h->view.launches != h->launches_at_lease)
    h->misses = 0;
  if (candidate < 0)
    return KEEP;
  if (core_holder_idle(core, h, now))
    return YIELD_IDLE;
  bool unused = h->view.waiting && h->view.launches == h->launches_at_lease;
  if (unused && now >= core->lease_ns + PICKUP_NS) {
    /* One miss may be a busy machine; then the pause doubles from the pickup time on. */
    uint64_t pause = h->misses ? core_min(PICKUP_NS << core_min(h->misses - 1, 8), MISS_BACKOFF_MAX_NS) : 0;
    h->misses++;
    h->retry_ns = now + pause;
    return YIELD;
  }
  const struct core_grant *c = &core->grant[candidate];
  if (now >= core->term_end_ns)
    return goes_before(core, c, h) ? YIELD : RENEW;
  return preempts(core, c, h) ? YIELD : KEEP;
}

/* ---- changing hands ---- */

static void revoke(struct gs_core *core, int32_t candidate, struct decisions *d) {
  struct core_grant *h = &core->grant[core->holder];
  uint64_t now = core->now_ns;
  bool deep = !h->contended || now - h->contended_ns < BOUND_CHANGE_NS;
  h->revoked_ns = now;
  h->late_ns = now + LATE_NS + (deep ? core->config.bound_alone_ns : core->config.bound_ns);
  h->stats.revokes++;
  core->phase = CORE_DRAINING;
  core->taken_for = candidate;
  emit(d, GS_CORE_REVOKE, core->holder, candidate, 0);
}

static void lease(struct gs_core *core, int32_t grant, int32_t previous, uint64_t revoked, struct decisions *d) {
  struct core_grant *g = &core->grant[grant];
  uint64_t waited = g->wake_ns ? core->now_ns - g->wake_ns : 0;
  if (g->wake_ns)
    core_count_wake(g, waited);
  g->wake_ns = 0;
  start_lease(core, grant, core->now_ns);
  g->stats.leases++;
  core->stats.leases++;
  if (previous >= 0)
    emit(d, GS_CORE_HANDOVER, previous, grant, core->now_ns - revoked);
  emit(d, GS_CORE_LEASE, grant, previous, waited);
}

static void decide(struct gs_core *core, struct decisions *d) {
  int32_t previous = -1;
  uint64_t revoked = 0;
  if (core->phase == CORE_HELD) {
    int32_t candidate = pick(core, -1, false);
    enum yield yield = holder_yields(core, candidate);
    if (yield == RENEW) {
      core->term_end_ns = core->now_ns + core_term(core);
      core->level = core_level(core, &core->grant[core->holder]);
    }
    if (yield == KEEP || yield == RENEW)
      return;
    revoke(core, candidate, d);
    if (yield == YIELD_IDLE) {
      core->grant[core->holder].asleep = true;
      core->grant[core->holder].revoked_ns = 0; /* nothing to drain */
    }
  }
  if (core->phase == CORE_DRAINING) {
    struct core_grant *h = &core->grant[core->holder];
    uint64_t since = h->revoked_ns ? h->revoked_ns : core->now_ns;
    if (h->revoked_ns && h->view.drained)
      h->revoked_ns = 0;
    if (h->revoked_ns && core->now_ns < since + core->config.revoke_overlap_ns)
      return;
    previous = core->holder;
    revoked = since;
    core->phase = CORE_FREE;
    core->holder = core->taken_for = -1;
  }
  int32_t next = pick(core, -1, false);
  if (next < 0)
    next = pick(core, -1, true);
  if (next >= 0)
    lease(core, next, previous, revoked, d);
}

/* ---- noticing ---- */

/* A waking grant borrows from where the least served of its kind stands: it catches up nothing. */
static void join_virtual_time(struct gs_core *core, struct core_grant *g) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *o = &core->grant[core->members[i]];
    bool runs = o->was_waiting || core->members[i] == core->holder;
    if (o != g && runs && compare_borrowing(o, g) == 0)
      least = core_min(least, o->vtime);
  }
  if (least != UINT64_MAX)
    g->vtime = core_max(g->vtime, least);
}

static void notice_waits(struct gs_core *core, struct decisions *d) {
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    struct core_grant *g = &core->grant[m];
    bool has = core->phase == CORE_HELD && m == core->holder;
    bool waits = g->view.waiting && g->view.live && !has;
    if (waits && !g->was_waiting) {
      g->stats.waits++;
      if (g->asleep || (g->quiet_ns && core->now_ns - g->quiet_ns >= QUIET_NS)) {
        g->wake_ns = core->now_ns;
        join_virtual_time(core, g);
        if (room(d))
          emit(d, GS_CORE_WAKE, m, -1, 0);
      }
      g->asleep = false;
    }
    if (waits || has)
      g->quiet_ns = 0;
    else if (!g->quiet_ns)
      g->quiet_ns = core->now_ns;
    if (!waits)
      g->wake_ns = 0;
    g->was_waiting = waits;
  }
}

static void notice_tails(struct gs_core *core, struct decisions *d) {
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    struct core_grant *g = &core->grant[m];
    if (!g->revoked_ns || m == core->holder)
      continue;
    if (g->view.drained || !g->view.live || core->now_ns >= g->revoked_ns + TAIL_MAX_NS) {
      g->revoked_ns = 0;
      g->late = false;
    } else if (!g->late && core->now_ns >= g->late_ns && room(d)) {
      g->late = true;
      emit(d, GS_CORE_LATE, m, -1, core->now_ns - g->revoked_ns);
    }
  }
}

static bool is_neighbour(const struct gs_core *core, int32_t m) {
  const struct core_grant *g = &core->grant[m];
  if (g->was_waiting || (g->last_ran_ns && core->now_ns < g->last_ran_ns + RECENT_NS))
    return true;
  return m == core->holder && !core_holder_idle(core, g, core->now_ns);
}

/* Gives false when not all changes found room. */
static bool publish_contention(struct gs_core *core, struct decisions *d) {
  int neighbours = 0;
  for (int i = 0; i < core->nmembers; i++)
    neighbours += is_neighbour(core, core->members[i]);
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    struct core_grant *g = &core->grant[m];
    bool contended = neighbours - is_neighbour(core, m) > 0;
    if (g->published && g->contended == contended)
      continue;
    if (!room(d))
      return false;
    if (contended && !g->contended)
      g->contended_ns = core->now_ns;
    g->contended = contended;
    g->published = true;
    emit(d, GS_CORE_CONTENDED, m, -1, contended);
  }
  return true;
}

/* ---- when to look again ---- */

static uint64_t when_credit(const struct gs_core *core, const struct core_grant *g) {
  int64_t rate = core_rate(core, g), missing = core_floor(core) - g->credit;
  if (rate == 0)
    return UINT64_MAX;
  return missing <= 0 ? core->now_ns : core->now_ns + (uint64_t)(missing / rate) + 1;
}

static uint64_t next_for_waiter(const struct gs_core *core, const struct core_grant *g) {
  uint64_t next = UINT64_MAX;
  if (g->late)
    return next; /* its end as a tail is looked for anyway */
  if (g->limit_reached) {
    int64_t missing = core_limit_resume(core, g) - g->allowance;
    uint64_t limit = g->share.limit_milli ? g->share.limit_milli : 1;
    return core->now_ns + (missing > 0 ? (uint64_t)missing / limit : 0) + 1;
  }
  if (g->retry_ns > core->now_ns)
    return g->retry_ns;
  if (core->phase == CORE_HELD && core->level != LEVEL_GUARANTEE)
    next = core_max(when_credit(core, g), core->lease_ns + core->config.lease_ns / 4);
  return next;
}

static uint64_t next_for_holder(struct gs_core *core) {
  struct core_grant *h = &core->grant[core->holder];
  uint64_t next = UINT64_MAX, now = core->now_ns;
  if (core->phase == CORE_DRAINING)
    return h->revoked_ns + core->config.revoke_overlap_ns;
  if (h->share.limit_milli < 1000)
    next = now + (uint64_t)(h->allowance > 0 ? h->allowance : 0) / (1000 - h->share.limit_milli) + 1;
  if (!core->had_waiters)
    return next;
  if (h->view.waiting && h->view.launches == h->launches_at_lease)
    next = core_min(next, core->lease_ns + PICKUP_NS);
  uint64_t idle = core_max(h->view.busy_until_ns, core->lease_ns) + core->config.early_idle_ns;
  if (idle < now + core->idle_look_ns) {
    idle = now + core->idle_look_ns;
    core->idle_look_ns = core_min(2 * core->idle_look_ns, IDLE_LOOK_MAX_NS);
  }
  return core_min(core_min(next, idle), core->term_end_ns);
}

static uint64_t when_next(struct gs_core *core) {
  uint64_t next = core->holder >= 0 ? next_for_holder(core) : UINT64_MAX;
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    const struct core_grant *g = &core->grant[m];
    if (g->was_waiting)
      next = core_min(next, next_for_waiter(core, g));
    if (g->revoked_ns && m != core->holder)
      next = core_min(next, g->late ? g->revoked_ns + TAIL_MAX_NS : g->late_ns);
    /* The end of a neighbour's second matters to those that it makes contended. */
    bool fading = g->last_ran_ns && core->now_ns < g->last_ran_ns + RECENT_NS && m != core->holder && !g->was_waiting;
    if (fading && core->nmembers > 1)
      next = core_min(next, g->last_ran_ns + RECENT_NS);
  }
  return core_max(next, core->now_ns + 1);
}

int gs_core_step(gs_core *core, uint64_t now_ns, struct gs_core_decision *out, uint64_t *next_ns) {
  struct decisions d = {out, 0};
  core_advance(core, now_ns);
  notice_waits(core, &d);
  notice_tails(core, &d);
  decide(core, &d);
  notice_waits(core, &d); /* a revoked holder that still has threads in the gate waits from now on */
  bool all = publish_contention(core, &d);
  core->had_waiters = pick(core, -1, core->phase == CORE_FREE) >= 0;
  *next_ns = all ? when_next(core) : core->now_ns + 1;
  return d.n;
}

/* ---- reading ---- */

int gs_core_watched(const gs_core *core, int32_t *out) {
  int n = 0;
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    if (core->grant[m].was_waiting || core->grant[m].revoked_ns || m == core->holder)
      out[n++] = m;
  }
  return n;
}

int32_t gs_core_holder(const gs_core *core) {
  return core->phase == CORE_HELD ? core->holder : -1;
}

int gs_core_tails(const gs_core *core) {
  for (int i = 0; i < core->nmembers; i++)
    if (core->members[i] != core->holder && core->grant[core->members[i]].revoked_ns)
      return 1;
  return 0;
}

void gs_core_grant_stats(const gs_core *core, int32_t grant, struct gs_core_stats *out) {
  const struct core_grant *g = &core->grant[grant];
  *out = g->stats;
  out->waiting = g->was_waiting;
  out->held = core->phase == CORE_HELD && core->holder == grant;
}

void gs_core_device_stats(const gs_core *core, struct gs_device_stats *out) {
  *out = core->stats;
}
