/* Model checker for granting and revoking gangs, with the arbiter's own code. Breadth-first search over all orders of
 * these events: a rank submits, notices a changed lease word late, sleeps or wakes; a kernel finishes; the arbiter
 * runs; a millisecond passes (gang_model.h).
 *   gang_check STATES_MAX DEPTH SLEEP_MS CUTS LATE LEASE_MS SPIN_MS
 * DEPTH: collectives in flight. Prints the number of states, whether the search was complete, and the worst waits. Exit
 * status 1: an invariant was violated; the trace is printed. */
#include <stdio.h>
#include <stdlib.h>

#include "gang_model.h"

/* Hashes whole words, in four lanes that a processor multiplies in parallel: states are large, and hashing is most of
 * the search. */
static uint64_t hash(const void *memory, size_t size) {
  enum { LANES = 4 };
  const uint64_t *words = memory;
  uint64_t lane[LANES] = {1, 2, 3, 4}, h = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < size / 8; i++) {
    uint64_t *one = &lane[i % LANES];
    *one = (*one ^ words[i]) * 0xff51afd7ed558ccdu;
    *one ^= *one >> 32;
  }
  for (int i = 0; i < LANES; i++) {
    h = (h ^ lane[i]) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h ? h : 1;
}

static uint64_t *seen;
static size_t seen_size, nseen;

/* The path to a state, by the order in which states were found. */
static struct {
  uint32_t from;
  uint8_t what;
} *found;

static void print_path(size_t last, int what) {
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

int main(int argc, char **argv) {
  size_t states_max = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
  uint32_t given[] = {1, 0, 1, 0, 8, 2};
  for (int i = 0; i < 6 && i + 2 < argc; i++)
    given[i] = (uint32_t)atoi(argv[i + 2]);
  options = (struct options){.depth_max = given[0], .sleep_max = given[1], .use_cuts = given[2], .late = given[3]};
  options.lease_ms = given[4];
  options.spin_max = given[5];
  for (seen_size = 1024; seen_size < 2 * states_max + 64; seen_size *= 2) {
  }
  seen = calloc(seen_size, sizeof *seen);
  /* ring of states whose events have not been tried yet */
  size_t queue_size = states_max / 2 + 1024, head = 0, tail = 0;
  struct state *queue = malloc(queue_size * sizeof *queue);
  found = calloc(states_max + 64, sizeof *found);
  if (!seen || !queue || !found)
    return 2;
  model_start();
  model_normalise(0);
  is_new(hash(&s, sizeof s));
  queue[tail++ % queue_size] = s;
  for (; head < tail && nseen < states_max && !broken; head++) {
    for (int what = 0; what < EVENTS_KINDS && !broken; what++) {
      uint64_t elapsed;
      s = queue[head % queue_size];
      model_restore();
      if (!model_happens(what, &elapsed))
        continue;
      if (broken)
        print_path(head, what);
      model_normalise(elapsed);
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
  model_end();
  return broken != NULL;
}
