/* The arbiter with pages whose every field a tenant may forge: only the liar may lose by it. One device, three grants,
 * two of which write arbitrary values; the input also advances the time. */
#include "fuzz.h"
#include "arbiter/core/core.h"
#include "arbiter/thread/state.h"

enum { GRANTS = 3, HONEST = 2, SLOTS = 3, STEPS_MAX = 200 };

static struct gs_limits limits[GRANTS];
static struct gs_usage *usage[GRANTS];
static struct entry entry[GRANTS];
static uint32_t lease[GRANTS];

static void lie(struct bytes *in, int grant) {
  struct gs_slot *slot = &usage[grant]->slot[take8(in) % SLOTS];
  slot->state = take8(in) % 3;
  take(in, &slot->device[0], sizeof slot->device[0]);
  if (take8(in) % 4 == 0)
    limits[grant].slots_high = take32(in);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct bytes in = {data, size};
  struct gs_arbiter_config config;
  struct gs_core_decision decisions[GS_CORE_DECISIONS];
  struct gs_device_stats device;
  uint64_t now = 1000000000, next = 0;
  gs_core *core;
  gs_arbiter_defaults(&config);
  MUST(gs_core_create(&core, &config, now) == 0);
  for (int i = 0; i < GRANTS; i++) {
    if (!usage[i])
      usage[i] = calloc(1, sizeof *usage[i]);
    memset(usage[i]->slot, 0, SLOTS * sizeof usage[i]->slot[0]);
    limits[i] = (struct gs_limits){.slots_high = SLOTS, .ndevices = 1};
    entry[i] = (struct entry){.limits = &limits[i], .usage = usage[i], .ndevices = 1};
    lease[i] = 0;
    struct gs_share share = {.guarantee_milli = 250u * (uint32_t)(i > 0), .limit_milli = 1000, .weight = (uint32_t)i};
    MUST(gs_core_add(core, i, &share, 0, now) >= 0);
  }
  /* the honest grant always has work */
  usage[HONEST]->slot[0].state = GS_SLOT_LIVE;
  usage[HONEST]->slot[0].device[0].waiting = 1;
  for (int step = 0; step < STEPS_MAX && in.left > 0; step++) {
    uint8_t what = take8(&in);
    if (what & 1)
      lie(&in, (what >> 1) % 2);
    now += take32(&in) % 30000000;
    for (int i = 0; i < GRANTS; i++) {
      struct gs_core_view view;
      limits[i].device[0].lease = lease[i];
      arbiter_read_view(&entry[i], 0, now, &view);
      MUST(view.live <= GS_MAX_SLOTS && view.busy_until_ns <= now + QUEUE_CLAIM_MAX_NS);
      gs_core_observe(core, i, &view);
    }
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
    for (int i = 0; i < GRANTS; i++) {
      struct gs_core_view view;
      limits[i].device[0].lease = lease[i];
      arbiter_read_view(&entry[i], 0, now, &view);
      gs_core_observe(core, i, &view);
    }
    int made = gs_core_step(core, now, decisions, &next);
    for (int i = 0; i < made; i++)
      carry_out(&decisions[i]);
    now = next == UINT64_MAX || next <= now ? now + 1000000 : next;
  }
  MUST(lease[HONEST] & GS_LEASE_HELD);
  gs_core_destroy(core);
  return 0;
}
