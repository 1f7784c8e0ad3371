/* Threads of one program in everything that the interposer guards: allocations, launches on streams of their own,
 * waits, queries, captures, contexts that are created and destroyed, and one that is released and stays alive. Linked
 * with the interposer's own objects under a race detector. At the end it holds no memory, reports so and waits for EOF
 * on its standard input.
 *   race_client PTX SECONDS */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sim_api.h"

enum { THREADS = 4, OTHERS = 3 };

static CUcontext context;
static CUfunction kernel;
static time_t end;

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: %d\n", what, result);
  exit(1);
}
#define OK(call) check(call, #call)

static void spin(CUstream stream, unsigned long long ns) {
  void *parameters[] = {&ns};
  OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void *work(void *argument) {
  unsigned seed = *(unsigned *)argument;
  OK(cuCtxSetCurrent(context));
  while (time(NULL) < end) {
    CUstream stream;
    CUevent event;
    CUdeviceptr memory, pooled;
    size_t available, total;
    OK(cuStreamCreate(&stream, 1 /* non-blocking */));
    OK(cuEventCreate(&event, 2 /* no timing */));
    for (int i = 0; i < 20; i++) {
      OK(cuMemAlloc_v2(&memory, 1 + (size_t)rand_r(&seed) % 3000000));
      OK(cuMemAllocAsync(&pooled, 1 + (size_t)rand_r(&seed) % 100000, stream));
      OK(cuMemsetD8Async(memory, 0, 1, stream));
      for (int k = rand_r(&seed) % 30; k >= 0; k--)
        spin(stream, 1000 + (unsigned)rand_r(&seed) % 20000);
      OK(cuEventRecord(event, stream));
      (void)cuStreamQuery(stream);
      (void)cuEventQuery(event);
      OK(rand_r(&seed) % 2 ? cuEventSynchronize(event) : cuStreamSynchronize(stream));
      OK(cuMemGetInfo_v2(&available, &total));
      OK(cuMemFreeAsync(pooled, stream));
      OK(cuMemFree_v2(memory));
    }
    OK(cuEventDestroy_v2(event));
    OK(cuStreamDestroy_v2(stream));
  }
  return NULL;
}

/* Contexts of its own that are destroyed with work, memory and sometimes a capture left in them. */
static void *come_and_go(void *argument) {
  (void)argument;
  for (int turn = 0; time(NULL) < end; turn++) {
    CUcontext own;
    CUstream stream;
    CUdeviceptr memory;
    OK(cuCtxCreate_v2(&own, 0, 0));
    OK(cuStreamCreate(&stream, 1 /* non-blocking */));
    OK(cuMemAlloc_v2(&memory, 1 << 20));
    OK(cuMemsetD8Async(memory, 0, 1 << 20, stream));
    if (turn % 3 == 0)
      OK(cuCtxSynchronize());
    if (turn % 10 == 0)
      OK(cuStreamBeginCapture_v2(stream, 2 /* relaxed */));
    OK(cuCtxDestroy_v2(own));
  }
  return NULL;
}

static void *hold_and_let_go(void *argument) {
  (void)argument;
  while (time(NULL) < end) {
    CUcontext same;
    OK(cuDevicePrimaryCtxRetain(&same, 0));
    OK(cuCtxSetCurrent(same));
    spin(NULL, 1000);
    OK(cuDevicePrimaryCtxRelease_v2(0));
  }
  return NULL;
}

int main(int argc, char **argv) {
  static char ptx[1 << 16];
  static void *(*const other[OTHERS])(void *) = {come_and_go, come_and_go, hold_and_let_go};
  pthread_t thread[THREADS + OTHERS];
  unsigned seed[THREADS];
  CUmodule module;
  FILE *file = argc == 3 ? fopen(argv[1], "r") : NULL;
  if (!file || !fread(ptx, 1, sizeof ptx - 1, file))
    return 2;
  fclose(file);
  end = time(NULL) + atoi(argv[2]);
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuModuleLoadData(&module, ptx));
  OK(cuModuleGetFunction(&kernel, module, "spin_ns"));
  for (unsigned i = 0; i < THREADS; i++) {
    seed[i] = i + 1;
    pthread_create(&thread[i], NULL, work, &seed[i]);
  }
  for (int i = 0; i < OTHERS; i++)
    pthread_create(&thread[THREADS + i], NULL, other[i], NULL);
  for (int i = 0; i < THREADS + OTHERS; i++)
    pthread_join(thread[i], NULL);
  OK(cuDevicePrimaryCtxRelease_v2(0));
  puts("over");
  fflush(stdout);
  while (getchar() != EOF)
    ;
  return 0;
}
