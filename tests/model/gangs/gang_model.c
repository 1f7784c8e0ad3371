#include "gang_model.h"

#include <stdlib.h>
#include <string.h>

struct options options;
unsigned worst_wait, worst_spin;
const char *broken;
struct state s;
gs_core *core[GS_ARBITER_MAX_DEVICES];
gs_gangs *gangs;
struct gs_limits limits[GANGS];
struct entry entry[GANGS];
struct cuts cuts[GANGS];
static struct gs_usage usage[GANGS];
static struct gs_seats seats[GANGS];
static struct gs_claim claims[GANGS][DEVICES * GS_MAX_SLOTS];

/* ---- save and restore ---- */

void model_restore(void) {
  for (int d = 0; d < DEVICES; d++) {
    memcpy(core[d], s.core[d].head, sizeof s.core[d].head);
    for (int g = 0; g < GANGS; g++)
      memcpy(&core[d]->grant[g], s.core[d].grant[g], GRANT_BYTES);
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
    for (int g = 0; g < GANGS; g++)
      memcpy(s.core[d].grant[g], &core[d]->grant[g], GRANT_BYTES);
  }
}

void model_save(void) {
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

/* ---- canonical form of a state ---- */

/* A time relative to now, clamped to the range that matters; 0 remains 0 (none). */
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
  memset((char *)g + GRANT_BYTES, 0, sizeof *g - GRANT_BYTES);
  memset(g->fill, 0, sizeof g->fill);
  g->fills = g->sleeps = g->company = 0;
  g->resident_ns = g->sampled_resident_ns = g->sampled_busy_ns = g->view.busy_ns = g->over_ns = g->dry_ns = 0;
  g->credit = rounded(g->credit, 500 * (int64_t)1000 * CREDIT_PER_NS, -(int64_t)MS * CREDIT_PER_NS);
  g->slack = rounded(g->slack, 500 * (int64_t)1000 * CREDIT_PER_NS, -(int64_t)MS * CREDIT_PER_NS);
  int64_t some = (int64_t)MS * CREDIT_PER_NS;
  g->owed = g->owed >= some ? some : 0;
  g->work_milli = 1000;
  g->paid_busy_ns = g->overrun_ns = g->overran_ns = g->beside_ns = g->metered_at_lease_ns = 0;
  g->stint = (struct core_stint){0};
  g->allowance = (int64_t)MS * 1000;
  g->spin = 0;
  g->contended_ns = 1;
  g->launches_at_lease = g->launches_at_lease == launches;
  g->launches_at_rest = g->launches_at_rest == launches;
  g->view = (struct gs_core_view){.launches = 1}; /* set again before each use */
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
  g->missed_ns = 0;
}

void model_normalise(uint64_t elapsed) {
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
    c->tails = 0;
    c->unmetered = 0;
    for (int g = 0; g < GANGS; g++) {
      normalise_grant(&c->grant[g], s.words[g][d].launches, elapsed);
      least = core_min(least, c->grant[g].borrowed.sum);
    }
    for (int g = 0; g < GANGS; g++) {
      struct core_grant *grant = &c->grant[g];
      grant->borrowed.sum = core_min(grant->borrowed.sum - least, 2 * 64 * MS) / (64 * MS) * (64 * MS);
      grant->borrowed.rest = 0;
    }
    /* only the order matters, not the time */
    uint64_t served[GANGS] = {c->grant[0].served.sum, c->grant[1].served.sum};
    for (int g = 0; g < GANGS; g++)
      c->grant[g].served = (struct core_vtime){.sum = served[g] > served[!g]};
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
      if (w->collectives && s.base[g][d]) { /* only counts relative to the common point matter */
        uint64_t back = core_min(s.base[g][d], w->collectives) - 1;
        w->collectives -= back;
        s.base[g][d] -= back;
        w->cut -= w->cut ? back : 0;
      }
    }
  }
  shift(&s.next_ns, elapsed, 0);
}

/* ---- initial state ---- */

void model_start(void) {
  struct gs_arbiter_config config;
  uint32_t devices[DEVICES] = {0, 1};
  gs_arbiter_defaults(&config);
  config.lease_ns = options.lease_ms * (uint64_t)MS;
  config.bound_alone_ns = config.bound_ns;
  config.early_idle_ns = MS;
  config.bucket_ns = 4 * MS;
  config.reserve_milli = 0;
  struct gs_share share[DEVICES];
  for (int d = 0; d < DEVICES; d++) {
    share[d] = (struct gs_share){
        .guarantee_milli = 500, .limit_milli = 1000, .weight = 1, .class_ = 2, .flags = GS_SHARE_GANG};
    if (gs_core_create(&core[d], &config, T0) < 0)
      abort();
  }
  if (gs_gangs_create(&gangs, &config) < 0)
    abort();
  for (int g = 0; g < GANGS; g++) {
    limits[g] = (struct gs_limits){.slots_high = DEVICES, .ndevices = DEVICES};
    entry[g] = (struct entry){.present = true,
                              .limits = &limits[g],
                              .usage = &usage[g],
                              .seats = &seats[g],
                              .claims = claims[g],
                              .ndevices = DEVICES,
                              .cuts = &cuts[g]};
    for (int d = 0; d < DEVICES; d++) {
      usage[g].slot[d].state = GS_SLOT_LIVE;
      seats[g].seat[d].taken = 1;
      usage[g].slot[d].device[d].collectives = 1; /* as after one collective that all ranks completed */
      cuts[g].base[d][d] = 1;
      entry[g].device[d] = (uint32_t)d;
    }
    gs_gangs_add(gangs, core, g, devices, DEVICES, share, 0, T0);
  }
  model_save();
  s.bell = true;
}

void model_end(void) {
  for (int d = 0; d < DEVICES; d++)
    gs_core_destroy(core[d]);
  gs_gangs_destroy(gangs);
}
