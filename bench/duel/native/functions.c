/* Functions that nobody has seen before, other ways to launch, other kinds of stream. */
#define _GNU_SOURCE
#include <pthread.h>

#include "duel.h"

/* The module is loaded anew for each launch: a new handle, an unknown function. */
static void reloaded(void) {
  CUstream stream = new_stream();
  begin();
  for (;;) {
    CUmodule module;
    MUST(cuModuleLoadData(&module, program()));
    for (int i = 0; i < 4; i++)
      spin_as(spin_of(module, i ? "_Z7spin_ns0" : "spin_ns"), stream, 10 * MS);
    MUST(cuStreamSynchronize(stream));
    MUST(cuModuleUnload(module));
  }
}

static void *one_launch(void *unused) {
  uint64_t ns = 10 * MS;
  void *arguments[] = {&ns};
  MUST(cuCtxSetCurrent(duel.context));
  MUST(cuLaunchKernel(duel.spin, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, arguments, NULL));
  return unused;
}

/* A thread for each launch, into its own default stream, which ends with it. */
static void thread_each(void) {
  pthread_t id;
  begin();
  for (unsigned long i = 0;; i++) {
    if (pthread_create(&id, NULL, one_launch, NULL) == 0)
      pthread_join(id, NULL);
    if (i % 8 == 7)
      wait_all();
  }
}

static void *floods(void *unused) {
  MUST(cuCtxSetCurrent(duel.context));
  flood(duel.spin, new_stream(), 2 * MS, 4);
  return unused;
}

/* 32 threads with a stream each: what is in flight is bounded for all of them together. */
static void threads_32(void) {
  for (int i = 0; i < 32; i++)
    thread(floods, NULL);
  begin();
  for (;;)
    sleep_ns(1000 * (uint64_t)MS);
}

static void priority(void) {
  CUstream stream;
  int least, greatest;
  MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  MUST(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
  begin();
  flood(duel.spin, stream, 10 * MS, 8);
}

static void cooperative(void) {
  CUstream stream = new_stream();
  uint64_t ns = 10 * MS;
  void *arguments[] = {&ns};
  begin();
  for (;;) {
    CUDA_LAUNCH_PARAMS one = {.function = duel.spin,
                              .gridDimX = 1,
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = 1,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .hStream = stream,
                              .kernelParams = arguments};
    MUST(cuLaunchCooperativeKernelMultiDevice(&one, 1, 0));
    MUST(cuLaunchCooperativeKernel(duel.spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments));
    MUST(cuStreamSynchronize(stream));
  }
}

/* The driver's functions of old versions, found by name and version. */
static void old_version(void) {
  CUresult (*launch)(CUfunction, int, int, CUstream);
  CUstream stream = new_stream();
  uint64_t ns = 10 * MS;
  MUST(cuGetProcAddress_v2("cuLaunchGridAsync", (void **)&launch, 2000, 0, NULL));
  MUST(cuFuncSetBlockShape(duel.spin, 1, 1, 1));
  MUST(cuParamSetSize(duel.spin, sizeof ns));
  MUST(cuParamSetv(duel.spin, 0, &ns, sizeof ns));
  begin();
  for (;;) {
    for (int i = 0; i < 4; i++)
      MUST(launch(duel.spin, 1, 1, stream));
    MUST(cuStreamSynchronize(stream));
  }
}

/* Found by looking up the function that looks up. */
static void looked_up_twice(void) {
  CUresult (*look)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                     void **, void **);
  CUstream stream = new_stream();
  uint64_t ns = 10 * MS;
  void *arguments[] = {&ns};
  MUST(cuGetProcAddress_v2("cuGetProcAddress", (void **)&look, 12000, 0, NULL));
  MUST(look("cuLaunchKernel", (void **)&launch, 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
  begin();
  for (;;) {
    for (int i = 0; i < 4; i++)
      MUST(launch(duel.spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    MUST(cuStreamSynchronize(stream));
  }
}

/* 3,000 functions and shapes, more than any table holds: short ones between rare long ones. */
static void many_functions(void) {
  CUstream stream = new_stream();
  uint64_t brief = 2 * US;
  void *arguments[] = {&brief};
  begin();
  for (unsigned i = 0;; i++) {
    MUST(cuLaunchKernel(duel.spin, 1 + i % 3000, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    if (i % 200 == 199) {
      spin(stream, 20 * MS);
      MUST(cuStreamSynchronize(stream));
    }
  }
}

const struct evasion function_evasions[] = {
    {.name = "module-reload", .about = "the module is loaded anew for every four launches", .run = reloaded},
    {.name = "thread-each", .about = "a thread for each launch, into its own default stream", .run = thread_each},
    {.name = "threads-32", .about = "32 threads with a stream each", .run = threads_32},
    {.name = "priority", .about = "a stream of the greatest priority", .run = priority},
    {.name = "cooperative", .about = "cooperative launches, for several devices too", .run = cooperative},
    {.name = "old-version", .about = "cuLaunchGridAsync of CUDA 2.0", .run = old_version},
    {.name = "looked-up-twice", .about = "cuGetProcAddress found by cuGetProcAddress", .run = looked_up_twice},
    {.name = "many-functions", .about = "3,000 shapes of 2 us around rare kernels of 20 ms", .run = many_functions},
    {0},
};
