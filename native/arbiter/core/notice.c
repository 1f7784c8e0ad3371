/* Notices what changed since the last step: which grants wait, wake up, have drained, have company. */
#include "arbiter/core/state.h"

static bool takes_part(const struct core_grant *g) { return g->was_waiting || g->held; }

/* Where the least served grant of its kind is, UINT64_MAX: there is no other. */
static uint64_t least_borrowed(const struct gs_core *core, const struct core_grant *g) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < core->nmembers; i++) {
    const struct core_grant *o = &core->grant[core->members[i]];
    if (o != g && takes_part(o) && core_compare_borrowing(o, g) == 0)
      least = core_min(least, o->borrowed.sum);
  }
  return least;
}

/* What it borrowed among grants of another tier says nothing among these: it starts where they are, and waits for them
 * no longer than for a tail that nobody has made up for. */
void core_join_tier(struct gs_core *core, struct core_grant *g) {
  uint64_t least = least_borrowed(core, g), weight = core_max(g->share.weight, 1);
  if (least != UINT64_MAX)
    g->borrowed.sum = core_min(core_max(g->borrowed.sum, least), least + OVERRUN_MAX_NS * VTIME_PER_NS / weight);
}

/* A grant that wakes up starts where the least served grant of its kind is: it does not catch up. What it does not use
 * of its guarantee while it is awake is not made up for either, beyond what its bucket holds. */
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

/* The grant wants the device again, which others got when its work was done. */
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

/* It reported to have drained and now reports to be busy: a kernel takes longer than expected. */
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
