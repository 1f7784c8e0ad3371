/* Gangs with pages in which a tenant may forge every field: a gang always has all its devices or none, its ranks run
 * ahead by a bounded number of steps only, and an honest gang is served. Two devices; a lying gang, a lying grant of
 * one device, an honest gang. */
#include "fuzz.h"
#include "arbiter/core/core.h"
#include "arbiter/thread/state.h"

enum { GRANTS = 3, DEVICES = 2, SLOTS = 3, STEPS_MAX = 150, HONEST = 2, AHEAD_MAX = 64 };

static struct gs_limits limits[GRANTS];
static struct gs_usage *usage[GRANTS];
static struct entry entry[GRANTS];
static struct gs_seats seats[GRANTS];
static struct gs_claim claims[GRANTS][2 * GS_MAX_SLOTS];
static gs_core *core[GS_ARBITER_MAX_DEVICES];
static gs_gangs *gangs;

static bool is_gang(int grant) { return grant != 1; }

static void lie(struct bytes *in, int grant) {
  struct gs_slot *slot = &usage[grant]->slot[take8(in) % SLOTS];
  seats[grant].seat[slot - usage[grant]->slot].taken = (slot->state = take8(in) % 3) == GS_SLOT_LIVE;
  slot->generation = take8(in) % 3;
  take(in, &slot->device[take8(in) % DEVICES], sizeof slot->device[0]);
  if (take8(in) % 4 == 0)
    limits[grant].slots_high = take32(in);
}

static void carry_out(uint32_t device, const struct gs_core_decision *decision, uint64_t now) {
  MUST(device < DEVICES && decision->grant >= 0 && decision->grant < GRANTS);
  MUST(decision->other >= -1 && decision->other < GRANTS);
  uint32_t *lease = &limits[decision->grant].device[device].lease;
  if (decision->action == GS_CORE_LEASE || decision->action == GS_CORE_LEASE_BESIDE) {
    MUST(!(*lease & GS_LEASE_HELD));
    *lease += 1;
  } else if (decision->action == GS_CORE_REVOKE) {
    MUST(*lease & GS_LEASE_HELD);
    if (is_gang(decision->grant))
      arbiter_set_cuts(&entry[decision->grant], now);
    *lease += 1;
  }
}

static void look(uint64_t now) {
  for (int g = 0; g < GRANTS; g++) {
    struct gs_core_view view[DEVICES];
    uint32_t wanted = 0;
    for (uint32_t o = 0; o < entry[g].ndevices; o++) {
      arbiter_read_view(&entry[g], o, now, &view[o]);
      MUST(view[o].live <= GS_MAX_SLOTS && view[o].busy_until_ns <= now + QUEUE_CLAIM_MAX_NS);
      wanted += view[o].waiting;
    }
    for (uint32_t o = 0; o < entry[g].ndevices; o++) {
      view[o].wanted = wanted;
      view[o].spins = entry[g].cuts && entry[g].cuts->uneven;
      gs_core_observe(core[entry[g].device[o]], g, &view[o]);
    }
  }
}

static void check(int grant) {
  MUST(!((limits[grant].device[0].lease ^ limits[grant].device[1].lease) & GS_LEASE_HELD));
  for (int s = 0; s < SLOTS; s++)
    for (int o = 0; o < DEVICES; o++) {
      const struct gs_slot_device *d = &usage[grant]->slot[s].device[o];
      if (usage[grant]->slot[s].state == GS_SLOT_LIVE && entry[grant].cuts->open && grant == HONEST)
        MUST(d->cut <= d->collectives + AHEAD_MAX);
    }
}

/* Returns the time of the next step. */
static uint64_t decide(uint64_t now) {
  static struct gs_gang_decision made[GS_GANG_DECISIONS];
  struct gs_core_decision decisions[GS_CORE_DECISIONS];
  uint64_t next = UINT64_MAX, when;
  uint32_t again = 1;
  for (int pass = 0; again; pass++) {
    MUST(pass < 64);
    look(now);
    next = UINT64_MAX;
    for (uint32_t d = 0; d < DEVICES; d++) {
      int n = gs_core_step(core[d], now, decisions, &when);
      MUST(n >= 0 && n <= GS_CORE_DECISIONS);
      for (int i = 0; i < n; i++)
        carry_out(d, &decisions[i], now);
      if (when < next)
        next = when;
    }
    int n = gs_gangs_step(gangs, core, now, made, &again, &when);
    MUST(n >= 0 && n <= GS_GANG_DECISIONS);
    for (int i = 0; i < n; i++)
      carry_out(made[i].device, &made[i].core, now);
    if (when < next)
      next = when;
  }
  for (int g = 0; g < GRANTS; g++) {
    if (!is_gang(g))
      continue;
    bool drained = !gs_core_undrained_since(core[0], g) && !gs_core_undrained_since(core[1], g);
    bool knew = drained, held = gs_gangs_held(gangs, g);
    arbiter_follow_ranks(&entry[g], held, &drained, now, &when);
    for (uint32_t d = 0; d < DEVICES && knew && !drained && !held; d++)
      gs_core_gang_clear_drained(core[d], g, now);
    if (when < next)
      next = when;
    check(g);
  }
  return next;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct cuts cuts[GRANTS];
  struct bytes in = {data, size};
  struct gs_arbiter_config config;
  struct gs_device_stats books;
  uint32_t devices[DEVICES] = {0, 1};
  uint64_t now = 1000000000, next = 0;
  gs_arbiter_defaults(&config);
  MUST(gs_gangs_create(&gangs, &config) == 0);
  for (int d = 0; d < DEVICES; d++)
    MUST(gs_core_create(&core[d], &config, now) == 0);
  for (int g = 0; g < GRANTS; g++) {
    struct gs_share share[DEVICES];
    for (int d = 0; d < DEVICES; d++)
      share[d] = (struct gs_share){300, 1000, .weight = 1, .flags = is_gang(g) ? GS_SHARE_GANG : 0};
    if (!usage[g])
      usage[g] = calloc(1, sizeof *usage[g]);
    memset(usage[g]->slot, 0, SLOTS * sizeof usage[g]->slot[0]);
    memset(&seats[g], 0, sizeof seats[g]);
    memset(claims[g], 0, sizeof claims[g]);
    memset(&cuts[g], 0, sizeof cuts[g]);
    limits[g] = (struct gs_limits){.slots_high = SLOTS, .ndevices = DEVICES};
    entry[g] = (struct entry){.limits = &limits[g],
                              .usage = usage[g],
                              .seats = &seats[g],
                              .claims = claims[g],
                              .ndevices = is_gang(g) ? DEVICES : 1,
                              .device = {0, 1}};
    entry[g].cuts = is_gang(g) ? &cuts[g] : NULL;
    if (is_gang(g))
      gs_gangs_add(gangs, core, g, devices, DEVICES, share, 0, now);
    else
      gs_core_add(core[0], g, &share[0], 0, now);
  }
  /* the honest gang always has work on its devices, from one of its ranks */
  usage[HONEST]->slot[0].state = GS_SLOT_LIVE;
  seats[HONEST].seat[0].taken = 1;
  usage[HONEST]->slot[0].device[0].waiting = 1;
  usage[HONEST]->slot[0].device[0].collectives = 5;
  for (int step = 0; step < STEPS_MAX && in.left > 0; step++) {
    uint8_t what = take8(&in);
    if (what & 1)
      lie(&in, (what >> 1) % HONEST);
    now += take32(&in) % 30000000;
    next = decide(now);
    for (int d = 0; d < DEVICES; d++) {
      gs_core_device_stats(core[d], &books);
      MUST(books.leased_ns + books.idle_ns + books.switch_ns == books.wall_ns);
    }
  }
  for (int step = 0; step < 6000 && !gs_gangs_held(gangs, HONEST); step++) {
    next = decide(now);
    now = next == UINT64_MAX || next <= now ? now + 1000000 : next;
  }
  MUST(gs_gangs_held(gangs, HONEST));
  gs_gangs_remove(gangs, core, 0, now);
  for (int d = 0; d < DEVICES; d++)
    gs_core_destroy(core[d]);
  gs_gangs_destroy(gangs);
  return 0;
}
