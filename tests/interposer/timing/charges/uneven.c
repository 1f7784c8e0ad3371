/* Kernels of one function with different durations, each waited for at once, in one of many ways:
 *   uneven WAIT PTX MS SHORT_NS COUNT LONG_NS [GAP_NS [FRESH]]
 * COUNT launches of SHORT_NS, then one of LONG_NS, repeatedly. COUNT 0: durations have a heavy tail, their median is
 * SHORT_NS and none exceeds LONG_NS. GAP_NS: host time between launches. FRESH: each long launch in a new stream. WAIT
 * "any" picks a random way each time, "batch" waits for the stream after each long launch, or for COUNT 0 after 16
 * launches. Prints one JSON line when it starts and one at the end. */
#include <math.h>

#include "program.h"

static const char *const ways[] = {"stream", "context", "event", "query", "equery", "copy", "free", "flag", "host"};
enum { WAYS = sizeof ways / sizeof ways[0] };

static CUevent event;
static volatile uint32_t *flag; /* written by the device: a program may poll it without any call */
static volatile uint32_t called;
static CUdeviceptr memory;
static uint32_t flagged;
static uint64_t seed = 12345;

static double chance(void) { /* 0..1 */
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(seed >> 33) / (double)(1u << 31);
}

static uint64_t heavy(uint64_t median, uint64_t most) {
  double ns = (double)median * pow(1 / (1 - chance()), 0.9) / 1.87;
  return ns > (double)most ? most : (uint64_t)ns;
}

static void compute(uint64_t ns) { /* on the host */
  uint64_t until = now() + ns;
  while (now() < until) {
  }
}

static void call_back(void *unused) {
  (void)unused;
  __atomic_add_fetch(&called, 1, __ATOMIC_RELEASE);
}

static void await(int way, CUstream stream) {
  CUdeviceptr freed;
  char byte;
  if (way == 0) {
    OK(cuStreamSynchronize(stream));
  } else if (way == 1) {
    OK(cuCtxSynchronize());
  } else if (way == 2) {
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
  } else if (way == 3) {
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
    }
  } else if (way == 4) {
    OK(cuEventRecord(event, stream));
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
    }
  } else if (way == 5) {
    OK(cuMemcpyDtoH_v2(&byte, memory, 1));
  } else if (way == 6) {
    OK(cuMemAlloc_v2(&freed, 4096));
    OK(cuMemFree_v2(freed));
  } else if (way == 7) {
    OK(cuStreamWriteValue32_v2(stream, (CUdeviceptr)(uintptr_t)flag, ++flagged, 0));
    while (*flag != flagged) {
    }
  } else {
    uint32_t before = called;
    OK(cuLaunchHostFunc(stream, call_back, NULL));
    while (__atomic_load_n(&called, __ATOMIC_ACQUIRE) == before) {
    }
  }
}

int main(int argc, char **argv) {
  if (argc < 7)
    return 2;
  uint64_t ms = number(argv[3]), short_ns = number(argv[4]);
  uint64_t count = number(argv[5]), long_ns = number(argv[6]);
  uint64_t gap = argc > 7 ? number(argv[7]) : 0;
  bool fresh = argc > 8 && atoi(argv[8]);
  int way = WAYS;
  for (int i = 0; i < WAYS; i++)
    if (!strcmp(argv[1], ways[i]))
      way = i;
  bool batch = !strcmp(argv[1], "batch");
  if (way == WAYS && !batch && strcmp(argv[1], "any"))
    return 2;
  start(argv[2]);
  OK(cuEventCreate(&event, 2 /* no timing */));
  OK(cuMemAllocHost_v2((void **)(uintptr_t)&flag, 4096));
  OK(cuMemAlloc_v2(&memory, 4096));
  for (int i = 0; i < 50; i++) { /* the meter learns the function's duration */
    spin(0, short_ns, streams[0]);
    OK(cuStreamSynchronize(streams[0]));
  }
  report("{\"started\": true}\n");
  usleep(30000); /* meanwhile the test reads the accounting */
  truth = 0;
  for (uint64_t began = now(), n = 0; now() - began < ms * 1000000; n++) {
    int how = way < WAYS ? way : batch ? 0 : (int)(chance() * WAYS);
    CUstream stream = streams[0];
    bool longer = count && n % (count + 1) == count;
    /* a synchronous copy waits for blocking streams only */
    if (how == 5)
      stream = CU_STREAM_LEGACY;
    if (fresh && longer)
      OK(cuStreamCreate(&stream, 1));
    spin(0, count ? (longer ? long_ns : short_ns) : heavy(short_ns, long_ns), stream);
    if (!batch || (count ? longer : n % 16 == 15))
      await(how, stream);
    if (fresh && longer)
      OK(cuStreamDestroy_v2(stream));
    if (gap)
      compute(gap);
  }
  OK(cuCtxSynchronize());
  report("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
  return stay();
}
