/* The events that are possible in a state, and the invariants. */
#include "gang_model.h"

static void fail(const char *what) {
  if (!broken)
    broken = what;
}

static void carry_out(uint32_t device, const struct gs_core_decision *d) {
  uint32_t *lease = &limits[d->grant].device[device].lease;
  if (d->action == GS_CORE_LEASE || d->action == GS_CORE_LEASE_BESIDE) {
    if (*lease & GS_LEASE_HELD)
      fail("a lease was given twice");
    *lease += 1;
  } else if (d->action == GS_CORE_REVOKE) {
    if (!(*lease & GS_LEASE_HELD))
      fail("a lease was taken that was not given");
    arbiter_set_cuts(&entry[d->grant], T0);
    *lease += 1;
  }
}

static void look(void) {
  struct gs_core_view view[DEVICES];
  for (int g = 0; g < GANGS; g++) {
    for (int d = 0; d < DEVICES; d++)
      arbiter_read_view(&entry[g], (uint32_t)d, T0, &view[d]);
    for (int d = 0; d < DEVICES; d++) {
      view[d].wanted = view[0].waiting + view[1].waiting;
      view[d].spins = cuts[g].uneven;
      gs_core_observe(core[d], g, &view[d]);
    }
  }
}

static void arbiter_steps(void) {
  static struct gs_gang_decision made[GS_GANG_DECISIONS];
  struct gs_core_decision decisions[GS_CORE_DECISIONS];
  uint64_t next[DEVICES], gang_next = 0, cut_next;
  uint32_t again = 1;
  for (int pass = 0; again; pass++) {
    if (pass > 40) {
      fail("the arbiter decides without end");
      return;
    }
    look();
    for (int d = 0; d < DEVICES; d++) {
      int n = gs_core_step(core[d], T0, decisions, &next[d]);
      for (int i = 0; i < n; i++)
        carry_out((uint32_t)d, &decisions[i]);
    }
    int n = gs_gangs_step(gangs, core, T0, made, &again, &gang_next);
    for (int i = 0; i < n; i++)
      carry_out(made[i].device, &made[i].core);
    for (int g = 0; g < GANGS; g++)
      if ((limits[g].device[0].lease ^ limits[g].device[1].lease) & GS_LEASE_HELD && !again)
        fail("a gang has one of its devices");
  }
  s.next_ns = core_min(core_min(next[0], next[1]), core_min(gang_next, T0 + 4 * MS));
  for (int g = 0; g < GANGS; g++) {
    bool drained = !gs_core_undrained_since(core[0], g) && !gs_core_undrained_since(core[1], g);
    bool knew = drained, held = gs_gangs_held(gangs, g);
    arbiter_follow_ranks(&entry[g], held, &drained, T0, &cut_next);
    for (int d = 0; d < DEVICES && knew && !drained && !held; d++)
      gs_core_gang_clear_drained(core[d], g, T0);
    s.next_ns = core_min(s.next_ns, cut_next);
  }
  s.bell = false;
}

static bool word_held(int g, int d) { return s.lease[g][d] & GS_LEASE_HELD; }

static bool passes(int g, int d) {
  return s.rank[g][d].held || (options.use_cuts && s.words[g][d].collectives < s.words[g][d].cut);
}

static bool could_submit(int g, int d) {
  const struct model_rank *r = &s.rank[g][d];
  return !r->asleep && r->queued < options.depth_max && (passes(g, d) || !r->waiting);
}

/* The rank submits its next collective to its queue, or blocks at the gate. */
static void submit(int g, int d) {
  struct model_rank *r = &s.rank[g][d];
  struct gs_slot_device *w = &s.words[g][d];
  if (!passes(g, d)) {
    r->waiting = true;
    w->waiting = 1;
    s.bell = true;
    return;
  }
  r->waiting = false;
  r->queued++;
  w->waiting = 0;
  w->launches++;
  w->collectives++;
  w->inflight = 1;
  w->queue_end_ns = T0 + MS;
}

static bool runs(int g) { return s.rank[g][0].queued && s.rank[g][1].queued; }

/* The collective that both ranks have on their devices completes. */
static void finish(int g) {
  s.ripe[g] = false;
  s.spin[g] = 0;
  for (int d = 0; d < DEVICES; d++) {
    if (--s.rank[g][d].queued == 0) {
      s.words[g][d].inflight = 0;
      s.words[g][d].queue_end_ns = T0;
      if (!word_held(g, d))
        s.words[g][d].drained = s.lease[g][d];
      s.bell = true;
    }
  }
}

static void see(int g, int d) {
  s.rank[g][d].held = word_held(g, d);
  if (!word_held(g, d) && s.rank[g][d].queued == 0) {
    s.words[g][d].drained = s.lease[g][d];
    s.bell = true;
  }
}

static bool may_pass_time(void) {
  if (s.bell || s.next_ns <= T0)
    return false;
  for (int g = 0; g < GANGS; g++) {
    if (runs(g) && s.ripe[g])
      return false;
    for (int d = 0; d < DEVICES; d++) {
      const struct model_rank *r = &s.rank[g][d];
      if (r->held != word_held(g, d) || could_submit(g, d))
        return false;
      if (r->asleep && r->slept >= options.sleep_max)
        return false;
    }
  }
  return true;
}

static void pass_time(void) {
  bool any = false, leased = false;
  for (int g = 0; g < GANGS; g++) {
    bool waits = s.rank[g][0].waiting || s.rank[g][1].waiting, awake = !s.rank[g][0].asleep && !s.rank[g][1].asleep;
    bool spins = s.rank[g][0].queued || s.rank[g][1].queued;
    any = any || waits;
    leased = leased || word_held(g, 0);
    s.wait[g] = waits && !word_held(g, 0) ? s.wait[g] + 1 : 0;
    s.spin[g] = spins && awake && !runs(g) ? s.spin[g] + 1 : runs(g) || !spins ? 0 : s.spin[g];
    s.ripe[g] = runs(g);
    worst_wait = s.wait[g] > worst_wait ? s.wait[g] : worst_wait;
    worst_spin = s.spin[g] > worst_spin ? s.spin[g] : worst_spin;
    if (s.wait[g] > 3 * options.lease_ms + 4)
      fail("a gang waits for ever");
    if (s.spin[g] > options.spin_max)
      fail("a collective waits for ever");
    for (int d = 0; d < DEVICES; d++) {
      struct model_rank *r = &s.rank[g][d];
      r->slept = r->asleep ? r->slept + 1 : 0;
      if (r->queued) /* the gate thread keeps the estimate current */
        s.words[g][d].queue_end_ns = T0 + 2 * MS;
    }
  }
  s.unleased = any && !leased ? s.unleased + 1 : 0;
  if (s.unleased > FREE_MAX)
    fail("nobody has the devices while a gang waits");
}

bool model_happens(int what, uint64_t *elapsed) {
  *elapsed = 0;
  if (what == 0) {
    if (!s.bell && s.next_ns > T0)
      return false;
    arbiter_steps();
    model_save();
    return true;
  }
  if (!options.late && (s.bell || s.next_ns <= T0))
    return false;
  if (what == 1) {
    if (!may_pass_time())
      return false;
    pass_time();
    *elapsed = MS;
    return true;
  }
  what -= 2;
  if (what < GANGS) {
    if (!runs(what) || !s.ripe[what])
      return false;
    finish(what);
    return true;
  }
  what -= GANGS;
  int g = what / DEVICES % GANGS, d = what % DEVICES;
  struct model_rank *r = &s.rank[g][d];
  switch (what / (GANGS * DEVICES)) {
    case 0:
      if (!could_submit(g, d))
        return false;
      submit(g, d);
      return true;
    case 1:
      if (r->held == word_held(g, d))
        return false;
      see(g, d);
      return true;
    default: /* only one rank of each gang sleeps; the other cases are symmetric */
      if (d == 0 || r->waiting || options.sleep_max == 0)
        return false;
      r->asleep = !r->asleep;
      r->slept = 0;
      return true;
  }
}
