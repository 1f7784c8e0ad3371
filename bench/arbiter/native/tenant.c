/* A tenant of a measurement: one pattern of work from `go` to `stop` of the page, under one gate.
 *
 *   tenant --page FILE --index I --module spin.ptx [options]
 *
 * Patterns: `stream`: without end, two batches in flight. `graph`: the same with a graph of --kernels kernels as the
 * batch. `gaps`: a kernel, then --gap-ns of host work, and never a wait. `requests`: every --period-ns, give or take
 * --jitter-ns, --kernels kernels and a wait for them; a late one starts late and counts from when it was due. Prints
 * {"event":"ready"}, and at the end {"kernels":N,"samples":[[due_ns,latency_ns,held_ns],...]}: held is what the first
 * launch of the request took. */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "gate.h"
#include "page.h"

enum { SAMPLES_MAX = 65536, BATCH_NS = 4000000, GO_POLL_NS = 1000000 };
enum { THREADS_PER_BLOCK = 256, BLOCKS_PER_SM = 8, WAVE_NS = 100000 };
enum pattern { STREAM, GRAPH, GAPS, REQUESTS };

struct sample {
  uint64_t due_ns, latency_ns, held_ns;
};

struct program {
  const char *page_path, *module;
  unsigned index, kernels;
  int device;
  enum pattern pattern;
  uint64_t kernel_ns, gap_ns, period_ns, jitter_ns;
  struct gate_options gate;

  struct bench_page *page;
  struct bench_tenant *mine;
  CUfunction spin;
  CUstream stream;
  CUevent marks[2];
  CUgraphExec graph;
  /* of one kernel: 8 of 256 threads on each multiprocessor fill it; one such wave is taken to last 100 us */
  unsigned blocks;
  uint64_t random;
  struct sample sample[SAMPLES_MAX];
  unsigned nsamples;
};

static bool over(const struct program *p) { return load32(&p->page->stop) != 0; }

/* From here on the tenant has something for the device, until it says otherwise. */
static void wants(struct program *p) { store64(&p->mine->wanting_since_ns, clock_ns()); }

static void wants_nothing(struct program *p) {
  uint64_t since = load64(&p->mine->wanting_since_ns);
  store64(&p->mine->wanting_since_ns, 0);
  uint64_t took = clock_ns() - since;
  if (took > BENCH_CALL_NS)
    store64(&p->mine->wanted_ns, load64(&p->mine->wanted_ns) + took - BENCH_CALL_NS);
}

static void sleep_until(uint64_t at) {
  struct timespec t = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void launch(struct program *p) {
  void *arguments[] = {&p->kernel_ns};
  gate_enter(p->blocks);
  MUST(cuLaunchKernel(p->spin, p->blocks, 1, 1, THREADS_PER_BLOCK, 1, 1, 0, p->stream, arguments, NULL));
  gate_leave();
  store64(&p->mine->kernels, load64(&p->mine->kernels) + 1);
}

static void launch_graph(struct program *p) {
  gate_enter(0);
  MUST(cuGraphLaunch(p->graph, p->stream));
  gate_leave();
  store64(&p->mine->kernels, load64(&p->mine->kernels) + p->kernels);
}

static void capture(struct program *p) {
  void *arguments[] = {&p->kernel_ns};
  CUgraph graph;
  MUST(cuStreamBeginCapture_v2(p->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (unsigned i = 0; i < p->kernels; i++)
    MUST(cuLaunchKernel(p->spin, p->blocks, 1, 1, THREADS_PER_BLOCK, 1, 1, 0, p->stream, arguments, NULL));
  MUST(cuStreamEndCapture(p->stream, &graph));
  MUST(cuGraphInstantiateWithFlags(&p->graph, graph, 0));
}

static void start(struct program *p) {
  CUcontext context;
  CUmodule module;
  CUdevice device;
  int sms = 1;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, p->device));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuDeviceGetAttribute(&sms, (CUdevice_attribute)ATTRIBUTE_MULTIPROCESSORS, device));
  MUST(cuModuleLoadData(&module, read_file(p->module)));
  MUST(cuModuleGetFunction(&p->spin, module, "spin_ns"));
  MUST(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 2; i++)
    MUST(cuEventCreate(&p->marks[i], CU_EVENT_DISABLE_TIMING));
  uint64_t waves = p->kernel_ns / WAVE_NS;
  p->blocks = (unsigned)sms * BLOCKS_PER_SM * (unsigned)(waves ? waves : 1);
  p->page = page_map(p->page_path);
  p->mine = &p->page->tenant[p->index];
  p->mine->pid = (int32_t)getpid();
  p->random = 0x9e3779b97f4a7c15u * (p->index + 1);
  if (p->pattern == GRAPH)
    capture(p);
  gate_open(&p->gate, p->page, p->mine, context);
}

static void run_stream(struct program *p) {
  uint64_t n = p->pattern == GRAPH || p->kernel_ns >= BATCH_NS ? 1 : BATCH_NS / p->kernel_ns;
  wants(p);
  for (unsigned long batch = 0; !over(p); batch++) {
    for (uint64_t i = 0; i < n; i++)
      if (p->pattern == GRAPH)
        launch_graph(p);
      else
        launch(p);
    MUST(cuEventRecord(p->marks[batch % 2], p->stream));
    if (batch)
      MUST(cuEventSynchronize(p->marks[(batch + 1) % 2]));
  }
  wants_nothing(p);
}

static void run_gaps(struct program *p) {
  while (!over(p)) {
    wants(p);
    launch(p);
    wants_nothing(p);
    sleep_until(clock_ns() + p->gap_ns);
  }
}

/* Uniform in +-jitter, the same in every run. */
static int64_t jitter(struct program *p) {
  p->random ^= p->random << 13;
  p->random ^= p->random >> 7;
  p->random ^= p->random << 17;
  return p->jitter_ns ? (int64_t)(p->random % (2 * p->jitter_ns)) - (int64_t)p->jitter_ns : 0;
}

static void run_requests(struct program *p) {
  /* Tenants of one pattern do not start in step. */
  uint64_t tick = clock_ns() + p->jitter_ns + p->period_ns * (p->index % 32) / 32;
  for (; !over(p); tick += p->period_ns) {
    uint64_t due = tick + (uint64_t)jitter(p);
    sleep_until(due);
    uint64_t at = clock_ns(), held = 0;
    wants(p);
    for (unsigned i = 0; i < p->kernels; i++) {
      launch(p);
      if (i == 0)
        held = clock_ns() - at;
    }
    MUST(cuStreamSynchronize(p->stream));
    wants_nothing(p);
    if (p->nsamples < SAMPLES_MAX && !over(p))
      p->sample[p->nsamples++] = (struct sample){due, clock_ns() - due, held};
  }
}

static bool choose(const char *text, const char *const *names, int *out) {
  for (int i = 0; names[i]; i++)
    if (strcmp(text, names[i]) == 0) {
      *out = i;
      return true;
    }
  return false;
}

static bool parse(int argc, char **argv, struct program *p) {
  static const char *const patterns[] = {"stream", "graph", "gaps", "requests", NULL};
  static const char *const gates[] = {"none", "tokens", "lease", NULL};
  static const struct option names[] = {
      {"page", 1, 0, 'p'},      {"index", 1, 0, 'i'},     {"module", 1, 0, 'm'},     {"device", 1, 0, 'd'},
      {"pattern", 1, 0, 'w'},   {"kernel-ns", 1, 0, 'k'}, {"kernels", 1, 0, 'n'},    {"gap-ns", 1, 0, 'g'},
      {"period-ns", 1, 0, 'r'}, {"jitter-ns", 1, 0, 'j'}, {"gate", 1, 0, 'G'},       {"percent", 1, 0, 'P'},
      {"idle-ns", 1, 0, 'I'},   {"windows", 0, 0, 'W'},   {"sim-device", 1, 0, 'D'}, {0, 0, 0, 0}};
  int which, value = 0;
  while ((which = getopt_long(argc, argv, "", names, NULL)) != -1) {
    uint64_t number = optarg ? strtoull(optarg, NULL, 10) : 0;
    switch (which) {
      case 'p': p->page_path = optarg; break;
      case 'i': p->index = (unsigned)number; break;
      case 'm': p->module = optarg; break;
      case 'd': p->device = (int)number; break;
      case 'w':
        if (!choose(optarg, patterns, &value))
          return false;
        p->pattern = (enum pattern)value;
        break;
      case 'k': p->kernel_ns = number; break;
      case 'n': p->kernels = (unsigned)number; break;
      case 'g': p->gap_ns = number; break;
      case 'r': p->period_ns = number; break;
      case 'j': p->jitter_ns = number; break;
      case 'G':
        if (!choose(optarg, gates, &value))
          return false;
        p->gate.kind = (enum gate_kind)value;
        break;
      case 'P': p->gate.limit_percent = (uint32_t)number; break;
      case 'D': p->gate.device = (uint32_t)number; break;
      case 'I': p->gate.idle_ns = number; break;
      case 'W': p->gate.windows = true; break;
      default: return false;
    }
  }
  return p->page_path && p->module && p->kernel_ns && p->kernels && p->index < BENCH_TENANTS;
}

int main(int argc, char **argv) {
  static struct program p = {.kernel_ns = 1000000, .kernels = 1};
  static void (*const run[])(struct program *) = {run_stream, run_stream, run_gaps, run_requests};
  if (!parse(argc, argv, &p)) {
    fprintf(stderr, "usage: see the head of tenant.c\n");
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 1000ul);
  start(&p);
  printf("{\"event\":\"ready\",\"pid\":%d}\n", (int)getpid());
  fflush(stdout);
  while (!load32(&p.page->go))
    sleep_until(clock_ns() + GO_POLL_NS);
  run[p.pattern](&p);
  printf("{\"kernels\":%lu,\"samples\":[", load64(&p.mine->kernels));
  for (unsigned i = 0; i < p.nsamples; i++)
    printf("%s[%lu,%lu,%lu]", i ? "," : "", p.sample[i].due_ns, p.sample[i].latency_ns, p.sample[i].held_ns);
  printf("]}\n");
  fflush(stdout);
  return 0;
}
