/* Stress test of the arbiter's thread, for the sanitizers: tenants in threads, API calls from two threads, grants that
 * are added and removed. Tenants report that they keep device FULL busy and leave the other device idle. The first and
 * the last grant are gangs, the second may hold leases together with others. Exit status 0: FULL was never leased twice
 * (apart from those), the other device was, and every tenant was served.
 *   stress SECONDS */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>

#include "../page_process.h"
#include "arbiter/gs_arbiter.h"

enum { TENANTS = 8, PLAIN_FIRST = 2, PLAIN_LAST = TENANTS - 2, DEVICES = 2, FULL = 0 };

struct tenant {
  struct gs_limits *limits;
  struct gs_usage *usage;
  struct gs_seats seats;
  int bell;
  int32_t grant;
  uint64_t served[DEVICES];
  pthread_t thread;
};

static gs_arbiter *arbiter;
static struct tenant tenants[TENANTS];
static int stopping, failed;

static void must(int rc, const struct gs_err *err, const char *what) {
  if (rc >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, err->msg);
  __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
}

static void use(struct tenant *t, unsigned device, unsigned *seed) {
  struct gs_device_limits *limits = &t->limits->device[device];
  struct gs_slot_device *slot = &t->usage->slot[0].device[device];
  uint32_t lease = __atomic_load_n(&limits->lease, __ATOMIC_ACQUIRE);
  if (lease & GS_LEASE_HELD) {
    __atomic_store_n(&slot->waiting, 0, __ATOMIC_RELEASE);
    __atomic_fetch_add(&slot->launches, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->collectives, (uint64_t)rand_r(seed) % 2, __ATOMIC_RELAXED);
    if (device == FULL)
      __atomic_fetch_add(&slot->busy_ns, 1000000000u, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->queue_end_ns, now_ns() + 1000 * (uint64_t)(rand_r(seed) % 500), __ATOMIC_RELEASE);
    __atomic_fetch_add(&t->served[device], 1, __ATOMIC_RELAXED);
  } else {
    __atomic_store_n(&slot->drained, lease, __ATOMIC_RELEASE);
    if (rand_r(seed) % 3)
      __atomic_store_n(&slot->waiting, 1, __ATOMIC_RELEASE);
    ring(t->bell);
  }
}

static void *run_tenant(void *argument) {
  struct tenant *t = argument;
  unsigned seed = (unsigned)(t - tenants) + 1;
  while (!__atomic_load_n(&stopping, __ATOMIC_RELAXED)) {
    use(t, (unsigned)rand_r(&seed) % DEVICES, &seed);
    nap((100 + (uint64_t)rand_r(&seed) % 400) * US);
  }
  return NULL;
}

static void take(struct tenant *t) {
  __atomic_store_n(&t->usage->slot[0].state, GS_SLOT_LIVE, __ATOMIC_RELEASE);
  __atomic_store_n(&t->seats.seat[0].taken, 1, __ATOMIC_RELEASE);
}

static void add(struct tenant *t) {
  uint32_t devices[DEVICES] = {0, 1};
  struct gs_share share[DEVICES];
  struct gs_err err;
  for (unsigned d = 0; d < DEVICES; d++)
    share[d] = (struct gs_share){
        .guarantee_milli = 100,
        .limit_milli = d ? 1000 : 600,
        .weight = 1,
        .flags = t == tenants || t == &tenants[TENANTS - 1] ? GS_SHARE_GANG
                 : t == &tenants[1]                         ? GS_SHARE_BESIDE
                                                            : 0,
    };
  must(gs_arbiter_grant_add(arbiter, t->limits, t->usage, &t->seats, devices, DEVICES, share, t->bell, &t->grant, &err),
       &err, "add");
}

static void *change(void *unused) {
  unsigned seed = 99;
  struct gs_err err;
  (void)unused;
  while (!__atomic_load_n(&stopping, __ATOMIC_RELAXED)) {
    struct tenant *t = &tenants[TENANTS - 1 - rand_r(&seed) % 2];
    struct gs_share share[DEVICES] = {{50, 1000, 2, 0, 0, 0}, {150, 1000, 0, 1, 2, 0}};
    must(gs_arbiter_grant_share(arbiter, t->grant, share, &err), &err, "share");
    if (rand_r(&seed) % 4 == 0)
      must(gs_arbiter_slot_clear(arbiter, t->grant, 0, &err), &err, "clear");
    take(t);
    if (rand_r(&seed) % 4 == 0) {
      must(gs_arbiter_grant_remove(arbiter, t->grant, &err), &err, "remove");
      add(t);
    }
    nap(2000 * US);
  }
  return NULL;
}

/* Lease words are read one after another, so a word counts only if it was odd before and after the other read. */
static bool leased_twice(unsigned device) {
  for (unsigned i = PLAIN_FIRST; i <= PLAIN_LAST; i++) {
    const uint32_t *mine = &tenants[i].limits->device[device].lease;
    uint32_t before = __atomic_load_n(mine, __ATOMIC_SEQ_CST);
    if (!(before & GS_LEASE_HELD))
      continue;
    for (unsigned j = PLAIN_FIRST; j <= PLAIN_LAST; j++) {
      if (j == i)
        continue;
      uint32_t other = __atomic_load_n(&tenants[j].limits->device[device].lease, __ATOMIC_SEQ_CST);
      if ((other & GS_LEASE_HELD) && __atomic_load_n(mine, __ATOMIC_SEQ_CST) == before)
        return true;
    }
  }
  return false;
}

int main(int argc, char **argv) {
  struct gs_arbiter_config config;
  struct gs_err err = {0, ""};
  double seconds = argc > 1 ? atof(argv[1]) : 2;
  gs_arbiter_defaults(&config);
  config.lease_ns = 2000000;
  config.realtime = 0;
  must(gs_arbiter_create(&arbiter, &config, &err), &err, "create");
  for (unsigned i = 0; i < TENANTS; i++) {
    struct tenant *t = &tenants[i];
    t->limits = calloc(1, sizeof *t->limits);
    t->usage = calloc(1, sizeof *t->usage);
    t->bell = eventfd(0, EFD_NONBLOCK);
    t->limits->slots_high = 1;
    take(t);
    add(t);
    pthread_create(&t->thread, NULL, run_tenant, t);
  }
  pthread_t changer;
  pthread_create(&changer, NULL, change, NULL);
  struct gs_event events[64];
  uint64_t after = 0;
  bool twice[DEVICES] = {false};
  for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end && !failed;) {
    struct gs_grant_stats grant;
    struct gs_device_stats device;
    for (unsigned d = 0; d < DEVICES; d++) {
      must(gs_arbiter_grant_stats(arbiter, tenants[0].grant, d, &grant, &err), &err, "stats");
      must(gs_arbiter_device_stats(arbiter, d, &device, &err), &err, "stats");
      if (device.leased_ns + device.idle_ns + device.switch_ns != device.wall_ns)
        must(-1, &(struct gs_err){-1, "do not add up to the wall"}, "books");
      twice[d] = twice[d] || leased_twice(d);
    }
    while (gs_arbiter_events(arbiter, &after, events, 64) == 64) {
    }
    nap(500 * US);
  }
  __atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
  if (twice[FULL])
    must(-1, &(struct gs_err){-1, "leased twice"}, "a device that its holder fills");
  if (!twice[1 - FULL])
    must(-1, &(struct gs_err){-1, "never leased to two at once"}, "a device that its holders leave idle");
  pthread_join(changer, NULL);
  for (unsigned i = 0; i < TENANTS; i++)
    pthread_join(tenants[i].thread, NULL);
  gs_arbiter_destroy(arbiter);
  for (unsigned i = 0; i < TENANTS; i++) {
    for (unsigned d = 0; d < DEVICES; d++)
      if (tenants[i].served[d] == 0)
        must(-1, &(struct gs_err){-1, "never served"}, "tenant");
    close(tenants[i].bell);
    free(tenants[i].limits);
    free(tenants[i].usage);
  }
  return failed;
}
