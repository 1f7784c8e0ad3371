/* Orders of work in which a gate, or a neighbour, has to wait for something that the device does not do by itself:
 *
 *   stalls order hard|soft FILE     a stream waits for a value, 6 ms of kernels queue behind that, then another stream writes the
 *                                   value: all of them pass a gate of 2 ms of work in flight. hard: the gate waits for its oldest
 *                                   mark for ever. soft: 5 ms, then the launch is let through. Says how long it took; after a
 *                                   second the host writes the value itself and the answer is that it hung.
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

enum { KERNEL_NS = 100000, KERNELS = 60, BOUND = 20 /* kernels, 2 ms */, SOFT_NS = 5000000, HUNG_NS = 1000000000 };

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

/* In pinned host memory, so that both the device and this program can write it. */
static volatile uint32_t *flag_new(void) {
  void *flag;
  MUST(cuMemHostAlloc(&flag, 4096, 2 /* device-mapped; its device address is the same */));
  memset(flag, 0, 4096);
  return flag;
}

/* The gate: with `inflight` kernels not known to be done, waits for one of them. False when it hung. */
static bool gate(CUevent mark, bool soft, uint64_t began, bool *let_through) {
  uint64_t since = now_ns();
  while (cuEventQuery(mark) == CUDA_ERROR_NOT_READY) {
    if (soft && (*let_through || now_ns() - since > SOFT_NS)) {
      *let_through = true;
      return true;
    }
    if (now_ns() - began > HUNG_NS)
      return false;
    usleep(20);
  }
  return true;
}

static void order(bool soft) {
  CUstream waiting, writing;
  CUevent mark[KERNELS];
  volatile uint32_t *flag = flag_new();
  bool let_through = false, hung = false;
  MUST(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&writing, CU_STREAM_NON_BLOCKING));
  for (unsigned i = 0; i < KERNELS; i++)
    MUST(cuEventCreate(&mark[i], CU_EVENT_DISABLE_TIMING));
  launch(waiting, KERNEL_NS, 1);
  MUST(cuCtxSynchronize());
  uint64_t began = now_ns();
  MUST(cuStreamWaitValue32_v2(waiting, (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  for (unsigned i = 0; i < KERNELS && !hung; i++) {
    if (i >= BOUND)
      hung = !gate(mark[i - BOUND], soft, began, &let_through);
    if (hung)
      break;
    launch(waiting, KERNEL_NS, 1);
    MUST(cuEventRecord(mark[i], waiting));
  }
  if (hung)
    *flag = 1;
  else
    MUST(cuStreamWriteValue32_v2(writing, (CUdeviceptr)(uintptr_t)flag, 1, 0));
  MUST(cuCtxSynchronize());
  printf("{\"event\": \"order\", \"hung\": %s, \"wall_ns\": %lu}\n", hung ? "true" : "false", now_ns() - began);
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
  volatile uint32_t *flag = flag_new();
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamWaitValue32_v2(stream, (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  launch(stream, KERNEL_NS, 1);
  ready();
  sleep_for(seconds);
  *flag = 1;
  MUST(cuCtxSynchronize());
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: stalls order hard|soft FILE | stalls spin|blocked SECONDS FILE\n");
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  start(argv[3]);
  if (strcmp(argv[1], "order") == 0)
    order(strcmp(argv[2], "soft") == 0);
  else if (strcmp(argv[1], "spin") == 0)
    spinning(atof(argv[2]));
  else
    blocked(atof(argv[2]));
  puts("{\"event\": \"end\"}");
  return 0;
}
