/* A model check of granting and revoking gangs, on the arbiter's own code: two gangs with a rank on each of two devices, whose
 * kernels are all collectives, and every order in which ranks submit, see a changed lease word late, sleep and wake, kernels finish,
 * the arbiter runs, and milliseconds pass. States are plain memory: a step restores one, moves and hashes it; times are kept
 * relative to now, what only counts is left out, and credit goes in steps of half a millisecond.
 *   gang_check STATES_MAX DEPTH SLEEP_MS CUTS LATE LEASE_MS SPIN_MS
 * DEPTH: collectives in flight; CUTS 0: ranks do not know of cuts; LATE 1: also the arbiter does what it has to at any time in a
 * millisecond. Prints how many states were seen, whether that was all of them, and the worst waits; 1: an invariant does not hold,
 * and how that came to be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core_state.h"
#include "shell_state.h"

enum { GANGS = 2, DEVICES = 2, T0 = 1000000000, MS = 1000000 };
/* Both devices without a lease while a gang waits, in ms: a drain and the step after it. A gang waits at most three leases long, a
 * collective SPIN_MS from when all ranks of its gang are awake until it is on both devices. */
enum { FREE_MAX = 2 };

struct rank {
  uint8_t queued; /* collectives of it on the device */
  bool waiting, asleep, held; /* held: as it last saw its lease word */
  uint8_t slept;  /* ms */
};

/* What changes of a core. */
struct core_part {
  char head[offsetof(struct gs_core, members)];
  struct core_grant grant[GANGS];
};

struct state {
  struct rank rank[GANGS][DEVICES];
  uint8_t wait[GANGS], spin[GANGS], unleased;
  bool ripe[GANGS]; /* both ranks' collectives have been on the devices for a millisecond */
  bool bell;
  uint64_t next_ns;
  uint32_t lease[GANGS][DEVICES];
  struct gs_slot_device words[GANGS][DEVICES];
  uint64_t base[GANGS][DEVICES], since_ns[GANGS];
  bool open[GANGS], uneven[GANGS];
  struct gs_gang gang[GANGS];
  struct core_part core[DEVICES];
};

static gs_core *core[GS_ARBITER_MAX_DEVICES];
static gs_gangs *gangs;
static struct gs_limits limits[GANGS];
static struct gs_usage usage[GANGS];
static struct entry entry[GANGS];
static struct cuts cuts[GANGS];
static bool use_cuts;
static bool late; /* the arbiter too */
static uint32_t depth_max = 1, sleep_max, lease_ms = 4, spin_max = 2;
static struct state s;
static const char *broken;
static unsigned worst_wait, worst_spin;

/* ---- memory in and out ---- */

static void restore(void) {
  for (int d = 0; d < DEVICES; d++) {
    memcpy(core[d], s.core[d].head, sizeof s.core[d].head);
    memcpy(core[d]->grant, s.core[d].grant, sizeof s.core[d].grant);
  }
  for (int g = 0; g < GANGS; g++) {
    gangs->gang[g] = s.gang[g];
    cuts[g].open = s.open[g];
    cuts[g].uneven = s.uneven[g];
    cuts[g].since_ns = s.since_ns[g];
    for (int d = 0; d < DEVICES; d++) {
      limits[g].device[d].lease = s.lease[g][d];
      usage[g].slot[d].device[d] = s.words[g][d];
      cuts[g].base[d][d] = s.base[g][d];
    }
  }
}

static void save_cores(void) {
  for (int d = 0; d < DEVICES; d++) {
    memcpy(s.core[d].head, core[d], sizeof s.core[d].head);
    memcpy(s.core[d].grant, core[d]->grant, sizeof s.core[d].grant);
  }
}

static void save(void) {
  save_cores();
  for (int g = 0; g < GANGS; g++) {
    s.gang[g] = gangs->gang[g];
    s.open[g] = cuts[g].open;
    s.uneven[g] = cuts[g].uneven;
    s.since_ns[g] = cuts[g].since_ns;
    for (int d = 0; d < DEVICES; d++) {
      s.lease[g][d] = limits[g].device[d].lease;
      s.words[g][d] = usage[g].slot[d].device[d];
      s.base[g][d] = cuts[g].base[d][d];
    }
  }
}

/* ---- the same state in one form ---- */

/* A time relative to now, no further back than matters; 0 stays none. */
static void shift(uint64_t *t, uint64_t elapsed, uint64_t age_max) {
  if (*t == 0 || *t == UINT64_MAX)
    return;
  *t -= elapsed;
  if (*t < T0 - age_max * MS)
    *t = T0 - age_max * MS;
}

static int64_t rounded(int64_t value, int64_t grain, int64_t least) {
  int64_t steps = value >= 0 ? (value + grain / 2) / grain : -((-value + grain / 2) / grain);
  return steps * grain < least ? least : steps * grain;
}

static void normalise_grant(struct core_grant *g, uint64_t launches, uint64_t elapsed) {
  memset(&g->stats, 0, sizeof g->stats);
  memset(g->fill, 0, sizeof g->fill);
  g->fills = g->sleeps = g->company = 0;
  g->resident_ns = g->sampled_resident_ns = g->sampled_busy_ns = g->view.busy_ns = g->over_ns = g->dry_ns = 0;
  g->credit = rounded(g->credit, 500 * (int64_t)1000 * CREDIT_PER_NS, -(int64_t)MS * CREDIT_PER_NS);
  g->slack = rounded(g->slack, 500 * (int64_t)1000 * CREDIT_PER_NS, -(int64_t)MS * CREDIT_PER_NS);
  g->allowance = (int64_t)MS * 1000;
  g->spin = 0;
  g->contended_ns = 1;
  g->launches_at_lease = g->launches_at_lease == launches;
  g->launches_at_rest = g->launches_at_rest == launches;
  g->view = (struct gs_core_view){.launches = 1}; /* new before each use */
  shift(&g->last_ran_ns, elapsed, 12);
  shift(&g->quiet_ns, elapsed, 6);
  shift(&g->wake_ns, elapsed, 1);
  shift(&g->revoked_ns, elapsed, 30);
  shift(&g->late_ns, elapsed, 0);
  shift(&g->lease_ns, elapsed, 8);
  g->late_ns = g->revoked_ns ? g->late_ns : 0;
  g->lease_ns = g->held ? g->lease_ns : 0;
  shift(&g->due_ns, elapsed, 17);
  shift(&g->retry_ns, elapsed, 0);
}

static void normalise(uint64_t elapsed) {
  for (int d = 0; d < DEVICES; d++) {
    struct gs_core *c = core[d];
    uint64_t least = UINT64_MAX;
    shift(&c->now_ns, elapsed, 12);
    c->round_ns = c->phase == CORE_DRAINING ? c->round_ns : 0;
    shift(&c->round_ns, elapsed, 3);
    shift(&c->term_end_ns, elapsed, 0);
    shift(&c->freed_ns, elapsed, 1);
    shift(&c->asked_ns, elapsed, 1);
    c->previous = c->freed_ns == c->now_ns ? c->previous : -1;
    c->idle_look_ns = IDLE_LOOK_MIN_NS;
    for (int g = 0; g < GANGS; g++) {
      normalise_grant(&c->grant[g], s.words[g][d].launches, elapsed);
      least = core_min(least, c->grant[g].vtime);
    }
    for (int g = 0; g < GANGS; g++) {
      struct core_grant *grant = &c->grant[g];
      grant->vtime = core_min(grant->vtime - least, 2 * 64 * MS) / (64 * MS) * (64 * MS);
    }
    /* that one ran after the other, not when */
    uint64_t *ran[GANGS] = {&c->grant[0].last_ran_ns, &c->grant[1].last_ran_ns};
    for (int g = 0; g < GANGS; g++)
      if (*ran[g] && *ran[g] != T0)
        *ran[g] = *ran[g] > *ran[!g] ? T0 - MS : T0 - 2 * MS;
  }
  save_cores();
  for (int g = 0; g < GANGS; g++) {
    shift(&s.gang[g].since_ns, elapsed, 1);
    shift(&s.gang[g].end_ns, elapsed, 0);
    s.since_ns[g] = s.open[g] ? T0 : 0;
    if (!s.gang[g].beside)
      s.gang[g].end_ns = 0;
    for (int d = 0; d < DEVICES; d++) {
      struct gs_slot_device *w = &s.words[g][d];
      shift(&w->queue_end_ns, elapsed, 6);
      s.lease[g][d] = 2 + (s.lease[g][d] & GS_LEASE_HELD);
      w->launches = 1;
      if (w->collectives && s.base[g][d]) { /* counts matter from the common point on */
        uint64_t back = core_min(s.base[g][d], w->collectives) - 1;
        w->collectives -= back;
        s.base[g][d] -= back;
        w->cut -= w->cut ? back : 0;
      }
    }
  }
  shift(&s.next_ns, elapsed, 0);
}

/* ---- what can happen ---- */

static void fail(const char *what) {
  if (!broken)
    broken = what;
}

static void carry_out(uint32_t device, const struct gs_core_decision *d) {
  uint32_t *lease = &limits[d->grant].device[device].lease;
  if (d->action == GS_CORE_LEASE || d->action == GS_CORE_AGAIN) {
    if (*lease & GS_LEASE_HELD)
      fail("a lease was given twice");
    *lease += 1;
  } else if (d->action == GS_CORE_REVOKE) {
    if (!(*lease & GS_LEASE_HELD))
      fail("a lease was taken that was not given");
    arbiter_cut(&entry[d->grant], T0);
    *lease += 1;
  }
}

static void look(void) {
  struct gs_core_view view[DEVICES];
  for (int g = 0; g < GANGS; g++) {
    for (int d = 0; d < DEVICES; d++)
      arbiter_look_at(&entry[g], (uint32_t)d, T0, &view[d]);
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
    bool drained = !gs_core_undrained(core[0], g) && !gs_core_undrained(core[1], g);
    bool knew = drained, held = gs_gangs_held(gangs, g);
    arbiter_follow(&entry[g], held, &drained, T0, &cut_next);
    for (int d = 0; d < DEVICES && knew && !drained && !held; d++)
      gs_core_gang_slipped(core[d], g, T0);
    s.next_ns = core_min(s.next_ns, cut_next);
  }
  s.bell = false;
}

static bool word_held(int g, int d) {
  return s.lease[g][d] & GS_LEASE_HELD;
}

static bool passes(int g, int d) {
  return s.rank[g][d].held || (use_cuts && s.words[g][d].collectives < s.words[g][d].cut);
}

static bool could_submit(int g, int d) {
  const struct rank *r = &s.rank[g][d];
  return !r->asleep && r->queued < depth_max && (passes(g, d) || !r->waiting);
}

/* The rank's next collective: into its queue, or into the gate. */
static void submit(int g, int d) {
  struct rank *r = &s.rank[g][d];
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

static bool runs(int g) {
  return s.rank[g][0].queued && s.rank[g][1].queued;
}

/* The collective that both ranks have on their devices is done. */
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
      const struct rank *r = &s.rank[g][d];
      if (r->held != word_held(g, d) || could_submit(g, d))
        return false;
      if (r->asleep && r->slept >= sleep_max)
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
    if (s.wait[g] > 3 * lease_ms + 4)
      fail("a gang waits for ever");
    if (s.spin[g] > spin_max)
      fail("a collective waits for ever");
    for (int d = 0; d < DEVICES; d++) {
      struct rank *r = &s.rank[g][d];
      r->slept = r->asleep ? r->slept + 1 : 0;
      if (r->queued) /* the gate thread keeps the estimate true */
        s.words[g][d].queue_end_ns = T0 + 2 * MS;
    }
  }
  s.unleased = any && !leased ? s.unleased + 1 : 0;
  if (s.unleased > FREE_MAX)
    fail("nobody has the devices while a gang waits");
}

/* Does event `what` if it can happen; gives whether it did. */
static bool happens(int what, uint64_t *elapsed) {
  *elapsed = 0;
  if (what == 0) {
    if (!s.bell && s.next_ns > T0)
      return false;
    arbiter_steps();
    save();
    return true;
  }
  if (!late && (s.bell || s.next_ns <= T0))
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
  struct rank *r = &s.rank[g][d];
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
  default: /* only one of each gang's ranks sleeps: more would be the same by symmetry */
    if (d == 0 || r->waiting || sleep_max == 0)
      return false;
    r->asleep = !r->asleep;
    r->slept = 0;
    return true;
  }
}
enum { EVENTS_KINDS = 2 + GANGS + 3 * GANGS * DEVICES };

/* ---- the search ---- */

static uint64_t hash(const void *memory, size_t size) {
  const uint64_t *words = memory;
  uint64_t h = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < size / 8; i++) {
    h ^= words[i];
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h ? h : 1;
}

static uint64_t *seen;
static size_t seen_size, nseen;

/* How a state was reached, by the order in which states were found. */
static struct {
  uint32_t from;
  uint8_t what;
} *found;

static void tell_path(size_t last, int what) {
  static const char *const rank_does[] = {"submits", "sees its lease word", "sleeps or wakes"};
  int path[512], n = 0;
  for (path[n++] = what; last && n < 512; last = found[last].from)
    path[n++] = found[last].what;
  while (n-- > 0) {
    int e = path[n] - 2 - GANGS;
    if (path[n] < 2)
      fprintf(stderr, "%s\n", path[n] ? "a millisecond" : "arbiter");
    else if (e < 0)
      fprintf(stderr, "gang %d: its collective is done\n", path[n] - 2);
    else
      fprintf(stderr, "gang %d rank %d %s\n", e / DEVICES % GANGS, e % DEVICES, rank_does[e / (GANGS * DEVICES)]);
  }
}

static bool is_new(uint64_t h) {
  size_t at = h & (seen_size - 1);
  while (seen[at] && seen[at] != h)
    at = (at + 1) & (seen_size - 1);
  if (seen[at])
    return false;
  seen[at] = h;
  nseen++;
  return true;
}

static void start(void) {
  struct gs_arbiter_config config;
  uint32_t devices[DEVICES] = {0, 1};
  gs_arbiter_defaults(&config);
  config.lease_ns = lease_ms * (uint64_t)MS;
  config.bound_alone_ns = config.bound_ns;
  config.early_idle_ns = MS;
  config.bucket_ns = 4 * MS;
  config.reserve_milli = 0;
  struct gs_share share[DEVICES];
  for (int d = 0; d < DEVICES; d++) {
    share[d] = (struct gs_share){.guarantee_milli = 500, .limit_milli = 1000, .weight = 1, .class_ = 2, .flags = GS_SHARE_GANG};
    if (gs_core_create(&core[d], &config, T0) < 0)
      abort();
  }
  if (gs_gangs_create(&gangs, &config) < 0)
    abort();
  for (int g = 0; g < GANGS; g++) {
    limits[g] = (struct gs_limits){.slots_high = DEVICES, .ndevices = DEVICES};
    entry[g] = (struct entry){.present = true, .limits = &limits[g], .usage = &usage[g], .ndevices = DEVICES, .cuts = &cuts[g]};
    for (int d = 0; d < DEVICES; d++) {
      usage[g].slot[d].state = GS_SLOT_LIVE;
      usage[g].slot[d].device[d].collectives = 1; /* as after a first one that all have done */
      cuts[g].base[d][d] = 1;
      entry[g].device[d] = (uint32_t)d;
    }
    gs_gangs_add(gangs, core, g, devices, DEVICES, share, 0, T0);
  }
  save();
  s.bell = true;
}

int main(int argc, char **argv) {
  size_t states_max = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
  if (argc > 2)
    depth_max = (uint32_t)atoi(argv[2]);
  sleep_max = argc > 3 ? (uint32_t)atoi(argv[3]) : 0;
  use_cuts = argc > 4 ? atoi(argv[4]) : 1;
  late = argc > 5 && atoi(argv[5]);
  if (argc > 7) {
    lease_ms = (uint32_t)atoi(argv[6]);
    spin_max = (uint32_t)atoi(argv[7]);
  }
  for (seen_size = 1024; seen_size < 2 * states_max + 64; seen_size *= 2) {
  }
  seen = calloc(seen_size, sizeof *seen);
  /* a ring of those whose events are still to be tried */
  size_t queue_size = states_max / 2 + 1024, head = 0, tail = 0;
  struct state *queue = malloc(queue_size * sizeof *queue);
  found = calloc(states_max + 64, sizeof *found);
  if (!seen || !queue || !found)
    return 2;
  start();
  normalise(0);
  is_new(hash(&s, sizeof s));
  queue[tail++ % queue_size] = s;
  for (; head < tail && nseen < states_max && !broken; head++) {
    for (int what = 0; what < EVENTS_KINDS && !broken; what++) {
      uint64_t elapsed;
      s = queue[head % queue_size];
      restore();
      if (!happens(what, &elapsed))
        continue;
      if (broken)
        tell_path(head, what);
      normalise(elapsed);
      if (!is_new(hash(&s, sizeof s)))
        continue;
      if (tail - head == queue_size)
        return 2;
      found[tail].from = (uint32_t)head;
      found[tail].what = (uint8_t)what;
      queue[tail++ % queue_size] = s;
    }
  }
  printf("{\"states\": %zu, \"all\": %s, \"wait_ms\": %u, \"spin_ms\": %u, \"broken\": \"%s\"}\n", nseen,
         head == tail && nseen < states_max ? "true" : "false", worst_wait, worst_spin, broken ? broken : "");
  free(queue);
  free(seen);
  free(found);
  for (int d = 0; d < DEVICES; d++)
    gs_core_destroy(core[d]);
  gs_gangs_destroy(gangs);
  return broken != NULL;
}
