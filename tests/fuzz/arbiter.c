/* The arbiter with pages in which a tenant may forge every field: only the liar may lose by it. One device and three
 * grants, two of which write arbitrary values; the input also advances the time. */
#include "fuzz.h"
#include "arbiter/core/core.h"
#include "arbiter/thread/state.h"

#include <time.h>

enum { GRANTS = 3, HONEST = 2, SLOTS = 3, STEPS_MAX = 200 };
#define CAPACITY (UINT64_C(1) << 30)
#define BEGIN_NS UINT64_C(1000000000)
#define SECOND_NS UINT64_C(1000000000)
#define DRAIN_NS UINT64_C(50000)

static struct gs_limits limits[GRANTS];
static struct gs_usage *usage[GRANTS];
static struct entry entry[GRANTS];
static uint32_t lease[GRANTS];
static struct gs_seats seats[GRANTS];
static struct gs_claim claims[GRANTS][GS_MAX_SLOTS];
static uint64_t clock_ns;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time) {
  (void)clock;
  *time = (struct timespec){(time_t)(clock_ns / SECOND_NS), (long)(clock_ns % SECOND_NS)};
  return 0;
}

static void lie(struct bytes *in, int grant) {
  uint32_t number = take8(in) % SLOTS;
  struct gs_slot *slot = &usage[grant]->slot[number];
  uint8_t how = take8(in);
  if (how % 8 == 0)
    take(in, slot, offsetof(struct gs_slot, device));
  take(in, &slot->device[0], sizeof slot->device[0]);
  if (how % 16 == 1) /* the process has ended, and another gets its slot */
    arbiter_clear_slot(&entry[grant], number);
  if (how % 16 <= 2 && !seats[grant].seat[number].taken)
    seats[grant].seat[number] = (struct gs_seat){1, seats[grant].seat[number].generation + 1, 7, clock_ns};
  if (take8(in) % 4 == 0)
    limits[grant].slots_high = take32(in);
}

/* Whatever was written, the arbiter's validated values are possible ones. */
static void look(gs_core *core, int grant, uint64_t now) {
  struct entry *e = &entry[grant];
  struct gs_core_view view;
  uint64_t before = e->metered[0].busy_ns, lied = 0;
  limits[grant].device[0].lease = lease[grant];
  arbiter_read_view(e, 0, now, &view);
  MUST(view.live <= SLOTS && view.waiting <= view.live && view.running <= view.live);
  MUST(view.busy_until_ns <= now + QUEUE_CLAIM_MAX_NS);
  MUST(view.busy_ns >= before && view.busy_ns <= now - BEGIN_NS + 2 * GS_CLAIM_SLACK_NS);
  MUST(e->memory_bytes[0] <= CAPACITY && e->memory_peak_bytes[0] <= CAPACITY);
  for (int i = 0; i < SLOTS; i++) {
    MUST(seats[grant].seat[i].taken || claims[grant][i].lies == 0);
    MUST(claims[grant][i].busy_ns <= now - seats[grant].seat[i].since_ns + GS_CLAIM_SLACK_NS);
    lied += claims[grant][i].lies != 0;
  }
  MUST(lied >= e->marked && (e->marked == 0 || e->memory_bytes[0] >= CAPACITY / 4));
  MUST(e->nreports <= REPORTS_MAX && (grant != HONEST || e->marked == 0));
  e->nreports = 0;
  gs_core_observe(core, grant, &view);
}

/* The honest grant always has work: it runs while it has the lease, and waits otherwise. */
static void work(uint64_t now, uint64_t dt) {
  struct gs_slot_device *d = &usage[HONEST]->slot[0].device[0];
  bool held = lease[HONEST] & GS_LEASE_HELD;
  d->waiting = !held;
  d->busy_ns += held ? dt : 0;
  d->launches += held;
  d->inflight = held;
  d->queue_end_ns = held ? now + 1000000 : now;
  d->drained = lease[HONEST];
}

static void carry_out(const struct gs_core_decision *decision) {
  MUST(decision->grant >= 0 && decision->grant < GRANTS);
  MUST(decision->other >= -1 && decision->other < GRANTS);
  uint32_t *held = &lease[decision->grant];
  if (decision->action == GS_CORE_LEASE) {
    /* Liars may claim to leave the device idle, and hold leases together; never together with the honest grant. */
    for (int i = 0; i < GRANTS; i++)
      MUST(!(lease[i] & GS_LEASE_HELD) || (i != HONEST && decision->grant != HONEST));
    *held += 1;
  } else if (decision->action == GS_CORE_REVOKE) {
    MUST(*held & GS_LEASE_HELD);
    *held += 1;
  }
}

static gs_core *begin(uint64_t now) {
  struct gs_arbiter_config config;
  gs_core *core;
  gs_arbiter_defaults(&config);
  MUST(gs_core_create(&core, &config, now) == 0);
  clock_ns = now;
  for (int i = 0; i < GRANTS; i++) {
    if (!usage[i])
      usage[i] = calloc(1, sizeof *usage[i]);
    memset(usage[i]->slot, 0, SLOTS * sizeof usage[i]->slot[0]);
    limits[i] = (struct gs_limits){.slots_high = SLOTS, .ndevices = 1, .device[0].memory_bytes = CAPACITY / 4};
    memset(claims[i], 0, SLOTS * sizeof claims[i][0]);
    memset(seats[i].seat, 0, SLOTS * sizeof seats[i].seat[0]);
    seats[i].capacity_bytes[0] = CAPACITY;
    entry[i] =
        (struct entry){.limits = &limits[i], .usage = usage[i], .seats = &seats[i], .claims = claims[i], .ndevices = 1};
    lease[i] = 0;
    struct gs_share share = {.guarantee_milli = 250u * (uint32_t)(i > 0), .limit_milli = 1000, .weight = (uint32_t)i};
    MUST(gs_core_add(core, i, &share, 0, now) >= 0);
  }
  usage[HONEST]->slot[0].state = GS_SLOT_LIVE;
  seats[HONEST].seat[0] = (struct gs_seat){1, 0, 0, now};
  usage[HONEST]->slot[0].device[0].waiting = 1;
  return core;
}

/* For a second, processes write the input into their pages again and again: the honest grant, which always has work,
 * gets the device for at least its guarantee. */
static void share(const uint8_t *data, size_t size) {
  struct gs_core_decision decisions[GS_CORE_DECISIONS];
  uint64_t now = BEGIN_NS, next = now, held = 0, end = now + SECOND_NS;
  gs_core *core = begin(now);
  struct bytes in = {data, size};
  for (int i = 0; i < HONEST; i++)
    seats[i].seat[0] = (struct gs_seat){1, 0, 0, now};
  while (now < end) {
    uint64_t before = now;
    now = clock_ns = next > now && next < now + 2000000 ? next : now + 2000000;
    held += lease[HONEST] & GS_LEASE_HELD ? now - before : 0;
    work(now, now - before);
    if (in.left == 0)
      in = (struct bytes){data, size};
    lie(&in, take8(&in) % HONEST);
    for (int i = 0; i < GRANTS; i++)
      look(core, i, now);
    int made = gs_core_step(core, now, decisions, &next);
    for (int i = 0; i < made; i++)
      carry_out(&decisions[i]);
    /* Its tails are short, and its bell rings when it has drained; otherwise the time until the next look would be
     * charged to it. */
    if (usage[HONEST]->slot[0].device[0].drained != lease[HONEST])
      next = now + DRAIN_NS;
  }
  MUST(held >= SECOND_NS / 100 * 24);
  gs_core_destroy(core);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct bytes in = {data, size};
  struct gs_core_decision decisions[GS_CORE_DECISIONS];
  struct gs_device_stats device;
  uint64_t now = BEGIN_NS, next = 0;
  gs_core *core;
  if (size > 0 && data[0] % 4 == 0)
    share(data, size);
  core = begin(now);
  for (int step = 0; step < STEPS_MAX && in.left > 0; step++) {
    uint8_t what = take8(&in);
    if (what & 1)
      lie(&in, (what >> 1) % 2);
    uint64_t dt = take32(&in) % 30000000;
    now = clock_ns = now + dt;
    work(now, dt);
    for (int i = 0; i < GRANTS; i++)
      look(core, i, now);
    int made = gs_core_step(core, now, decisions, &next);
    MUST(made >= 0 && made <= GS_CORE_DECISIONS);
    for (int i = 0; i < made; i++)
      carry_out(&decisions[i]);
    MUST(gs_core_holder(core) < 0 || (lease[gs_core_holder(core)] & GS_LEASE_HELD));
    gs_core_device_stats(core, &device);
    MUST(device.leased_ns + device.idle_ns + device.switch_ns == device.wall_ns);
  }
  /* whatever the liars wrote, the honest grant is served in the end */
  for (int step = 0; step < 4000 && !(lease[HONEST] & GS_LEASE_HELD); step++) {
    for (int i = 0; i < GRANTS; i++)
      look(core, i, now);
    int made = gs_core_step(core, now, decisions, &next);
    for (int i = 0; i < made; i++)
      carry_out(&decisions[i]);
    uint64_t before = now;
    now = clock_ns = next == UINT64_MAX || next <= now ? now + 1000000 : next;
    work(now, now - before);
  }
  MUST(lease[HONEST] & GS_LEASE_HELD);
  gs_core_destroy(core);
  return 0;
}
