/* Uses the whole API at random, endlessly; or, with a number, runs that many kernels of 20 us with gaps, waiting for
 * each. */
#include "client.h"

static void pings(const struct client *c, unsigned count, unsigned seed) {
  for (unsigned i = 0; i < count; i++) {
    spin(c, 20000, NULL);
    OK(cuCtxSynchronize());
    if (rand_r(&seed) % 3 == 0)
      usleep(rand_r(&seed) % 300);
  }
}

static void nothing(void *data) { (void)data; }

static void everything(const struct client *c, unsigned seed) {
  CUstream stream[3];
  CUevent event;
  CUdeviceptr memory[8] = {0};
  static unsigned char host[1 << 16];
  for (int i = 0; i < 3; i++)
    OK(cuStreamCreate(&stream[i], i % 2));
  OK(cuEventCreate(&event, 0));
  for (;;) {
    CUstream s = stream[rand_r(&seed) % 3];
    CUdeviceptr *slot = &memory[rand_r(&seed) % 8];
    switch (rand_r(&seed) % 8) {
      case 0:
        if (*slot)
          OK(cuMemFree_v2(*slot));
        *slot = 0;
        (void)cuMemAlloc_v2(slot, (1 << 16) + rand_r(&seed) % (1 << 30)); /* other processes may hold all memory */
        break;
      case 1:
        if (*slot)
          OK(cuMemcpyHtoDAsync_v2(*slot, host, sizeof host, s));
        break;
      case 2: OK(cuLaunchHostFunc(s, nothing, NULL)); break;
      case 3:
        OK(cuEventRecord(event, s));
        OK(cuStreamWaitEvent(stream[rand_r(&seed) % 3], event, 0));
        break;
      case 4: OK(cuStreamSynchronize(s)); break;
      default:
        for (int i = rand_r(&seed) % 20; i >= 0; i--)
          spin(c, 1000 + rand_r(&seed) % 300000, s);
    }
  }
}

int main(int argc, char **argv) {
  struct client c = client_start();
  puts("ready");
  fflush(stdout);
  if (argc > 2)
    pings(&c, (unsigned)atoi(argv[2]), (unsigned)atoi(argv[1]));
  else
    everything(&c, (unsigned)atoi(argv[1]));
  puts("done");
  return 0;
}
