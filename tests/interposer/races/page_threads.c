/* The shared pages under a race detector: threads act as the processes of a grant, each with its own slot. They run
 * with the real arbiter's thread and with a thread that acts as the daemon: changes the limit, clears the slots of dead
 * processes, increases the number of slots.
 *   page_threads PROCESSES SECONDS
 * Exit status 0 if no more than the highest limit was ever held, every grant was within the limit at its time, and
 * everything is zero at the end. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "arbiter/gs_arbiter.h"
#include "page/page.h"

enum { MOST = 32, HIGH = 1000, LOW = 400 };

struct tenant {
  pthread_t thread;
  uint32_t slot;
  bool stop;
};

static struct gs_limits *limits;
static struct gs_usage *usage;
static struct gs_seats seats;
static struct tenant tenants[MOST];
static gs_arbiter *arbiter;
static int32_t grant;
static int bell, stopping;
static int64_t held;
static uint64_t grants, refusals, bad;

static void pause_us(long us) {
  struct timespec t = {0, us * 1000};
  nanosleep(&t, NULL);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void must(bool holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "not so: %s\n", what);
  __atomic_fetch_add(&bad, 1, __ATOMIC_SEQ_CST);
}

/* Writes the time fields and reads the lease as an interposer does. */
static void submit(struct gs_slot_device *words, unsigned *seed) {
  uint32_t lease = __atomic_load_n(&limits->device[0].lease, __ATOMIC_ACQUIRE);
  uint64_t one = 1;
  if (lease & GS_LEASE_HELD) {
    __atomic_store_n(&words->waiting, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&words->launches, words->launches + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&words->queue_end_ns, now_ns() + (uint64_t)(rand_r(seed) % 1000000), __ATOMIC_RELAXED);
  } else {
    __atomic_store_n(&words->drained, lease, __ATOMIC_RELEASE);
    __atomic_store_n(&words->waiting, 1, __ATOMIC_SEQ_CST);
    (void)!write(bell, &one, sizeof one);
  }
}

static void *compete(void *argument) {
  struct tenant *tenant = argument;
  struct gs_pages pages = {limits, usage};
  unsigned seed = tenant->slot * 7919u + 1;
  while (!__atomic_load_n(&tenant->stop, __ATOMIC_ACQUIRE)) {
    uint64_t bytes = 1 + (uint64_t)rand_r(&seed) % (HIGH / 2);
    submit(&usage->slot[tenant->slot].device[0], &seed);
    if (gs_page_reserve(&pages, tenant->slot, 0, bytes, true) < 0) {
      __atomic_fetch_add(&refusals, 1, __ATOMIC_RELAXED);
      continue;
    }
    __atomic_fetch_add(&grants, 1, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&held, (int64_t)bytes, __ATOMIC_SEQ_CST) > HIGH)
      must(false, "within the limit");
    (void)gs_page_used(&pages, 0);
    __atomic_fetch_sub(&held, (int64_t)bytes, __ATOMIC_SEQ_CST);
    /* as if the process were killed here: the bytes stay in the slot until it is cleared */
    if (!__atomic_load_n(&tenant->stop, __ATOMIC_ACQUIRE))
      gs_page_give_back(&pages, tenant->slot, 0, bytes);
  }
  return NULL;
}

static void start(uint32_t slot) {
  tenants[slot].slot = slot;
  __atomic_store_n(&tenants[slot].stop, false, __ATOMIC_RELEASE);
  __atomic_store_n(&usage->slot[slot].state, GS_SLOT_LIVE, __ATOMIC_RELEASE);
  __atomic_store_n(&seats.seat[slot].taken, 1, __ATOMIC_RELEASE);
  pthread_create(&tenants[slot].thread, NULL, compete, &tenants[slot]);
}

static void bury(uint32_t slot) {
  struct gs_err err = {0, ""};
  __atomic_store_n(&tenants[slot].stop, true, __ATOMIC_RELEASE);
  pthread_join(tenants[slot].thread, NULL);
  must(gs_arbiter_slot_clear(arbiter, grant, slot, &err) == 0, err.msg);
}

/* The daemon. A limit that drops below the memory held only prevents further allocations. */
static void *govern(void *argument) {
  uint32_t processes = *(uint32_t *)argument;
  unsigned seed = 5;
  while (!__atomic_load_n(&stopping, __ATOMIC_ACQUIRE)) {
    uint32_t victim = (uint32_t)rand_r(&seed) % processes;
    __atomic_store_n(&limits->device[0].memory_bytes, rand_r(&seed) % 2 ? HIGH : LOW, __ATOMIC_RELEASE);
    __atomic_fetch_add(&limits->daemon_epoch, 1, __ATOMIC_RELEASE);
    bury(victim);
    start(victim);
    pause_us(2000);
  }
  return NULL;
}

int main(int argc, char **argv) {
  uint32_t processes = argc > 1 ? (uint32_t)atoi(argv[1]) : 6, devices[1] = {0};
  double seconds = argc > 2 ? atof(argv[2]) : 2;
  struct gs_share share = {.guarantee_milli = 500, .limit_milli = 1000, .weight = 1};
  struct gs_arbiter_config config;
  struct gs_err err = {0, ""};
  struct gs_grant_stats stats;
  pthread_t daemon;
  if (processes < 1 || processes > MOST)
    return 2;
  limits = calloc(1, sizeof *limits);
  usage = calloc(1, sizeof *usage);
  bell = eventfd(0, EFD_NONBLOCK);
  limits->ndevices = 1;
  limits->slots_high = processes;
  limits->device[0].memory_bytes = HIGH;
  gs_arbiter_defaults(&config);
  config.lease_ns = 2000000;
  config.realtime = 0;
  must(gs_arbiter_create(&arbiter, &config, &err) == 0, err.msg);
  must(gs_arbiter_grant_add(arbiter, limits, usage, &seats, devices, 1, &share, bell, &grant, &err) == 0, err.msg);
  for (uint32_t i = 0; i < processes; i++)
    start(i);
  pthread_create(&daemon, NULL, govern, &processes);
  for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end; pause_us(1000))
    must(gs_arbiter_grant_stats(arbiter, grant, 0, &stats, &err) == 0, err.msg);
  __atomic_store_n(&stopping, 1, __ATOMIC_RELEASE);
  pthread_join(daemon, NULL);
  for (uint32_t i = 0; i < processes; i++)
    bury(i);
  struct gs_pages pages = {limits, usage};
  must(gs_page_used(&pages, 0) == 0, "all is zero in the end");
  must(grants > 0 && refusals > 0, "a race");
  gs_arbiter_destroy(arbiter);
  printf("grants %llu refusals %llu\n", (unsigned long long)grants, (unsigned long long)refusals);
  close(bell);
  free(limits);
  free(usage);
  return bad != 0;
}
