#include "virtual.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define NEVER UINT64_MAX
/* The work still in flight when a process reports that it has drained. */
#define DRAINED_NS (MS / 5)
/* Limit of decision rounds at one instant. */
#define ROUNDS_MAX 200

static void fail(struct virtual_node *node, const char *what) {
  if (!node->broken)
    node->broken = what;
}

struct virtual_node *virtual_create(const struct gs_arbiter_config *config, uint32_t ndevices, uint32_t exclusive,
                                    uint64_t now_ns) {
  struct virtual_node *node = calloc(1, sizeof *node);
  if (!node)
    return NULL;
  node->now_ns = now_ns;
  node->next_ns = NEVER;
  node->ndevices = ndevices;
  node->exclusive = exclusive;
  bool made = gs_gangs_create(&node->gangs, config) == 0;
  for (uint32_t d = 0; d < ndevices && made; d++) {
    made = gs_core_create(&node->core[d], config, now_ns) == 0;
    node->device[d].core = node->core[d];
    node->device[d].next_ns = NEVER;
  }
  if (made)
    return node;
  virtual_destroy(node);
  return NULL;
}

void virtual_destroy(struct virtual_node *node) {
  for (uint32_t d = 0; d < node->ndevices; d++)
    gs_core_destroy(node->core[d]);
  gs_gangs_destroy(node->gangs);
  free(node->event);
  free(node);
}

/* ---- the machine ---- */

static struct virtual_tenant *member(struct virtual_device *device, int32_t i) {
  return &device->tenant[device->members[i]];
}

static int processes(const struct virtual_tenant *t) { return t->processes ? (int)t->processes : 1; }

/* Number of processes between which the device is time-sliced. */
static int count_running(struct virtual_device *device) {
  int running = 0;
  for (int32_t i = 0; i < device->nmembers; i++)
    running += member(device, i)->queued > 0 ? processes(member(device, i)) : 0;
  return running;
}

/* Returns how long a queue takes with `running` processes on the device. */
static double takes(const struct virtual_tenant *t, int running) { return t->queued * running / processes(t); }

static bool endless(const struct virtual_tenant *t) { return t->work > 1e300; }

/* With slices: whose turn it is. A turn ends early when its queue is empty. */
static void next_turn(const struct virtual_node *node, struct virtual_device *device) {
  bool over = device->runner >= device->nmembers || node->now_ns >= device->turn_end_ns;
  if (!node->slice_ns || (!over && member(device, device->runner)->queued > 0))
    return;
  for (int32_t n = 1; n <= device->nmembers; n++) {
    int32_t i = (device->runner + n) % device->nmembers;
    if (member(device, i)->queued <= 0)
      continue;
    device->runner = i;
    device->turn_end_ns = node->now_ns + node->slice_ns * (uint64_t)processes(member(device, i));
    return;
  }
}

/* The part of the device that a tenant with queued work has at this instant. */
static double part_of(const struct virtual_node *node, struct virtual_device *device, int32_t i, int running) {
  if (node->slice_ns)
    return i == device->runner ? 1 : 0;
  return (double)processes(member(device, i)) / running;
}

/* Returns the ns until a queue empties, a gap or a turn ends, or infinity. A queue that is refilled endlessly never
 * empties. */
static double until_change(const struct virtual_node *node, struct virtual_device *device) {
  int running = count_running(device);
  double first = 1.0 / 0.0;
  next_turn(node, device);
  if (node->slice_ns && running)
    first = (double)(device->turn_end_ns - node->now_ns);
  for (int32_t i = 0; i < device->nmembers; i++) {
    const struct virtual_tenant *t = member(device, i);
    double part = part_of(node, device, i, running);
    double dry = part > 0 ? t->queued / part : 1.0 / 0.0, ready = (double)(t->ready_ns - node->now_ns);
    if (t->queued > 0 && (t->gap || !(t->held && endless(t) && !t->stopped)) && dry < first)
      first = dry;
    if (t->gap && t->work > 0 && t->ready_ns > node->now_ns && ready < first)
      first = ready;
  }
  return first;
}

static void execute(const struct virtual_node *node, struct virtual_device *device, uint64_t dt) {
  int running = count_running(device);
  for (int32_t i = 0; i < device->nmembers; i++) {
    struct virtual_tenant *t = member(device, i);
    if (t->queued <= 0)
      continue;
    double ran = (double)dt * part_of(node, device, i, running);
    t->executed += ran;
    t->queued -= ran;
    if (!t->gap)
      t->metered = t->executed;
    if (t->queued >= 1)
      continue;
    t->queued = 0;
    t->metered = t->executed;
    t->busy_until_ns = node->now_ns + dt;
    t->ready_ns = t->busy_until_ns + t->gap;
  }
}

/* A holder submits up to its depth. Submitted work is removed from `work`. */
static void fill(const struct virtual_node *node, struct virtual_device *device) {
  for (int32_t i = 0; i < device->nmembers; i++) {
    struct virtual_tenant *t = member(device, i);
    if (!t->held || t->stopped || t->work <= 0 || t->queued >= (double)t->depth)
      continue;
    if (t->gap && (t->queued > 0 || node->now_ns < t->ready_ns))
      continue;
    double more = (double)(t->gap ? t->kernel : t->depth) - t->queued;
    more = more < t->work ? more : t->work;
    t->work -= more;
    t->queued += more;
    t->submitted_ns = node->now_ns;
    t->launches++;
  }
}

/* ---- decisions ---- */

static void look(const struct virtual_node *node, struct virtual_device *device, struct virtual_tenant *t,
                 struct gs_core_view *view) {
  int running = count_running(device);
  bool waits_for_kernel = t->gap && t->queued > 0;
  if (!t->stopped)
    t->waiting = t->work > 0 && (waits_for_kernel ? t->ahead : !t->held && node->now_ns >= t->ready_ns);
  bool runs = t->queued > 0 || t->claims_undrained, drained = t->queued <= DRAINED_NS;
  if (t->queued > 0 && !t->expected)
    t->busy_until_ns = (uint64_t)((double)node->now_ns + takes(t, running));
  if (t->queued > 0 && t->expected) {
    t->busy_until_ns = t->submitted_ns + t->expected;
    drained = t->busy_until_ns <= node->now_ns + DRAINED_NS;
  }
  *view = (struct gs_core_view){
      .waiting = t->waiting,
      .spins = t->says_spins,
      .live = t->live,
      .away = t->away,
      .running = runs ? (uint32_t)processes(t) : 0,
      .launches = t->launches,
      .busy_ns = (uint64_t)t->metered,
      .busy_until_ns = t->claims_busy_until_ns ? t->claims_busy_until_ns : t->busy_until_ns,
      .drained = drained && !t->claims_undrained,
  };
}

static void observe(struct virtual_node *node) {
  for (uint32_t d = 0; d < node->ndevices; d++)
    fill(node, &node->device[d]);
  for (int32_t g = 0; g < VIRTUAL_GRANTS; g++) {
    const struct virtual_grant *grant = &node->grant[g];
    struct gs_core_view view[VIRTUAL_DEVICES];
    uint32_t wanted = 0;
    for (uint32_t i = 0; i < grant->ndevices; i++) {
      struct virtual_device *device = &node->device[grant->device[i]];
      look(node, device, &device->tenant[g], &view[i]);
      wanted += view[i].waiting;
    }
    for (uint32_t i = 0; i < grant->ndevices; i++) {
      view[i].wanted = wanted;
      gs_core_observe(node->core[grant->device[i]], g, &view[i]);
    }
  }
}

static void record(struct virtual_node *node, uint32_t device, const struct gs_core_decision *decision,
                   uint64_t waited_ns) {
  if (node->nevents == node->events_room) {
    node->events_room = node->events_room ? 2 * node->events_room : 1024;
    node->event = realloc(node->event, node->events_room * sizeof *node->event);
    if (!node->event)
      abort();
  }
  node->event[node->nevents++] = (struct virtual_event){node->now_ns, device, waited_ns, *decision};
}

/* A tenant without gaps fills the device and must hold it alone. */
static bool may_join(struct virtual_device *device, const struct virtual_tenant *t) {
  bool holders = false, all_lean = t->gap > 0;
  for (int32_t i = 0; i < device->nmembers; i++) {
    const struct virtual_tenant *other = member(device, i);
    holders = holders || other->held;
    all_lean = all_lean && (!other->held || other->gap);
  }
  return !holders || all_lean;
}

static void apply(struct virtual_node *node, uint32_t place, const struct gs_core_decision *decision) {
  struct virtual_device *device = &node->device[place];
  struct virtual_tenant *t = &device->tenant[decision->grant];
  uint64_t waited_ns = NEVER;
  switch (decision->action) {
    case GS_CORE_LEASE:
    case GS_CORE_LEASE_BESIDE:
      if (t->held)
        fail(node, "a lease that it has");
      if (node->exclusive && !may_join(device, t))
        fail(node, "two leases at once");
      waited_ns = t->woke_ns ? node->now_ns - t->woke_ns : NEVER;
      t->woke_ns = 0;
      t->held = 1;
      break;
    case GS_CORE_REVOKE:
      if (!t->held)
        fail(node, "revoked without a lease");
      t->held = 0;
      device->revoked_ns = node->now_ns;
      break;
    case GS_CORE_CONTENDED: t->contended = (int32_t)decision->value; break;
    default: break;
  }
  record(node, place, decision, waited_ns);
}

static void check_gangs(struct virtual_node *node) {
  for (int32_t g = 0; g < VIRTUAL_GRANTS; g++) {
    const struct virtual_grant *grant = &node->grant[g];
    bool held = grant->gang && gs_gangs_held(node->gangs, g);
    for (uint32_t i = 0; i < grant->ndevices && grant->gang; i++) {
      if (node->device[grant->device[i]].tenant[g].held != held)
        fail(node, "a gang has a part of its devices");
      if (gs_core_holds(node->core[grant->device[i]], g) != held)
        fail(node, "a core does not know what its gang has");
    }
  }
}

void virtual_step(struct virtual_node *node) {
  struct gs_core_decision made[GS_CORE_DECISIONS];
  struct gs_gang_decision gangs_made[GS_GANG_DECISIONS];
  bool settled = false;
  for (int round = 0; round < ROUNDS_MAX && !settled; round++) {
    uint32_t again;
    bool any = false;
    observe(node);
    for (uint32_t d = 0; d < node->ndevices; d++) {
      int n = gs_core_step(node->core[d], node->now_ns, made, &node->device[d].next_ns);
      any = any || n;
      for (int i = 0; i < n; i++)
        apply(node, d, &made[i]);
      if (!n && node->device[d].next_ns <= node->now_ns)
        fail(node, "a core wants its next step now, and decides nothing");
    }
    int n = gs_gangs_step(node->gangs, node->core, node->now_ns, gangs_made, &again, &node->next_ns);
    for (int i = 0; i < n; i++)
      apply(node, gangs_made[i].device, &gangs_made[i].core);
    node->steps++;
    if (!again)
      check_gangs(node);
    settled = !again && !any;
  }
  if (!settled)
    fail(node, "decides without end");
}

/* ---- time ---- */

static void pass_time(struct virtual_node *node, uint64_t end_ns, bool arbiter) {
  uint64_t then = end_ns;
  if (arbiter && node->next_ns < then)
    then = node->next_ns;
  for (uint32_t d = 0; d < node->ndevices; d++) {
    struct virtual_device *device = &node->device[d];
    fill(node, device);
    double change = until_change(node, device);
    if (arbiter && device->next_ns < then)
      then = device->next_ns;
    if (change < (double)(end_ns - node->now_ns) && node->now_ns + (uint64_t)change + 1 < then)
      then = node->now_ns + (uint64_t)change + 1;
  }
  then = then > node->now_ns ? then : node->now_ns + 1;
  for (uint32_t d = 0; d < node->ndevices; d++)
    execute(node, &node->device[d], then - node->now_ns);
  node->now_ns = then;
}

void virtual_run(struct virtual_node *node, uint64_t duration_ns) {
  uint64_t end = node->now_ns + duration_ns;
  while (node->now_ns < end && !node->broken) {
    pass_time(node, end, true);
    virtual_step(node);
  }
}

void virtual_run_bare(struct virtual_node *node, uint64_t duration_ns) {
  uint64_t end = node->now_ns + duration_ns;
  while (node->now_ns < end)
    pass_time(node, end, false);
}

/* ---- what happens to tenants ---- */

static struct gs_share share_of(const struct virtual_tenant *t, uint32_t flags) {
  return (struct gs_share){
      .guarantee_milli = t->guarantee,
      .limit_milli = t->limit,
      .weight = t->weight,
      .tier = t->tier,
      .class_ = t->workload,
      .flags = flags,
  };
}

int virtual_add(struct virtual_node *node, int32_t grant, const uint32_t *devices, uint32_t ndevices,
                const struct virtual_tenant *settings, uint32_t flags, int held) {
  struct gs_share share[VIRTUAL_DEVICES];
  bool gang = flags & GS_SHARE_GANG, stands = false;
  node->grant[grant] = (struct virtual_grant){.ndevices = ndevices, .gang = gang};
  for (uint32_t i = 0; i < ndevices; i++) {
    struct virtual_device *device = &node->device[devices[i]];
    node->grant[grant].device[i] = devices[i];
    device->tenant[grant] = *settings;
    device->members[device->nmembers++] = grant;
    share[i] = share_of(settings, flags);
  }
  if (gang)
    stands = gs_gangs_add(node->gangs, node->core, grant, devices, ndevices, share, held, node->now_ns);
  for (uint32_t i = 0; i < ndevices && !gang; i++)
    stands = gs_core_add(node->core[devices[i]], grant, &share[i], held, node->now_ns);
  for (uint32_t i = 0; i < ndevices; i++)
    node->device[devices[i]].tenant[grant].held = stands;
  virtual_step(node);
  return stands;
}

static void drop_member(struct virtual_device *device, int32_t grant) {
  int32_t i = 0;
  while (device->members[i] != grant)
    i++;
  device->nmembers--;
  memmove(&device->members[i], &device->members[i + 1], (size_t)(device->nmembers - i) * sizeof device->members[0]);
}

void virtual_remove(struct virtual_node *node, int32_t grant) {
  struct virtual_grant *g = &node->grant[grant];
  if (g->gang)
    gs_gangs_remove(node->gangs, node->core, grant, node->now_ns);
  for (uint32_t i = 0; i < g->ndevices; i++) {
    if (!g->gang)
      gs_core_remove(node->core[g->device[i]], grant, node->now_ns);
    drop_member(&node->device[g->device[i]], grant);
  }
  g->ndevices = g->gang = 0;
  virtual_step(node);
}

void virtual_share(struct virtual_node *node, int32_t grant) {
  const struct virtual_grant *g = &node->grant[grant];
  for (uint32_t i = 0; i < g->ndevices; i++) {
    struct gs_share share = share_of(&node->device[g->device[i]].tenant[grant], 0);
    gs_core_share(node->core[g->device[i]], grant, &share, node->now_ns);
  }
  virtual_step(node);
}

void virtual_want(struct virtual_node *node, int32_t grant, int32_t device, double work) {
  const struct virtual_grant *g = &node->grant[grant];
  for (uint32_t i = 0; i < g->ndevices; i++) {
    struct virtual_tenant *t = &node->device[g->device[i]].tenant[grant];
    if (device >= 0 && g->device[i] != (uint32_t)device)
      continue;
    if (t->work <= 0 && !t->held)
      t->woke_ns = node->now_ns;
    t->work = work;
  }
  virtual_step(node);
}

void virtual_stop(struct virtual_node *node, int32_t grant, int32_t device, uint32_t stopped) {
  const struct virtual_grant *g = &node->grant[grant];
  for (uint32_t i = 0; i < g->ndevices; i++) {
    if (device >= 0 && g->device[i] != (uint32_t)device)
      continue;
    node->device[g->device[i]].tenant[grant].stopped = stopped;
    if (!stopped) /* its threads at the gate ring the bell again */
      gs_core_bell_rang(node->core[g->device[i]], grant);
  }
  virtual_step(node);
}

void virtual_kill(struct virtual_node *node, int32_t grant) {
  const struct virtual_grant *g = &node->grant[grant];
  for (uint32_t i = 0; i < g->ndevices; i++) {
    struct virtual_tenant *t = &node->device[g->device[i]].tenant[grant];
    t->live = t->waiting = 0;
    t->work = t->queued = 0;
  }
  virtual_step(node);
}
