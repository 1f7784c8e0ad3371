/* Code shared by the test programs: start-up, kernels that spin, a clock. Linked with -lcuda, independent of
 * gpushare. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sim_api.h"

static void check(CUresult result, const char *what) {
  if (result != CUDA_SUCCESS) {
    fprintf(stderr, "%s: %d\n", what, result);
    exit(1);
  }
}
#define OK(call) check(call, #call)

static inline uint64_t number(const char *text) { return strtoull(text, NULL, 10); }

/* Prints a JSON line, which the test reads at once. */
__attribute__((format(printf, 1, 2))) static inline void report(const char *line, ...) {
  va_list values;
  va_start(values, line);
  vprintf(line, values);
  va_end(values);
  fflush(stdout);
}

/* Until the test closes stdin: it reads the pages while the process is still alive. */
static inline int stay(void) {
  while (read(0, &(char){0}, 1) > 0) {
  }
  return 0;
}

static inline uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static CUcontext context;
static CUfunction kernels[2];
static CUmodule modules[2];
static CUstream streams[2];
static uint64_t truth;

static void start_as(const char *ptx_path, int ordinal, unsigned int context_flags) {
  static char ptx[1 << 16];
  FILE *file = fopen(ptx_path, "r");
  CUdevice device;
  if (!file || !fread(ptx, 1, sizeof ptx - 1, file))
    exit(2);
  fclose(file);
  OK(cuInit(0));
  OK(cuDeviceGet(&device, ordinal));
  OK(cuCtxCreate_v2(&context, context_flags, device));
  for (int i = 0; i < 2; i++) {
    OK(cuModuleLoadData(&modules[i], ptx));
    OK(cuModuleGetFunction(&kernels[i], modules[i], "spin_ns"));
    OK(cuStreamCreate(&streams[i], 1 /* non-blocking */));
  }
}

static inline void start_on(const char *ptx_path, int ordinal) { start_as(ptx_path, ordinal, 0); }
static inline void start(const char *ptx_path) { start_on(ptx_path, 0); }

static inline void launch_of(CUfunction function, uint64_t ns, CUstream stream) {
  void *arguments[] = {&ns};
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static inline void spin(int which, uint64_t ns, CUstream stream) {
  launch_of(kernels[which], ns, stream);
  truth += ns;
}

#endif
