/* Takes one step at a time, so that an observer can see what each costs in device memory:  steps SPIN_MODULE [BIG_STACK_MODULE]
 *
 * Commands on stdin, one JSON object each:  init | context | second | module | launch | bigstack | pool SIZE | alloc SIZE | drop | look
 * quit
 *
 * `second` makes another context in the process, `drop` ends it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

/* What the device's local memory is made of: threads it holds, bytes a thread has at first, and what the last kernel
 * asks for. */
static int processors, threads_each, local_bytes;
static size_t stack_bytes;

static CUdevice device;
static CUcontext context, second;
static CUmodule spin_module, big_stack_module;
static CUstream stream;

static void answer(const char *event) {
  size_t available = 0, total = 0;
  if (context)
    MUST(cuMemGetInfo_v2(&available, &total));
  printf("{\"event\": \"%s\", \"free_bytes\": %zu, \"total_bytes\": %zu, \"processors\": %d, \"threads\": %d, "
         "\"stack_bytes\": %zu, \"local_bytes\": %d}\n",
         event, available, total, processors, threads_each, stack_bytes, local_bytes);
}

static void launch(CUmodule module, const char *name, void **arguments, unsigned blocks, unsigned threads) {
  CUfunction function;
  MUST(cuModuleGetFunction(&function, module, name));
  MUST(cuFuncGetAttribute(&local_bytes, FUNCTION_LOCAL_BYTES, function));
  MUST(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL));
  MUST(cuStreamSynchronize(stream));
}

static void big_stack(void) {
  uint64_t iterations = 16, floats = 1 << 20;
  CUdeviceptr data;
  MUST(cuMemAlloc_v2(&data, floats * sizeof(float)));
  launch(big_stack_module, "big_stack", (void *[]){&iterations, &data, &floats}, 1, 32);
  MUST(cuMemFree_v2(data));
}

static void step(const char *line, const char *spin_file, const char *big_stack_file) {
  uint64_t ns = 1000;
  CUdeviceptr pointer;
  char size[32];
  size_t bytes;
  if (strcmp(line, "init") == 0) {
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetAttribute(&processors, ATTRIBUTE_MULTIPROCESSORS, device));
    MUST(cuDeviceGetAttribute(&threads_each, ATTRIBUTE_THREADS_EACH, device));
  } else if (strcmp(line, "context") == 0) {
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuCtxGetLimit(&stack_bytes, CU_LIMIT_STACK_SIZE));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  } else if (strcmp(line, "second") == 0) {
    MUST(cuCtxCreate_v2(&second, 0, device));
    MUST(cuCtxSetCurrent(context));
  } else if (strcmp(line, "look") == 0) {
    /* only reports what is free */
  } else if (strcmp(line, "drop") == 0) {
    MUST(cuCtxDestroy_v2(second));
  } else if (strcmp(line, "module") == 0) {
    MUST(cuModuleLoadData(&spin_module, read_file(spin_file)));
    if (big_stack_file)
      MUST(cuModuleLoadData(&big_stack_module, read_file(big_stack_file)));
  } else if (strcmp(line, "launch") == 0) {
    launch(spin_module, "spin_ns", (void *[]){&ns}, 1, 1);
  } else if (strcmp(line, "bigstack") == 0 && big_stack_module) {
    big_stack();
  } else if (sscanf(line, "pool %31s", size) == 1 && parse_size(size, &bytes)) {
    MUST(cuMemAllocAsync(&pointer, bytes, stream));
    MUST(cuStreamSynchronize(stream));
  } else if (sscanf(line, "alloc %31s", size) == 1 && parse_size(size, &bytes)) {
    MUST(cuMemAlloc_v2(&pointer, bytes));
  } else {
    puts("{\"event\": \"unknown\"}");
    return;
  }
  answer(line);
}

int main(int argc, char **argv) {
  char line[128];
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc < 2)
    return 2;
  printf("{\"event\": \"ready\", \"pid\": %d}\n", (int)getpid());
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, "quit") == 0)
      break;
    step(line, argv[1], argc > 2 ? argv[2] : NULL);
  }
  return 0;
}
