/* Notices what changed since the last step: which grants wait, wake up, have drained, have company. */
#include "arbiter/core/state.h"

static bool takes_part(const struct core_grant *g) { return g->was_waiting || g->held; }

/* The smallest virtual time of other grants of the same tier that wait or hold a lease; UINT64_MAX: there is none. */
static uint64_t least_borrowed(const struct gs_core *core, const struct core_grant *g) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *o = &core->grant[core->members[i]];
    if (o != g && takes_part(o) && core_compare_borrowing(o, g) == 0)
      least = core_min(least, o->borrowed.sum);
  }
  return least;
}

/* Time borrowed in another tier is not comparable with this one's: the grant starts level with the least served grant
 * here, or at most one longest tail (OVERRUN_MAX_NS, by weight) behind it. */
void core_join_tier(struct gs_core *core, struct core_grant *g) {
  uint64_t least = least_borrowed(core, g), weight = core_max(g->share.weight, 1);
  if (least != UINT64_MAX)
    g->borrowed.sum = core_min(core_max(g->borrowed.sum, least), least + OVERRUN_MAX_NS * VTIME_PER_NS / weight);
}

/* A grant that wakes up starts level with the least served grant of its tier: it does not catch up. Guaranteed time
 * that it leaves unused while awake is not made up for either, beyond what its bucket holds. */
static void join_virtual_time(struct gs_core *core, struct core_grant *g, bool wakes) {
  uint64_t borrowed = wakes ? least_borrowed(core, g) : UINT64_MAX, served = UINT64_MAX;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *o = &core->grant[core->members[i]];
    if (o != g && takes_part(o) && o->share.guarantee_milli)
      served = core_min(served, o->served.sum);
  }
  if (borrowed != UINT64_MAX)
    g->borrowed.sum = core_max(g->borrowed.sum, borrowed);
  if (served != UINT64_MAX)
    g->served.sum = core_max(g->served.sum, served);
}

/* To be called when the grant wants the device again, which it lost when its work was done: records whether it slept. A
 * shorter pause counts as time with a lease. */
static void note_pause(const struct gs_core *core, struct core_grant *g) {
  if (!g->dry_ns)
    return;
  uint64_t done = core_max(g->dry_ns, core_min(core_idle_since(g, core->now_ns), core->now_ns));
  bool slept = core->now_ns - done >= SLEPT_NS;
  g->sleeps = slept ? g->sleeps + 1 : 0;
  /* until quiet_ns or dry_ns the time was counted with its lease */
  g->resident_ns += slept ? 0 : core->now_ns - core_max(g->quiet_ns, g->dry_ns);
  g->dry_ns = 0;
}

void core_notice_waits(struct gs_core *core, struct decisions *d) {
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    struct core_grant *g = &core->grant[m];
    bool waits = core_wants(g) && !g->held;
    if (waits && !g->was_waiting) {
      g->stats.waits++;
      note_pause(core, g);
      bool wakes = g->asleep || (g->quiet_ns && core->now_ns - g->quiet_ns >= QUIET_NS);
      join_virtual_time(core, g, wakes);
      if (wakes) {
        g->wake_ns = core->now_ns;
        if (room(d))
          emit(d, GS_CORE_WAKE, m, -1, 0);
      }
      g->asleep = false;
    }
    if (waits || g->held)
      g->quiet_ns = 0;
    else if (!g->quiet_ns)
      g->quiet_ns = core->now_ns;
    if (!waits)
      g->wake_ns = 0;
    if (!waits || g->limit_reached)
      g->due_ns = 0;
    core_follow_wait(core, m, waits, d);
    g->was_waiting = waits;
  }
}

/* True if the grant reported that it had drained and now reports to be busy: a kernel takes longer than expected. */
static bool runs_again_after_drain(const struct gs_core *core, const struct core_grant *g) {
  bool busy = g->view.live && g->view.running && g->view.busy_until_ns > core->now_ns;
  return busy && !g->held && !g->revoked_ns && !g->gang;
}

void core_notice_tails(struct gs_core *core, struct decisions *d) {
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    struct core_grant *g = &core->grant[m];
    if (runs_again_after_drain(core, g))
      g->revoked_ns = core->now_ns;
    if (!g->revoked_ns || (core->phase == CORE_DRAINING && g->revoked_ns == core->round_ns))
      continue;
    bool shows_no_end = core->now_ns >= g->revoked_ns + TAIL_MAX_NS && g->view.busy_until_ns <= core->now_ns;
    if (!core_runs(g, core->now_ns) || shows_no_end) {
      core_end_tail(core, g);
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
  return g->held && !core_holder_idle(core, g, core->now_ns);
}

bool core_publish_contention(struct gs_core *core, struct decisions *d) {
  int neighbours = 0, interactive = 0;
  for (int i = 0; i < core->nmembers; i++) {
    bool near = is_neighbour(core, core->members[i]);
    neighbours += near;
    interactive += near && core_interactive(&core->grant[core->members[i]]);
  }
  for (int i = 0; i < core->nmembers; i++) {
    int32_t m = core->members[i];
    struct core_grant *g = &core->grant[m];
    bool near = is_neighbour(core, m);
    uint32_t company = interactive > (near && core_interactive(g)) ? GS_CORE_WITH_INTERACTIVE
                       : neighbours > near                         ? GS_CORE_IN_COMPANY
                                                                   : GS_CORE_ALONE;
    if (g->published && g->company == company)
      continue;
    if (!room(d))
      return false;
    if (company && !g->company)
      g->contended_ns = core->now_ns;
    g->company = company;
    g->published = true;
    emit(d, GS_CORE_CONTENDED, m, -1, company);
  }
  return true;
}
