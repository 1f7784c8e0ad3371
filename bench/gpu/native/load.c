/* A tenant with a known amount of work:  load --module FILE [--kernel NAME] [--rate ITERATIONS_PER_NS] [--launch NS]
 *
 * Takes commands on stdin, one per line, and answers each with one JSON object.
 *
 *   unit KERNELS KERNEL_NS GAP_NS GRAPH COPY_BYTES DEPTH PAUSE_NS WAKE     the unit to repeat
 *   run                       begins; units follow until idle
 *   idle                      waits for what is in flight and reports since run
 *   calibrate                 measures rate and launch and uses them from now on
 *   fill PIECE                allocates pieces until one is refused
 *   alloc COUNT SIZE          allocates them; one that is refused for anything but a lack of memory ends the program
 *   free | memory | quit
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "series.h"
#include "work.h"

enum { LINE_BYTES = 256, BUCKETS_MAX = 4096, BUCKET_NS = 100000000, ALLOCATIONS_MAX = 1 << 17 };

static struct program {
  struct worker worker;
  struct unit unit;
  bool running;
  uint64_t began;
  struct series spans, latencies, wakes;
  unsigned long units;
  unsigned bucket[BUCKETS_MAX]; /* units finished in each tenth of a second since `first_bucket` */
  uint64_t first_bucket;
  CUdeviceptr held[ALLOCATIONS_MAX];
  size_t nheld, held_bytes;
} p = {.unit = {.kernels = 50, .kernel_ns = 20000, .depth = 2}};

static void reap(void) {
  double span, latency;
  work_reap(&p.worker, &span, &latency);
  series_add(&p.spans, span);
  series_add(&p.latencies, latency);
  p.units++;
  uint64_t at = now_ns() / BUCKET_NS - p.first_bucket;
  if (at < BUCKETS_MAX)
    p.bucket[at]++;
}

static void step(void) {
  while (p.worker.head - p.worker.tail >= p.unit.depth)
    reap();
  uint64_t woke = work_submit(&p.worker, &p.unit);
  if (p.unit.wake)
    series_add(&p.wakes, (double)woke);
  if (!p.unit.pause_ns)
    return;
  while (p.worker.head != p.worker.tail)
    reap();
  double pause = (double)p.unit.pause_ns * (0.5 + drand48()); /* so that it does not fall into step with slices */
  nanosleep(&(struct timespec){(time_t)(pause / 1e9), (long)(pause - 1e9 * (double)(uint64_t)(pause / 1e9))}, NULL);
}

static void begin(void) {
  series_clear(&p.spans);
  series_clear(&p.latencies);
  series_clear(&p.wakes);
  memset(p.bucket, 0, sizeof p.bucket);
  p.units = 0;
  p.running = true;
  p.began = now_ns();
  p.first_bucket = p.began / BUCKET_NS;
  printf("{\"event\": \"run\", \"t_ns\": %lu}\n", p.began);
}

static void report(void) {
  while (p.worker.head != p.worker.tail)
    reap();
  MUST(cuCtxSynchronize());
  uint64_t ended = now_ns(), last = ended / BUCKET_NS - p.first_bucket;
  p.running = false;
  printf("{\"event\": \"idle\", \"units\": %lu, \"kernels\": %lu, \"work_ns\": %lu, \"wall_ns\": %lu", p.units,
         p.units * p.unit.kernels, p.units * p.unit.kernels * p.unit.kernel_ns, ended - p.began);
  series_print(&p.spans, "span");
  series_print(&p.latencies, "latency");
  series_print(&p.wakes, "wake");
  printf(", \"first_bucket\": %lu, \"buckets\": [", p.first_bucket);
  for (uint64_t i = 0; i <= last && i < BUCKETS_MAX; i++)
    printf("%s%u", i ? ", " : "", p.bucket[i]);
  puts("]}");
}

static void memory(const char *event, CUresult code) {
  size_t available = 0, total = 0;
  MUST(cuMemGetInfo_v2(&available, &total));
  printf("{\"event\": \"%s\", \"name\": \"%s\", \"held_bytes\": %zu, \"free_bytes\": %zu, \"total_bytes\": %zu}\n",
         event, error_name(code), p.held_bytes, available, total);
}

static void allocate(size_t count, size_t bytes) {
  CUresult code = CUDA_SUCCESS;
  for (size_t i = 0; i < count && p.nheld < ALLOCATIONS_MAX && code == CUDA_SUCCESS; i++)
    if ((code = cuMemAlloc_v2(&p.held[p.nheld], bytes)) == CUDA_SUCCESS) {
      p.nheld++;
      p.held_bytes += bytes;
    } else if (code != CUDA_ERROR_OUT_OF_MEMORY) {
      MUST(code);
    }
  memory("alloc", code);
}

static void release(void) {
  while (p.nheld)
    MUST(cuMemFree_v2(p.held[--p.nheld]));
  p.held_bytes = 0;
  memory("free", CUDA_SUCCESS);
}

static bool set_unit(const char *line) {
  unsigned graph, wake;
  struct unit u = {0};
  if (sscanf(line, "unit %u %lu %lu %u %zu %u %lu %u", &u.kernels, &u.kernel_ns, &u.gap_ns, &graph, &u.copy, &u.depth,
             &u.pause_ns, &wake) != 8 ||
      u.depth < 1 || u.depth >= DEPTH_MAX || (u.kernels == 0 && u.copy == 0) || p.running)
    return false;
  u.graph = graph;
  u.wake = wake;
  p.unit = u;
  puts("{\"event\": \"unit\"}");
  return true;
}

static bool handle(const char *line) {
  char size[32];
  size_t bytes, count;
  if (set_unit(line))
    return true;
  if (strcmp(line, "run") == 0 && !p.running)
    begin();
  else if (strcmp(line, "idle") == 0 && p.running)
    report();
  else if (strcmp(line, "calibrate") == 0 && !p.running) {
    if (work_calibrate(&p.worker))
      printf("{\"event\": \"calibrate\", \"rate\": %.9g, \"launch_ns\": %.9g}\n", p.worker.kernel.cost.rate,
             p.worker.kernel.cost.launch_ns);
    else
      puts("{\"event\": \"error\", \"call\": \"calibrate\", \"name\": \"times do not grow with the work\"}");
  } else if (sscanf(line, "fill %31s", size) == 1 && parse_size(size, &bytes) && bytes)
    allocate(ALLOCATIONS_MAX, bytes);
  else if (sscanf(line, "alloc %zu %31s", &count, size) == 2 && parse_size(size, &bytes) && bytes)
    allocate(count, bytes);
  else if (strcmp(line, "free") == 0)
    release();
  else if (strcmp(line, "memory") == 0)
    memory("memory", CUDA_SUCCESS);
  else if (strcmp(line, "quit") == 0)
    return false;
  else
    puts("{\"event\": \"unknown\"}");
  return true;
}

static void serve(void) {
  static char buffer[LINE_BYTES];
  size_t used = 0;
  for (;;) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char *newline;
    if (poll(&in, 1, p.running ? 0 : -1) > 0) {
      ssize_t n = read(STDIN_FILENO, buffer + used, sizeof buffer - 1 - used);
      if (n <= 0)
        return;
      buffer[used += (size_t)n] = '\0';
      while ((newline = strchr(buffer, '\n'))) {
        *newline = '\0';
        if (!handle(buffer))
          return;
        used -= (size_t)(newline + 1 - buffer);
        memmove(buffer, newline + 1, used + 1);
      }
    }
    if (p.running)
      step();
  }
}

int main(int argc, char **argv) {
  const char *module = NULL, *kernel = "spin_ns";
  struct calibration cost = {.rate = 1};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--module") == 0)
      module = argv[i + 1];
    else if (strcmp(argv[i], "--kernel") == 0)
      kernel = argv[i + 1];
    else if (strcmp(argv[i], "--rate") == 0)
      cost.rate = atof(argv[i + 1]);
    else if (strcmp(argv[i], "--launch") == 0)
      cost.launch_ns = atof(argv[i + 1]);
  }
  if (!module || argc % 2 == 0) {
    fprintf(stderr, "usage: load --module FILE [--kernel NAME] [--rate R] [--launch NS]\n");
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 1 << 16);
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* one of several that a program of the benchmark starts (race.py) */
  srand48(getpid());
  work_start(&p.worker, 0, module, kernel, cost);
  printf("{\"event\": \"ready\", \"pid\": %d}\n", (int)getpid());
  serve();
  return 0;
}
