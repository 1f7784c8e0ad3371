/* What may hold up a neighbour on the device:
 *
 *   stalls spin SECONDS FILE        one block per multiprocessor that spins until SECONDS are over
 *   stalls blocked SECONDS FILE     a stream that waits for a value, which the host writes after SECONDS
 *
 * FILE is spin.ptx: what is wanted here is wall time. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

enum { KERNEL_NS = 100000 };

static CUfunction spin;
static int processors;

static void launch(CUstream stream, uint64_t ns, unsigned blocks) {
  void *arguments[] = {&ns};
  MUST(cuLaunchKernel(spin, blocks, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static void start(const char *file) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&module, read_file(file)));
  MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
  MUST(cuDeviceGetAttribute(&processors, ATTRIBUTE_MULTIPROCESSORS, device));
}

static void ready(void) { printf("{\"event\": \"ready\", \"pid\": %d}\n", (int)getpid()); }

static void sleep_for(double seconds) {
  nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
}

static void spinning(double seconds) {
  CUstream stream;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  launch(stream, (uint64_t)(seconds * 1e9), (unsigned)processors);
  ready();
  MUST(cuCtxSynchronize());
}

static void blocked(double seconds) {
  CUstream stream;
  void *flag; /* pinned, so that both the device and this program can read it */
  MUST(cuMemHostAlloc(&flag, 4096, 2 /* device-mapped; its device address is the same */));
  memset(flag, 0, 4096);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamWaitValue32_v2(stream, (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  launch(stream, KERNEL_NS, 1);
  ready();
  sleep_for(seconds);
  *(volatile uint32_t *)flag = 1;
  MUST(cuCtxSynchronize());
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: stalls spin|blocked SECONDS FILE\n");
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  start(argv[3]);
  if (strcmp(argv[1], "spin") == 0)
    spinning(atof(argv[2]));
  else
    blocked(atof(argv[2]));
  puts("{\"event\": \"end\"}");
  return 0;
}
