/* A process controlled by commands on its standard input, one per line; it answers each with one line.
 *   spin NS COUNT     queues COUNT kernels of NS                          queued
 *   sync              waits for them                                      done
 *   alloc BYTES       cuMemAlloc                                          the number of the result
 *   free              frees the latest allocation                         the number of the result
 *   busy NS UNTIL     launches NS kernels until CLOCK_MONOTONIC UNTIL ns  kernels done
 *   time NS COUNT     device time between events around COUNT kernels     ns
 *   close             destroys the context                                closed */
#include "client.h"

static CUdeviceptr allocated[64];
static int nallocated;

static int allocate(size_t bytes) {
  CUresult result = cuMemAlloc_v2(&allocated[nallocated], bytes);
  nallocated += result == CUDA_SUCCESS;
  return (int)result;
}

static unsigned long busy(const struct client *c, uint64_t ns, uint64_t until) {
  unsigned long done = 0;
  for (; now_ns() < until; done++)
    spin(c, ns, NULL);
  OK(cuCtxSynchronize());
  return done;
}

static double timed(const struct client *c, uint64_t ns, unsigned long count) {
  CUevent a, b;
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  gate_close(c, NULL);
  OK(cuEventRecord(a, NULL));
  while (count--)
    spin(c, ns, NULL);
  OK(cuEventRecord(b, NULL));
  gate_open();
  OK(cuCtxSynchronize());
  return between(a, b);
}

int main(void) {
  char line[256], word[16];
  struct client c = client_start();
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    unsigned long x = 0, y = 0;
    if (sscanf(line, "%15s %lu %lu", word, &x, &y) < 1)
      continue;
    if (strcmp(word, "spin") == 0) {
      for (unsigned long i = 0; i < y; i++)
        spin(&c, x, NULL);
      puts("queued");
    } else if (strcmp(word, "sync") == 0) {
      OK(cuCtxSynchronize());
      puts("done");
    } else if (strcmp(word, "alloc") == 0) {
      printf("%d\n", allocate(x));
    } else if (strcmp(word, "free") == 0) {
      printf("%d\n", (int)cuMemFree_v2(allocated[--nallocated]));
    } else if (strcmp(word, "busy") == 0) {
      printf("%lu\n", busy(&c, x, y));
    } else if (strcmp(word, "time") == 0) {
      printf("%.0f\n", timed(&c, x, y));
    } else if (strcmp(word, "close") == 0) {
      OK(cuCtxDestroy_v2(c.ctx));
      puts("closed");
    }
    fflush(stdout);
  }
  return 0;
}
