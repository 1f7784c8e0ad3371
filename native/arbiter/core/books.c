/* Charges the device's time to grants, and computes what each grant may still use. */
#include "arbiter/core/state.h"

int64_t core_limit_resume(const struct gs_core *core, const struct core_grant *g) {
  int64_t cap = (int64_t)g->share.limit_milli * (int64_t)LIMIT_WINDOW_NS;
  int64_t lease = (int64_t)core->config.lease_ns * 1000;
  return lease < cap / 2 ? lease : cap / 2;
}

void core_set_share(struct gs_core *core, struct core_grant *g, const struct gs_share *share) {
  g->share = *share;
  /* A bucket of less than two floors could never fill while others hold the device, so the grant would starve. */
  uint64_t cap_ns = core->config.bucket_ns * share->guarantee_milli / 1000, least_ns = 2 * core->config.credit_floor_ns;
  g->credit_cap = share->guarantee_milli ? (int64_t)core_max(cap_ns, least_ns) * CREDIT_PER_NS : 0;
  /* As much: what long kernels leave of the reserve comes in lumps of their length. */
  g->slack_cap = g->credit_cap;
  if (g->credit > g->credit_cap)
    g->credit = g->credit_cap;
  if (g->slack > g->slack_cap)
    g->slack = g->slack_cap;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Buckets are capped only after the span has been charged, because they grow while they are used. */
static void grow(struct gs_core *core, struct core_grant *g, uint64_t dt) {
  /* After this time every bucket is full; keeps the products below within 63 bits. */
  int64_t span = (int64_t)core_min(dt, 1000 * 1000 * MS_NS);
  g->credit += core_rate(core, g) * span;
  g->slack += (int64_t)g->share.guarantee_milli * core->config.reserve_milli * span;
  g->spin = least(g->spin + (int64_t)g->share.guarantee_milli * core->config.reserve_milli * span, SPIN_MAX);
  g->allowance += (int64_t)g->share.limit_milli * span;
}

/* Credit that overflows the full bucket while a grant waits or its tail competes, or while revoked grants still run
 * during its lease, is owed to the grant until it sleeps. */
static void cap_buckets(const struct gs_core *core, struct core_grant *g) {
  bool held_up = g->held         ? g->level == LEVEL_GUARANTEE && core->tails
                 : g->revoked_ns ? core_competes(core, g)
                                 : g->was_waiting;
  bool sleeps = !g->held && !core_runs(g, core->now_ns) && g->quiet_ns && core->now_ns - g->quiet_ns >= QUIET_NS;
  int64_t over = g->credit - g->credit_cap;
  if (over > 0 && held_up && !g->limit_reached && !g->misses)
    g->owed = least(g->owed + over, DEBT_MAX);
  int64_t back = over < 0 ? least(g->owed, -over) : 0;
  g->owed = sleeps ? 0 : g->owed - back;
  g->credit = least(g->credit + back, g->credit_cap);
  g->slack = least(g->slack, g->slack_cap);
}

/* A grant that waits although its limit is not used up is delayed by others. It may later use what its limit allowed
 * meanwhile. */
static void apply_limit(struct gs_core *core, struct core_grant *g, uint64_t now) {
  bool runs = g->held && !core_shared(core) && !core_holder_idle(core, g, now);
  bool held_up = !g->held && g->was_waiting && !g->misses;
  uint64_t window = runs || held_up ? LIMIT_WAITED_NS : LIMIT_WINDOW_NS;
  g->allowance = least(g->allowance, (int64_t)g->share.limit_milli * (int64_t)window);
  if (g->share.limit_milli >= 1000 || g->allowance >= core_limit_resume(core, g))
    g->limit_reached = false;
  else if (g->allowance <= 0)
    g->limit_reached = true;
}

static void receive(struct core_vtime *vtime, uint64_t dt, uint32_t weight) {
  uint64_t part = dt * VTIME_PER_NS + vtime->rest;
  weight = weight ? weight : 1;
  vtime->sum += part / weight;
  vtime->rest = (uint32_t)(part % weight);
}

static void serve(struct core_grant *g, uint64_t dt) {
  if (g->level == LEVEL_GUARANTEE)
    receive(&g->served, dt, g->share.guarantee_milli);
}

static void pay_surplus(struct core_grant *g, uint64_t dt) {
  receive(&g->borrowed, dt, g->share.weight);
  g->stats.borrowed_ns += dt;
}

static void pay(int64_t *bucket, int64_t credit) {
  *bucket = *bucket - credit < -DEBT_MAX ? -DEBT_MAX : *bucket - credit;
}

/* The hardware slices the device evenly between processes, not between grants. */
static uint64_t parts(const struct core_grant *g) { return g->view.running ? g->view.running : 1; }

/* Returns how much of a span of device time the guarantee pays, in ns x 1e6, for a grant that is charged parts(g) of
 * core->sharers; 0 if the grant is in debt. */
static int64_t due(const struct gs_core *core, const struct core_grant *g, int64_t span) {
  __int128 share = (__int128)core_rate(core, g) * span * (int64_t)core->sharers / (int64_t)parts(g);
  int64_t whole = span * CREDIT_PER_NS;
  return g->credit <= 0 ? 0 : share < whole ? (int64_t)share : whole;
}

static void charge(struct gs_core *core, struct core_grant *g, uint64_t dt, uint64_t until, enum core_level level) {
  if (dt == 0)
    return;
  g->stats.leased_ns += dt;
  core->stats.leased_ns += dt;
  g->last_ran_ns = until;
  int64_t span = (int64_t)core_min(dt, 1000 * 1000 * MS_NS);
  g->allowance -= span * 1000;
  if (level == LEVEL_GUARANTEE) {
    int64_t slack = g->gang && g->slack > 0 ? g->slack : 0, credit = span * CREDIT_PER_NS;
    /* A gang waits until all its devices are free at once, so it seldom has a turn when only slack is left. */
    slack = slack < credit ? slack : credit;
    g->slack -= slack;
    pay(&g->credit, credit - slack);
  } else if (level == LEVEL_SLACK) {
    pay(&g->slack, span * CREDIT_PER_NS);
  } else if (level == LEVEL_SURPLUS) {
    pay_surplus(g, dt);
  } else {
    int64_t credit = due(core, g, span);
    pay(&g->credit, credit);
    pay_surplus(g, dt - (uint64_t)(credit / CREDIT_PER_NS));
  }
}

/* Whether the grant is revoked and runs at the start of the span. While the device drains, the previous holder still
 * counts as the holder. */
static bool is_tail(const struct gs_core *core, int32_t m) {
  return core_overruns(&core->grant[m]) && core_runs(&core->grant[m], core->now_ns) &&
         !(core->phase == CORE_DRAINING && m == core->holder);
}

/* Whether a grant metered nothing since its last lease. */
static bool unmetered(const struct core_grant *g) { return g->view.busy_ns <= g->metered_at_lease_ns; }

/* The part of a span that a grant had if the tails of others shared it, or all of it where they may be no more than
 * words. */
static uint64_t had_of(const struct gs_core *core, int32_t m, uint64_t shared, uint64_t whole) {
  return core->unmetered > (is_tail(core, m) && unmetered(&core->grant[m])) ? whole : shared;
}

static void count_sharers(struct gs_core *core) {
  uint64_t tails = 0, holders = 0;
  core->unmetered = 0;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    if (is_tail(core, core->members[i])) {
      tails += parts(g);
      core->unmetered += unmetered(g);
    } else if ((g->held && !g->rests) || (core->phase == CORE_DRAINING && core->members[i] == core->holder)) {
      holders += parts(g);
    }
  }
  core->tails = tails;
  core->sharers = tails + core_max(holders, 1);
}

/* After a revoke, kernels of a gang may spin for others of the gang that the revoke delays. That counts as a cost of
 * switching, but only within the switching reserve, because only the tenant reports that they spin. Returns the time
 * left to be charged. */
static uint64_t charge_spin_to_switch_reserve(struct gs_core *core, struct core_grant *g, uint64_t dt) {
  uint64_t spun = g->gang && g->view.spins ? core_min(dt, (uint64_t)g->spin / CREDIT_PER_NS) : 0;
  g->spin -= (int64_t)spun * CREDIT_PER_NS;
  core->stats.switch_ns += spun;
  return dt - spun;
}

/* Whether a grant other than g uses or wants the device by its guarantee. */
static bool owner_wants(const struct gs_core *core, const struct core_grant *g) {
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *o = &core->grant[core->members[i]];
    if (o == g || o->share.guarantee_milli == 0)
      continue;
    if (o->held ? o->level == LEVEL_GUARANTEE && !core_holder_idle(core, o, core->now_ns)
                : o->was_waiting && !o->limit_reached && core_level(core, o) == LEVEL_GUARANTEE)
      return true;
  }
  return false;
}

/* A tail is charged like its lease, after the part that the guarantee pays. What was borrowed is of what owners leave:
 * while one wants the device the guarantee pays all of it, too. A gang's tail is charged to its guarantee, because
 * spinning is worth less to it. */
static void charge_tail(struct gs_core *core, struct core_grant *g, uint64_t dt, uint64_t until) {
  if (g->share.guarantee_milli == 0 || g->gang || g->level == LEVEL_GUARANTEE) {
    charge(core, g, dt, until, g->share.guarantee_milli ? LEVEL_GUARANTEE : LEVEL_SURPLUS);
  } else if (owner_wants(core, g)) {
    charge(core, g, dt, until, LEVEL_GUARANTEE);
    pay_surplus(g, dt);
  } else if (g->level == LEVEL_SLACK) {
    uint64_t own = (uint64_t)due(core, g, (int64_t)dt) / CREDIT_PER_NS;
    charge(core, g, own, until, LEVEL_GUARANTEE);
    charge(core, g, dt - own, until, LEVEL_SLACK);
  } else {
    charge(core, g, dt, until, LEVEL_BOTH);
  }
}

/* Revoked grants that have not drained run at the same time as the holders, and each pays its parts. Returns the time
 * that they were charged for. */
static uint64_t charge_tails(struct gs_core *core, uint64_t dt, uint64_t until, uint64_t sharers) {
  uint64_t charged = 0;
  for (int i = 0; i < core->nmembers && sharers; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    if (!is_tail(core, core->members[i]))
      continue;
    uint64_t part = (uint64_t)((unsigned __int128)dt * parts(g) / sharers);
    charge_tail(core, g, charge_spin_to_switch_reserve(core, g, part), until);
    g->stats.had_ns += dt;
    uint64_t own = (uint64_t)((unsigned __int128)dt * parts(g) / (sharers - core->tails + parts(g)));
    serve(g, own);
    uint64_t had = had_of(core, core->members[i], part, own);
    g->stint.part_ns += had;
    g->stint.spared_ns = core_min(g->stint.spared_ns + dt - had, OVERRUN_MAX_NS);
    g->overrun_ns += part;
    charged += part;
  }
  return charged;
}

/* A term that ends while nobody waits is renewed without a decision, and paid from the guarantee while there is credit.
 * Returns whether the end of another term would change anything. */
static bool renew(struct gs_core *core, uint64_t at) {
  bool again = false;
  core->term_end_ns = at + core->config.lease_ns;
  for (int i = 0; i < core->nmembers; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    if (!g->held || g->level == LEVEL_BOTH)
      continue;
    g->level = core_level(core, g) == LEVEL_GUARANTEE ? LEVEL_GUARANTEE : LEVEL_BOTH;
    again = true;
  }
  return again;
}

/* A holder's part of the charge, relative to those of the other holders. A grant that sleeps pays nothing. */
static uint64_t weight(const struct gs_core *core, const struct core_grant *g) {
  bool drains = core->phase == CORE_DRAINING && core->holder >= 0 && g == &core->grant[core->holder];
  bool sleeps = g->view.waiting == 0 && core_idle_since(g, core->now_ns) + QUIET_NS <= core->now_ns;
  bool pays = drains || (g->held && !g->rests && !(sleeps && core_shared(core)));
  bool settled = g->fill_shared && g->fills >= FILL_SAMPLES && core_joined(core);
  return pays ? core_max(settled ? g->work_milli : g->fill_milli, 10)
              : 0; /* a holder that is metered at 0 pays something, too */
}

static int32_t any_holder(const struct gs_core *core) {
  int32_t any = -1;
  for (int i = 0; i < core->nmembers; i++)
    any = core->grant[core->members[i]].held ? core->members[i] : any;
  return any;
}

/* While several grants hold leases, the limit applies to the work that a grant does, not to time that the others leave
 * idle. */
static void charge_holder(struct gs_core *core, struct core_grant *g, uint64_t part, uint64_t whole, uint64_t until) {
  serve(g, whole);
  g->stint.part_ns += had_of(core, (int32_t)(g - core->grant), part, whole);
  charge(core, g, part, until, g->level);
  if (core->tails && g->level == LEVEL_GUARANTEE && !g->gang)
    g->beside_ns = core_min(g->beside_ns + part, OVERRUN_MAX_NS);
  g->stats.had_ns += whole;
  if (g->held && core_shared(core)) {
    g->allowance += (int64_t)core_min(part, 1000 * 1000 * MS_NS) * 1000;
    g->unhad_ns -= (int64_t)whole;
  }
}

/* What a grant worked beside other holders, beyond its part of the time, it had as well: the parts depend on what the
 * others report. */
static void note_work(const struct gs_core *core, struct core_grant *g, uint64_t work) {
  g->unhad_ns += (int64_t)work;
  if (g->unhad_ns > 0) {
    g->stats.had_ns += (uint64_t)g->unhad_ns;
    g->unhad_ns = 0;
  }
  int64_t least_ns = -(int64_t)core->config.lease_ns; /* a part may be ahead of the work by one lump */
  g->unhad_ns = g->unhad_ns < least_ns ? least_ns : g->unhad_ns;
}

static void limit_work(const struct gs_core *core, struct core_grant *g, uint64_t dt) {
  uint64_t work = g->view.busy_ns > g->paid_busy_ns ? g->view.busy_ns - g->paid_busy_ns : 0;
  g->paid_busy_ns = g->view.busy_ns;
  if (!g->held || !core_shared(core)) {
    g->unhad_ns = 0;
    return;
  }
  /* metered time arrives in lumps: mostly of some milliseconds, at most of a kernel */
  g->allowance -= (int64_t)core_min(work, core_min(dt, 1000 * 1000 * MS_NS) + core->config.lease_ns) * 1000;
  note_work(core, g, core_min(work, UNMETERED_MAX_NS));
}

/* Charges the holders, and while the device drains the previous holder, for the part dt of a span that ends at `until`.
 * Their served time counts the whole span: only the tenants themselves report that tails ran alongside. */
static void charge_holders(struct gs_core *core, uint64_t dt, uint64_t span, uint64_t until) {
  uint64_t sum = 0, left = dt, span_left = span;
  int32_t last = core->holder >= 0 ? core->holder : any_holder(core);
  for (int i = 0; i < core->nmembers; i++) {
    uint64_t own = weight(core, &core->grant[core->members[i]]);
    sum += own;
    last = own ? core->members[i] : last;
  }
  for (int i = 0; i < core->nmembers && sum; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    uint64_t own = weight(core, g);
    if (!own || core->members[i] == last)
      continue;
    uint64_t part = (uint64_t)((unsigned __int128)dt * own / sum);
    uint64_t whole = (uint64_t)((unsigned __int128)span * own / sum);
    left -= part;
    span_left -= whole;
    charge_holder(core, g, part, whole, until);
  }
  if (last >= 0)
    charge_holder(core, &core->grant[last], left, span_left, until);
}

static void charge_terms(struct gs_core *core, uint64_t from, uint64_t to) {
  bool ends = !core->wanted && core->phase == CORE_HELD;
  for (uint64_t t = from; t < to;) {
    ends = ends && core->term_end_ns > t && core->term_end_ns < to;
    uint64_t end = ends ? core->term_end_ns : to;
    charge_holders(core, end - t - charge_tails(core, end - t, end, core->sharers), end - t, end);
    t = end;
    if (!core->wanted && core->phase == CORE_HELD && core->term_end_ns <= t)
      ends = renew(core, t);
  }
}

/* If the holders leave no idle time: counts the time that a holder gets beyond its guarantee while another one gets
 * less than its own. */
static void note_excess(struct gs_core *core, uint64_t dt) {
  uint32_t sum = 0;
  bool wanting = false;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    sum += core_main(g) ? g->fill_milli : 0;
    wanting = wanting || (core_main(g) && g->fill_milli < g->share.guarantee_milli);
  }
  for (int i = 0; i < core->nmembers; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    if (!core_main(g))
      continue;
    if (sum < SATURATED_MILLI || !wanting)
      g->over_ns = 0;
    else if (g->fill_milli > g->share.guarantee_milli)
      g->over_ns += dt * (g->fill_milli - g->share.guarantee_milli) / 1000;
  }
}

/* Returns the time until which a holder pays. While others wait, a holder that reported using its lease, and then that
 * it never did, still pays until `now`. */
static uint64_t paid_until(const struct gs_core *core, const struct core_grant *g, uint64_t now) {
  uint64_t idle = core_idle_since(g, now);
  return idle > g->engaged_ns || !core->had_waiters ? idle : now;
}

static uint64_t busy_end(const struct gs_core *core, uint64_t from, uint64_t now) {
  uint64_t end = from;
  if (core->phase == CORE_DRAINING && core->holder >= 0) {
    const struct core_grant *h = &core->grant[core->holder];
    end = core_runs(h, now) ? now : core_max(h->view.busy_until_ns, from);
  }
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    if (g->held)
      end = core_max(end, core_holder_idle(core, g, now) ? paid_until(core, g, now) : now);
  }
  return core_min(end, now);
}

static void note_wait(const struct gs_core *core, struct core_grant *g, uint64_t dt) {
  g->stats.wait_ns += dt;
  if (g->limit_reached)
    g->stats.wait_limit_ns += dt;
  else if (core_level(core, g) == LEVEL_GUARANTEE)
    g->stats.wait_owed_ns += dt;
}

/* Gives back to those that ran beside tails, by what each paid. */
static void give_back(struct gs_core *core, const struct core_grant *tail, uint64_t ns, uint64_t paid) {
  for (int i = 0; i < core->nmembers; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    uint64_t part = g == tail ? 0 : (uint64_t)((unsigned __int128)ns * g->beside_ns / paid);
    g->beside_ns -= part;
    g->credit += (int64_t)part * CREDIT_PER_NS;
    g->allowance += (int64_t)part * 1000;
  }
}

/* The hardware need not slice the device evenly: beside a program that pauses between its kernels, a long one has most of
 * it. What a tail metered beyond its part, its guarantee pays to those that ran beside it. Its own word counts against
 * it, and nobody else's. */
static void settle_tail(struct gs_core *core, struct core_grant *g) {
  struct core_stint *s = &g->stint;
  uint64_t metered = g->view.busy_ns > s->metered_ns ? g->view.busy_ns - s->metered_ns : 0, paid = 0;
  if (metered <= s->part_ns || !s->spared_ns || g->gang || !g->share.guarantee_milli)
    return;
  for (int i = 0; i < core->nmembers; i++)
    paid += core->members[i] == g - core->grant ? 0 : core->grant[core->members[i]].beside_ns;
  /* no more than can be owed, whatever it says */
  uint64_t more = core_min(core_min(core_min(metered - s->part_ns, s->spared_ns), paid), OVERRUN_MAX_NS);
  if (!more)
    return;
  s->part_ns += more;
  s->spared_ns -= more;
  pay(&g->credit, (int64_t)more * CREDIT_PER_NS);
  g->allowance -= (int64_t)more * 1000;
  give_back(core, g, more, paid);
}

/* Brings all accounts to `now`. No tail ends before that. */
static void advance(struct gs_core *core, uint64_t now) {
  uint64_t from = core->now_ns, dt = now - from;
  core->stats.wall_ns += dt;
  count_sharers(core);
  for (int i = 0; i < core->nmembers; i++) {
    struct core_grant *g = &core->grant[core->members[i]];
    grow(core, g, dt);
    if (g->was_waiting && !g->held)
      note_wait(core, g, dt);
    /* pauses count as running time; sleep, unused leases and time that the device gave to others' tails do not */
    bool used = g->view.launches != g->launches_at_lease || core_runs(g, from);
    if (g->revoked_ns || (g->held && used)) {
      uint64_t span = core_min(core_max(core_idle_since(g, now) + QUIET_NS, from), now) - from;
      uint64_t beside = g->revoked_ns ? core->sharers : core->tails + parts(g);
      g->resident_ns += (uint64_t)((unsigned __int128)span * parts(g) / beside);
    }
  }
  uint64_t end = busy_end(core, from, now);
  if (core->phase == CORE_HELD && core_joined(core))
    note_excess(core, dt);
  charge_terms(core, from, end);
  uint64_t rest = now - end;
  if (rest && core->tails)
    rest -= charge_tails(core, rest, now, core->tails);
  if (core->phase == CORE_DRAINING) {
    core->stats.switch_ns += rest;
  } else {
    core->stats.idle_ns += rest;
    if (core->had_waiters)
      core->stats.idle_with_waiters_ns += rest;
  }
  for (int i = 0; i < core->nmembers; i++)
    settle_tail(core, &core->grant[core->members[i]]);
  for (int i = 0; i < core->nmembers; i++) {
    cap_buckets(core, &core->grant[core->members[i]]);
    limit_work(core, &core->grant[core->members[i]], dt);
    apply_limit(core, &core->grant[core->members[i]], now);
    if (core_engaged(&core->grant[core->members[i]], now))
      core->grant[core->members[i]].engaged_ns = now;
  }
  core->now_ns = now;
}

/* The earliest end of a tail after core->now_ns, at most `now`. */
static uint64_t end_of_tail(const struct gs_core *core, uint64_t now) {
  uint64_t first = now;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    if (is_tail(core, core->members[i]) && !g->view.running)
      first = core_min(first, g->view.busy_until_ns);
  }
  return first;
}

void core_advance(struct gs_core *core, uint64_t now) {
  while (core->now_ns < now)
    advance(core, end_of_tail(core, now));
}
