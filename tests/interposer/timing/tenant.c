/* A program under test: tenant MODE PTX [ARGS...]. Prints one JSON line on stdout. Linked with -lcuda, independent of
 * gpushare. */
#include <poll.h>

#include "program.h"

static void compute(uint64_t ns) { /* on the host */
  uint64_t until = now() + ns;
  while (now() < until) {
  }
}

static int thread_count(void) {
  char line[256];
  int count = 0;
  FILE *status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status))
    sscanf(line, "Threads: %d", &count);
  if (status)
    fclose(status);
  return count;
}

/* A stream for each task, which is one launch; a few of them are kept for a while. */
static void task(int i, uint64_t ns) {
  static CUstream ring[64];
  CUstream *mine = &ring[i % 64];
  if (*mine)
    OK(cuStreamDestroy_v2(*mine));
  OK(cuStreamCreate(mine, 1));
  spin(0, ns, *mine);
  OK(cuStreamSynchronize(*mine));
}

/* The launch patterns of the meter's accuracy table. */
static void pattern(const char *name, int n, uint64_t ns) {
  uint64_t began = now(), ended;
  for (int i = 0; i < n; i++) {
    if (!strcmp(name, "task")) {
      task(i, ns);
      continue;
    }
    bool longer = i % 10 == 9 && (!strcmp(name, "mix") || !strcmp(name, "mixhost"));
    spin(longer, longer ? 40 * ns : ns, streams[!strcmp(name, "two") ? i & 1 : 0]);
    if (!strcmp(name, "host"))
      compute(20000);
    if (!strcmp(name, "sync"))
      OK(cuStreamSynchronize(streams[0]));
    if (!strcmp(name, "event")) {
      static CUevent event;
      if (!event)
        OK(cuEventCreate(&event, 2 /* no timing */));
      OK(cuEventRecord(event, streams[0]));
      OK(cuEventSynchronize(event));
    }
    if (!strcmp(name, "mixhost") && i % 100 == 99) {
      OK(cuStreamSynchronize(streams[0]));
      compute(300000);
    }
    if (!strcmp(name, "burst") && i % 400 == 399)
      compute(4000000);
  }
  OK(cuCtxSynchronize());
  ended = now();
  printf("{\"truth_ns\": %llu, \"wall_ns\": %llu}\n", (unsigned long long)truth, (unsigned long long)(ended - began));
}

static bool input_closed(void) {
  struct pollfd input = {0, POLLIN, 0};
  return poll(&input, 1, 0) != 0;
}

/* Back to back until stdin is closed. */
static void loop(uint64_t ns) {
  uint64_t worst = 0, count = 0;
  errno = 0;
  while (!input_closed()) {
    for (int i = 0; i < 16; i++) {
      uint64_t before = now(), took;
      errno = 4242;
      spin(0, ns, streams[0]);
      if (errno != 4242) {
        fprintf(stderr, "errno became %d\n", errno);
        exit(1);
      }
      took = now() - before;
      if (took > worst)
        worst = took;
      count++;
    }
  }
  OK(cuCtxSynchronize());
  printf("{\"truth_ns\": %llu, \"launches\": %llu, \"worst_ns\": %llu}\n", (unsigned long long)truth,
         (unsigned long long)count, (unsigned long long)worst);
}

static volatile int crowd_over;

static void *floods(void *argument) {
  uint64_t ns = *(uint64_t *)argument;
  CUstream own;
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&own, 1));
  while (!crowd_over)
    launch_of(kernels[0], ns, own);
  return NULL;
}

/* Threads with a stream each, back to back until stdin is closed. */
static void crowd(int n, uint64_t ns) {
  pthread_t threads[64];
  for (int i = 0; i < n; i++)
    pthread_create(&threads[i], NULL, floods, &ns);
  while (!input_closed())
    usleep(1000);
  crowd_over = 1;
  for (int i = 0; i < n; i++)
    pthread_join(threads[i], NULL);
  printf("{}\n");
}

static volatile int capturing, captured;

/* Keeps the meter busy during a capture: launches are allowed in every thread, most other calls invalidate a capture in
 * global mode. */
static void *beside(void *argument) {
  OK(cuCtxSetCurrent(context));
  while (!captured) {
    spin(1, 20000, streams[1]);
    capturing = 1;
  }
  OK(cuStreamSynchronize(streams[1]));
  return argument;
}

/* stepwise: waits for a byte on stdin before it captures, and prints a line when it has. */
static void capture(int mode, int n, uint64_t ns, bool stepwise) {
  CUgraph graph;
  CUgraphExec executable;
  pthread_t thread;
  size_t nodes = 0;
  for (int i = 0; i < 20; i++)
    spin(0, ns, streams[0]);
  pthread_create(&thread, NULL, beside, NULL);
  while (!capturing) {
  }
  if (stepwise) {
    report("{\"runs\": true}\n");
    if (read(0, &(char){0}, 1) != 1)
      exit(2);
  }
  for (int round = 0; round < 20; round++) {
    OK(cuStreamBeginCapture_v2(streams[0], mode));
    for (int i = 0; i < n; i++)
      spin(0, ns, streams[0]);
    OK(cuStreamEndCapture(streams[0], &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    if (nodes != (size_t)n) {
      fprintf(stderr, "the graph has %zu nodes, not %d\n", nodes, n);
      exit(1);
    }
  }
  captured = 1;
  if (stepwise) {
    report("{\"nodes\": %zu}\n", nodes);
  }
  pthread_join(thread, NULL);
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  truth = 0;
  for (int i = 0; i < 50; i++)
    OK(cuGraphLaunch(executable, streams[0]));
  OK(cuStreamSynchronize(streams[0]));
  printf("{\"nodes\": %zu, \"graph_ns\": %llu}\n", nodes, (unsigned long long)(50 * (uint64_t)n * ns));
}

/* Waits for a byte on stdin before and after its first CUDA call. */
static void threads(const char *ptx) {
  int before = thread_count(), after;
  start(ptx);
  after = thread_count();
  spin(0, 1000, streams[0]);
  OK(cuCtxSynchronize());
  printf("{\"before\": %d, \"after\": %d}\n", before, after);
}

/* Streams, modules and contexts are created and destroyed while work is in flight, so their handles are reused. */
static void churn(const char *ptx, int rounds) {
  for (int i = 0; i < rounds; i++) {
    CUstream stream;
    OK(cuStreamCreate(&stream, i & 1));
    for (int k = 0; k < 30; k++)
      spin(k & 1, 20000, stream);
    if (i % 3 == 0)
      OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
    if (i % 10 == 9) {
      OK(cuCtxSynchronize());
      OK(cuCtxDestroy_v2(context));
      start(ptx);
    }
  }
  OK(cuCtxSynchronize());
  printf("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
}

/* Threads launch into their own streams and a shared one, record and wait for events, create and destroy streams. */
static void *stressed(void *argument) {
  uint64_t until = now() + 700000000u, launched = 0;
  unsigned int seed = (unsigned int)(uintptr_t)argument;
  CUstream own;
  CUevent event;
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&own, 1));
  OK(cuEventCreate(&event, 0));
  while (now() < until) {
    int what = rand_r(&seed) % 100;
    uint64_t ns = 1000u * (unsigned int)(1 + rand_r(&seed) % 50);
    void *arguments[] = {&ns};
    CUstream stream = what % 3 == 0 ? streams[0] : what % 3 == 1 ? own : CU_STREAM_PER_THREAD;
    OK(cuLaunchKernel(kernels[what & 1], 1u << what % 4, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    launched += ns;
    if (what < 5) {
      OK(cuEventRecord(event, stream));
      OK(cuEventSynchronize(event));
    } else if (what < 8) {
      OK(cuStreamSynchronize(stream));
    } else if (what == 8) {
      OK(cuStreamDestroy_v2(own));
      OK(cuStreamCreate(&own, 1));
    }
  }
  OK(cuStreamSynchronize(own));
  __atomic_add_fetch(&truth, launched, __ATOMIC_RELAXED);
  return NULL;
}

static void stress(void) {
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, stressed, (void *)(i + 1));
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  OK(cuCtxSynchronize());
  printf("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
}

static void *endless(void *argument) {
  uint64_t ns = 100000;
  OK(cuCtxSetCurrent(context));
  for (;;) {
    pthread_testcancel();
    launch_of(kernels[0], ns, streams[0]);
    __atomic_add_fetch(&truth, ns, __ATOMIC_RELAXED);
  }
  return argument;
}

/* Threads are cancelled at any point of a launch. */
static void cancelled(int n) {
  for (int i = 0; i < n; i++) {
    pthread_t thread;
    pthread_create(&thread, NULL, endless, NULL);
    usleep(10000);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
  }
  OK(cuCtxSynchronize());
  printf("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
}

static void copies(int n, size_t bytes, uint64_t ns) {
  CUdeviceptr device;
  void *host;
  OK(cuMemAlloc_v2(&device, bytes));
  OK(cuMemAllocHost_v2(&host, bytes));
  truth = 0;
  for (int i = 0; i < n; i++) {
    spin(0, ns, streams[0]);
    OK(cuMemcpyHtoDAsync_v2(device, host, bytes, streams[0]));
  }
  OK(cuStreamSynchronize(streams[0]));
  printf("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  const char *mode = argv[1], *ptx = argv[2];

  if (!strcmp(mode, "threads")) {
    threads(ptx);
    return 0;
  }
  start(ptx);
  if (!strcmp(mode, "pattern"))
    pattern(argv[3], atoi(argv[4]), number(argv[5]));
  else if (!strcmp(mode, "loop"))
    loop(number(argv[3]));
  else if (!strcmp(mode, "crowd"))
    crowd(atoi(argv[3]), number(argv[4]));
  else if (!strcmp(mode, "capture"))
    capture(atoi(argv[3]), atoi(argv[4]), number(argv[5]), argc > 6);
  else if (!strcmp(mode, "stress"))
    stress();
  else if (!strcmp(mode, "cancelled"))
    cancelled(atoi(argv[3]));
  else if (!strcmp(mode, "churn"))
    churn(ptx, atoi(argv[3]));
  else if (!strcmp(mode, "copies"))
    copies(atoi(argv[3]), number(argv[4]), number(argv[5]));
  else
    return 2;
  fflush(stdout);
  return stay();
}
