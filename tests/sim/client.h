/* Code shared by the simulator's C clients. */
#ifndef CLIENT_H
#define CLIENT_H

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sim_api.h"

static const char spin_ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    "// .entry commented_out()\n"
    ".visible .global .align 8 .u64 counters[16];\n"
    ".visible .entry spin_ns(.param .u64 spin_ns_param_0)\n{\n  ret;\n}\n"
    ".visible .entry other(\n  .param .u64 p0, .param .f32 p1,\n  .param .align 16 .b8 p2[24]\n)\n{\n  ret;\n}\n";

#define EXPECT(call, want) \
  do { \
    int got_ = (int)(call), want_ = (int)(want); \
    if (got_ != want_) { \
      printf("%s:%d: %s gave %d instead of %d\n", __FILE__, __LINE__, #call, got_, want_); \
      exit(1); \
    } \
  } while (0)
#define OK(call) EXPECT(call, CUDA_SUCCESS)
#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1); \
    } \
  } while (0)

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct client {
  CUcontext ctx;
  CUmodule module;
  CUfunction spin, other;
};

static inline struct client client_start(void) {
  struct client c;
  OK(cuInit(0));
  OK(cuCtxCreate_v2(&c.ctx, 0, 0));
  OK(cuModuleLoadData(&c.module, spin_ptx));
  OK(cuModuleGetFunction(&c.spin, c.module, "spin_ns"));
  OK(cuModuleGetFunction(&c.other, c.module, "other"));
  return c;
}

static inline void spin(const struct client *c, uint64_t ns, CUstream stream) {
  void *params[] = {&ns};
  OK(cuLaunchKernel(c->spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

/* Blocks a stream until everything that a test compares is queued, however late this thread runs. The work behind the
 * gate begins with a short kernel, at whose end it has the device. */
static unsigned *gate_flag;

static inline void gate_close(const struct client *c, CUstream stream) {
  CUdeviceptr address;
  if (gate_flag == NULL)
    OK(cuMemHostAlloc((void **)&gate_flag, 4, 2));
  OK(cuMemHostGetDevicePointer_v2(&address, gate_flag, 0));
  __atomic_store_n(gate_flag, 0, __ATOMIC_RELEASE);
  OK(cuStreamWaitValue32_v2(stream, address, 1, CU_STREAM_WAIT_VALUE_EQ));
  spin(c, 1000, stream);
}

static inline void gate_open(void) { __atomic_store_n(gate_flag, 1, __ATOMIC_RELEASE); }

/* Time from one event to another in ns, to the precision of a float. */
static inline double between(CUevent a, CUevent b) {
  float ms;
  OK(cuEventElapsedTime(&ms, a, b));
  return (double)ms * 1e6;
}

/* Whether `got` is exactly ns, to the 24 bits of a float; or, with a busy neighbour (BESIDE set), at least that, as the
 * neighbour uses the device in between. */
static inline bool is_time(double got, double ns) {
  double error = ns * 1.2e-7 + 0.5;
  return getenv("BESIDE") ? got >= ns - error : fabs(got - ns) <= error;
}

#endif
