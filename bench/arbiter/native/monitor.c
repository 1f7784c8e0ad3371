/* Watches a measurement from outside:
 *   monitor SIM_SOCKET PAGE [BOOKS_MS]
 * Every BOOKS_MS (100) one line of JSON: when, the simulator's books of all devices, what each tenant has submitted,
 * and for how long so far device 0 did nothing although a tenant wanted it. The last is sampled every millisecond: of
 * each, the time the device neither worked nor switched, but no more of it than the tenant that wanted longest did.
 * What a call takes by itself is not wanting. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "books.h"
#include "page.h"

enum { SAMPLE_NS = 1000000 };

static uint64_t wanted(const struct bench_tenant *t, uint64_t now) {
  uint64_t since = load64(&t->wanting_since_ns);
  return load64(&t->wanted_ns) + (since && since + BENCH_CALL_NS < now ? now - since - BENCH_CALL_NS : 0);
}

/* The longest of any tenant since the sample before. */
static uint64_t most_wanted(const struct bench_page *page, uint64_t *before, uint64_t now) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < page->ntenants; i++) {
    uint64_t at = wanted(&page->tenant[i], now);
    if (at > before[i] && at - before[i] > most)
      most = at - before[i];
    if (at > before[i])
      before[i] = at;
  }
  return most;
}

static void print(int books, const struct bench_page *page, uint64_t idle_waiting) {
  printf("{\"t_ns\":%lu,\"idle_waiting_ns\":%lu,\"kernels\":[", clock_ns(), idle_waiting);
  for (uint32_t i = 0; i < page->ntenants; i++)
    printf("%s%lu", i ? "," : "", load64(&page->tenant[i].kernels));
  printf("],\"books\":%s}\n", books_all(books));
  fflush(stdout);
}

int main(int argc, char **argv) {
  static uint64_t before[BENCH_TENANTS];
  if (argc < 3)
    return 2;
  int books = books_connect(argv[1]);
  struct bench_page *page = page_map(argv[2]);
  uint64_t every = (argc > 3 ? strtoull(argv[3], NULL, 10) : 100) * 1000000, printed = 0, idle_waiting = 0;
  struct books_times last = books_device(books, 0);
  struct timespec next;
  clock_gettime(CLOCK_MONOTONIC, &next);
  while (!load32(&page->stop)) {
    struct books_times now = books_device(books, 0);
    uint64_t most = most_wanted(page, before, clock_ns());
    uint64_t worked = now.busy_ns - last.busy_ns + now.switch_ns - last.switch_ns, wall = now.wall_ns - last.wall_ns;
    uint64_t idle = wall > worked ? wall - worked : 0;
    idle_waiting += idle < most ? idle : most;
    last = now;
    if (clock_ns() >= printed + every) {
      printed = clock_ns();
      print(books, page, idle_waiting);
    }
    next.tv_nsec += SAMPLE_NS;
    if (next.tv_nsec >= 1000000000) {
      next.tv_nsec -= 1000000000;
      next.tv_sec++;
    }
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
  }
  print(books, page, idle_waiting);
  return 0;
}
