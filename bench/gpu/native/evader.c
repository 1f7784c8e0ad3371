/* A program that has no interposer:  evader FILE MODULE [STEP]
 *
 * FILE holds four words of 64 bits. CLOCK_MONOTONIC in ns: before the first call of the driver, with a context, after
 * each kernel of 100 us; and how many bytes it has. With STEP it allocates so much until it is refused or ended, and
 * launches nothing. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

enum { BEGAN, CONTEXT, BEAT, BYTES, WORDS, KERNEL_NS = 100000 };

static volatile uint64_t *map(const char *path) {
  int file = open(path, O_RDWR | O_CLOEXEC);
  void *words = MAP_FAILED;
  if (file >= 0)
    words = mmap(NULL, WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (words == MAP_FAILED) {
    perror(path);
    exit(2);
  }
  return words;
}

static void take(volatile uint64_t *words, size_t step) {
  CUdeviceptr pointer;
  while (cuMemAlloc_v2(&pointer, step) == CUDA_SUCCESS)
    words[BYTES] += step;
  printf("{\"event\": \"refused\", \"bytes\": %lu}\n", (unsigned long)words[BYTES]);
}

static void compute(volatile uint64_t *words, const char *file) {
  uint64_t ns = KERNEL_NS;
  CUmodule module;
  CUfunction spin;
  MUST(cuModuleLoadData(&module, read_file(file)));
  MUST(cuModuleGetFunction(&spin, module, "spin_ns"));
  for (;;) {
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&ns}, NULL));
    MUST(cuCtxSynchronize());
    words[BEAT] = now_ns();
  }
}

int main(int argc, char **argv) {
  CUdevice device;
  CUcontext context;
  size_t step = 0;
  if (argc < 3 || (argc > 3 && !parse_size(argv[3], &step)))
    return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  volatile uint64_t *words = map(argv[1]);
  printf("{\"event\": \"ready\", \"pid\": %d}\n", (int)getpid()); /* it may be stopped at any call below */
  words[BEGAN] = now_ns();
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  words[CONTEXT] = now_ns();
  if (step)
    take(words, step);
  else
    compute(words, argv[2]);
  return 0;
}
