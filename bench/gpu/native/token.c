/* Hands the device to and fro between the two sides of a gate:  token PAGE POLICY
 *
 *   free      both may always submit: the device's own time slicing
 *   drain     leases of 20 ms; the next begins when nothing of the last is in flight
 *   overlap   leases of 20 ms; the next begins when nothing is in flight, or 1 ms after the revoke
 *   together  both may submit, each within the bound on work in flight
 *
 * Runs until its stdin closes. A holder that has had nothing to do for 0.2 ms loses its lease to one that waits, any
 * holder to one that slept before: who has slept is owed the device, as under gpushare. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"

enum { LEASE_NS = 20000000, OVERLAP_NS = 1000000, IDLE_NS = 200000, SLEPT_NS = 5000000, TICK_NS = 30000 };

static uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void tick(void) { nanosleep(&(struct timespec){0, TICK_NS}, NULL); }

static bool is(uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE) != 0; }
static uint32_t allowed(struct gate_side *side) { return __atomic_load_n(&side->allowed, __ATOMIC_ACQUIRE); }

static void change(struct gate_side *side) {
  __atomic_fetch_add(&side->allowed, 1, __ATOMIC_SEQ_CST);
  gate_wake(&side->allowed);
}

static bool dry(struct gate_side *side, uint64_t now) {
  return !is(&side->waiting) && __atomic_load_n(&side->queue_end, __ATOMIC_ACQUIRE) + IDLE_NS < now;
}

/* Not by the estimate of `queue_end`: it is too early where the device is slower than alone. */
static bool drained(struct gate_side *side) {
  return __atomic_load_n(&side->drained, __ATOMIC_ACQUIRE) == allowed(side) || !is(&side->busy) || !is(&side->active);
}

/* Of a side: since when nothing of it is in flight nor wants to be, and since when it waits. */
struct sleep {
  uint64_t quiet, waits;
};

static void look(struct sleep *sleep, struct gate_side *side, uint64_t now) {
  if (is(&side->waiting)) {
    if (sleep->waits == 0)
      sleep->waits = now;
    return;
  }
  sleep->waits = 0;
  if (!is(&side->active))
    sleep->quiet = 1; /* it slept from the beginning */
  /* without a lease, busy for a moment only says that it is about to wait */
  else if (is(&side->busy) && (allowed(side) & 1))
    sleep->quiet = 0;
  else if (sleep->quiet == 0 && !is(&side->busy))
    sleep->quiet = now;
}

static bool woke(const struct sleep *sleep) {
  return sleep->waits != 0 && sleep->quiet != 0 && sleep->waits - sleep->quiet >= SLEPT_NS;
}

static void hand_over(struct gate_side *from, struct gate_side *to, bool overlap, struct pollfd *in) {
  uint64_t at = clock_ns();
  change(from);
  while (!drained(from) && !(overlap && clock_ns() - at >= OVERLAP_NS) && poll(in, 1, 0) == 0)
    tick();
  change(to);
}

int main(int argc, char **argv) {
  struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
  if (argc != 3 || !strstr(" free drain overlap together ", argv[2])) {
    fprintf(stderr, "usage: token PAGE free|drain|overlap|together\n");
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  struct gate_page *page = gate_map(argv[1]);
  bool leases = strcmp(argv[2], "drain") == 0 || strcmp(argv[2], "overlap") == 0;
  bool overlap = strcmp(argv[2], "overlap") == 0;
  unsigned holder = 0;
  __atomic_store_n(&page->bounded, strcmp(argv[2], "free") != 0, __ATOMIC_RELEASE);
  for (unsigned i = 0; i < GATE_SIDES; i++)
    if ((allowed(&page->side[i]) & 1) != (leases ? i == holder : 1))
      change(&page->side[i]);
  puts("{\"event\": \"ready\"}");
  fflush(stdout);
  struct sleep sleep[GATE_SIDES] = {{0, 0}};
  for (uint64_t since = clock_ns(); poll(&in, 1, 0) == 0; tick()) {
    struct gate_side *own = &page->side[holder], *other = &page->side[!holder];
    uint64_t now = clock_ns();
    for (unsigned i = 0; i < GATE_SIDES; i++)
      look(&sleep[i], &page->side[i], now);
    bool stays = is(&own->active) && !dry(own, now) && !woke(&sleep[!holder]) && now - since < LEASE_NS;
    if (!leases || !is(&other->waiting) || stays)
      continue;
    hand_over(own, other, overlap, &in);
    holder = !holder;
    since = clock_ns();
  }
  for (unsigned i = 0; i < GATE_SIDES; i++) /* nobody stays behind */
    if (!(allowed(&page->side[i]) & 1))
      change(&page->side[i]);
  return 0;
}
