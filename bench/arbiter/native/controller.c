/* Hands one lease around among the tenants of a page:
 *   controller PAGE lock QUANTUM_MS       first come, first served; taken back after the quantum if another tenant waits
 *   controller PAGE rotation SLICE_MS     the waiting tenant with the least time for its share, a slice at a time
 * The next tenant gets the lease when the one before reports that its work is done. Ends when `stop` is set and the bell rung,
 * and prints {"leases": N, "reclaim_us": [from each revoke of a tenant that still wanted to its release]}. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "page.h"

enum { RECLAIMS_MAX = 65536, LOOK_NS = 20000000 };

enum phase { FREE, HELD, DRAINING };

static struct bench_page *page;
static bool rotation;
static uint64_t quantum_ns;

static enum phase phase;
static uint32_t holder;
static uint64_t leased_ns, end_ns, revoked_ns; /* revoked: 0 when it was given up */
static double served[BENCH_TENANTS];           /* ns for a share of 1 */
static uint64_t leases;
static uint32_t reclaim_us[RECLAIMS_MAX];
static unsigned nreclaims;

static void move_lease(struct bench_tenant *t) {
  store32(&t->lease, load32(&t->lease) + 1);
  futex_wake(&t->lease);
}

static bool others_wait(void) {
  for (uint32_t i = 0; i < page->ntenants; i++)
    if (i != holder && load32(&page->tenant[i].waiting))
      return true;
  return false;
}

static bool before(uint32_t a, uint32_t b) {
  if (rotation)
    return served[a] < served[b];
  return load64(&page->tenant[a].asked_ns) < load64(&page->tenant[b].asked_ns);
}

static int pick(void) {
  int best = -1;
  for (uint32_t i = 0; i < page->ntenants; i++)
    if (load32(&page->tenant[i].waiting) && (best < 0 || before(i, (uint32_t)best)))
      best = (int)i;
  return best;
}

static void revoke(uint64_t now, bool taken) {
  revoked_ns = taken ? now : 0;
  phase = DRAINING;
  move_lease(&page->tenant[holder]);
}

/* A tenant that comes back after a pause gets no credit for the pause. */
static void start(uint32_t tenant, uint64_t now) {
  double least = -1;
  for (uint32_t i = 0; i < page->ntenants; i++)
    if (i != tenant && load32(&page->tenant[i].waiting) && (least < 0 || served[i] < least))
      least = served[i];
  if (least - served[tenant] > 20.0 * (double)quantum_ns)
    served[tenant] = least;
  holder = tenant;
  leased_ns = now;
  end_ns = now + quantum_ns;
  phase = HELD;
  leases++;
  move_lease(&page->tenant[tenant]);
}

static void finish(uint64_t now) {
  uint32_t share = page->tenant[holder].share_milli;
  served[holder] += (double)(now - leased_ns) * 1000 / (share ? share : 1);
  if (revoked_ns && nreclaims < RECLAIMS_MAX)
    reclaim_us[nreclaims++] = (uint32_t)((now - revoked_ns) / 1000);
  phase = FREE;
}

/* Returns the time at which to decide again. */
static uint64_t decide(uint64_t now) {
  if (phase == HELD) {
    struct bench_tenant *t = &page->tenant[holder];
    bool given_up = load32(&t->give_up) == load32(&t->lease);
    if (given_up || (now >= end_ns && others_wait()))
      revoke(now, !given_up);
  }
  if (phase == DRAINING && load32(&page->tenant[holder].released) == load32(&page->tenant[holder].lease))
    finish(now);
  int next = phase == FREE ? pick() : -1;
  if (next >= 0)
    start((uint32_t)next, now);
  return phase == HELD && end_ns > now ? end_ns : now + LOOK_NS;
}

int main(int argc, char **argv) {
  if (argc != 4)
    return 2;
  page = page_map(argv[1]);
  rotation = strcmp(argv[2], "rotation") == 0;
  quantum_ns = strtoull(argv[3], NULL, 10) * 1000000;
  while (!load32(&page->stop)) {
    uint32_t bell = load32(&page->bell);
    uint64_t now = clock_ns(), next = decide(now);
    futex_wait(&page->bell, bell, next - now);
  }
  printf("{\"leases\":%lu,\"reclaim_us\":[", leases);
  for (unsigned i = 0; i < nreclaims; i++)
    printf("%s%u", i ? "," : "", reclaim_us[i]);
  printf("]}\n");
  return 0;
}
