/* Decides which grant has precedence, and which grants may hold leases at the same time. */
#include <string.h>

#include "arbiter/core/state.h"

/* > 0 if bucket a is fuller relative to its size by more than margin/1000 of it. */
static int compare_fill(int64_t a, int64_t a_cap, int64_t b, int64_t b_cap, int margin) {
  __int128 left = (__int128)a * b_cap;
  __int128 right = (__int128)b * a_cap + (__int128)a_cap * b_cap * margin / 1000;
  return left > right ? 1 : left < right ? -1 : 0;
}

int core_compare_borrowing(const struct core_grant *a, const struct core_grant *b) {
  if ((a->share.weight == 0) != (b->share.weight == 0))
    return a->share.weight ? 1 : -1;
  if (a->share.weight && a->share.tier != b->share.tier)
    return a->share.tier > b->share.tier ? 1 : -1;
  return 0;
}

static int compare_guaranteed(const struct core_grant *a, const struct core_grant *b) {
  if (core_interactive(a) != core_interactive(b))
    return core_interactive(a) ? 1 : -1;
  return compare_fill(a->credit, a->credit_cap, b->credit, b->credit_cap, 0);
}

/* True if the bucket is full because of what is owed to the grant, not because it uses less than its guarantee. */
static bool kept_full(const struct core_grant *g) { return g->full && g->owed > 0; }

bool core_goes_before(const struct gs_core *core, const struct core_grant *a, const struct core_grant *b) {
  enum core_level level = core_level(core, a);
  if (level != core_level(core, b))
    return level < core_level(core, b);
  int order;
  if (level == LEVEL_GUARANTEE)
    order = compare_guaranteed(a, b);
  else if (level == LEVEL_SLACK)
    order = compare_fill(a->slack, a->slack_cap, b->slack, b->slack_cap, 0);
  else
    order = core_compare_borrowing(a, b);
  if (order)
    return order > 0;
  if (level == LEVEL_SURPLUS && a->borrowed.sum != b->borrowed.sum)
    return a->borrowed.sum < b->borrowed.sum;
  if (level == LEVEL_GUARANTEE && kept_full(a) && kept_full(b) && a->served.sum != b->served.sum)
    return a->served.sum < b->served.sum;
  return a->last_ran_ns < b->last_ran_ns;
}

int32_t core_pick(const struct gs_core *core, bool ignore_backoff) {
  int32_t best = -1;
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    const struct core_grant *g = &core->grant[m];
    if (g->held || g->beside || g->due_ns || !core_wants(g) || g->limit_reached || core_silent(core, g))
      continue;
    if (g->retry_ns > core->now_ns && !ignore_backoff)
      continue;
    if (best < 0 || core_goes_before(core, g, &core->grant[best]))
      best = m;
  }
  return best;
}

int32_t core_pick_or_tail(const struct gs_core *core, int32_t candidate) {
  int32_t best = candidate;
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    const struct core_grant *g = &core->grant[m];
    if (core_competes(core, g) && !g->limit_reached && (best < 0 || core_goes_before(core, g, &core->grant[best])))
      best = m;
  }
  return best;
}

int32_t core_lead(const struct gs_core *core) {
  int32_t best = -1;
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    const struct core_grant *g = &core->grant[m];
    if (core_main(g) && (best < 0 || core_goes_before(core, g, &core->grant[best])))
      best = m;
  }
  return best;
}

bool core_preempts(const struct gs_core *core, const struct core_grant *c, const struct core_grant *h) {
  /* A grant that wakes up is served at once. For other grants a lease lasts at least a quarter of its length; otherwise
   * switching would cost more than it gains. */
  bool prompt = c->wake_ns != 0 || core->now_ns >= h->lease_ns + core->config.lease_ns / 4;
  if (core_level(core, c) != LEVEL_GUARANTEE)
    return h->level >= LEVEL_SURPLUS && prompt && core_compare_borrowing(c, h) > 0;
  if (h->level != LEVEL_GUARANTEE)
    return prompt;
  if (c->wake_ns == 0 || core_interactive(h) > core_interactive(c))
    return false;
  return core_interactive(c) > core_interactive(h) || (h->owed > 0 && core_goes_before(core, c, h)) ||
         compare_fill(c->credit, c->credit_cap, h->credit, h->credit_cap, 50) > 0;
}

/* ---- leases at the same time ---- */

void core_forget_fill(struct core_grant *g) {
  memset(g->fill, 0, sizeof g->fill);
  g->fills = 0;
  g->fill_milli = g->work_milli = 1000;
  g->full = true;
  g->over_ns = 0;
}

static bool crowded(const struct gs_core *core) {
  uint32_t sum = 0;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    sum += g->held && !g->rests ? g->work_milli : 0;
  }
  return sum >= CROWDED_MILLI;
}

void core_measure(const struct gs_core *core, struct core_grant *g) {
  uint64_t resident = g->resident_ns - g->sampled_resident_ns;
  if (resident < core->config.lease_ns)
    return;
  /* A kernel is metered when it ends. Until then it fills the device. */
  bool unmetered = g->view.running && g->view.busy_ns == g->sampled_busy_ns;
  if (unmetered && resident < UNMETERED_MAX_NS)
    return;
  /* the tenant writes the meter: a value that goes backwards is ignored */
  bool usable = g->view.busy_ns >= g->sampled_busy_ns;
  uint64_t busy = unmetered ? resident : usable ? core_min(g->view.busy_ns - g->sampled_busy_ns, resident) : 0;
  g->sampled_resident_ns = g->resident_ns;
  g->sampled_busy_ns = g->view.busy_ns;
  if (!usable)
    return;
  if (g->fill_shared != core_shared(core))
    g->fills = 0;
  g->fill_shared = core_shared(core);
  g->fill[g->fills++ % FILL_SAMPLES] = (struct fill_sample){busy, resident};
  struct fill_sample sum = {0, 0};
  for (uint32_t i = 0; i < FILL_SAMPLES && i < g->fills; i++) {
    sum.busy_ns += g->fill[i].busy_ns;
    sum.resident_ns += g->fill[i].resident_ns;
  }
  g->work_milli = (uint32_t)core_min(sum.busy_ns / (sum.resident_ns / 1000 + 1), 1000);
  if (g->fills < FILL_SAMPLES)
    return;
  /* With others on the device a grant does less than it would alone, which shows nothing about what it would fill,
   * unless it does much less than before on a device that is not crowded. */
  bool less = 2 * g->work_milli < g->fill_milli && !crowded(core);
  g->fill_milli = g->fill_shared && !less ? (uint32_t)core_max(g->work_milli, g->fill_milli) : g->work_milli;
  g->full = g->fill_milli >= (g->full ? LEAN_MILLI : FULL_MILLI);
}

bool core_fits_beside(const struct gs_core *core, const struct core_grant *c) {
  uint32_t sum = c->fill_milli;
  int holders = 0;
  if (c->full)
    return false;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *g = &core->grant[core->members[i]];
    if (!core_main(g))
      continue;
    if (g->full || ++holders >= TOGETHER_MAX)
      return false;
    sum += g->fill_milli;
  }
  return sum <= 1000;
}
