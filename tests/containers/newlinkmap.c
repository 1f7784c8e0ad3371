/* newlinkmap DRIVER [joined]: loads the driver by its path into a new link-map namespace, without preloaded libraries.
 * With `joined` the process joins its grant first, by an ordinary CUDA call. Commands on standard input, each answered
 * with a JSON object: `take MIB` allocates pieces of 16 MiB up to that, or until one is refused; `run` keeps kernels of
 * 100 us queued until the next command. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/gs_cuda.h"

CUresult cuInit(unsigned);

/* clang-format off */
#define API(X) \
  X(cuInit, (unsigned)) \
  X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
  X(cuCtxSetCurrent, (CUcontext)) \
  X(cuCtxSynchronize, (void)) \
  X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
  X(cuModuleLoadData, (CUmodule *, const void *)) \
  X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
  X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))
/* clang-format on */

#define MEMBER(name, parameters) CUresult(*name) parameters;
static struct {
  API(MEMBER)
} bare;

static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry spin_ns(.param .u64 "
                          "spin_ns_param_0)\n{\n  ret;\n}\n";

static int take(int mib) {
  enum { PIECE = 16 };
  CUdeviceptr memory;
  CUresult last = CUDA_SUCCESS;
  int got = 0;
  while (got < mib && (last = bare.cuMemAlloc_v2(&memory, (size_t)PIECE << 20)) == CUDA_SUCCESS)
    got += PIECE;
  return printf("{\"mib\": %d, \"last\": %d}\n", got, (int)last);
}

static void run(CUfunction spin) {
  uint64_t ns = 100000;
  void *arguments[] = {&ns};
  struct pollfd command = {.fd = 0, .events = POLLIN};
  CUresult code = CUDA_SUCCESS;
  puts("{\"run\": 0}");
  fflush(stdout);
  while (code == CUDA_SUCCESS && poll(&command, 1, 0) == 0) {
    for (int i = 0; i < 20 && code == CUDA_SUCCESS; i++)
      code = bare.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
    if (code == CUDA_SUCCESS)
      code = bare.cuCtxSynchronize();
  }
}

int main(int argc, char **argv) {
  char line[64];
  CUcontext context = NULL;
  CUmodule module = NULL;
  CUfunction spin = NULL;
  CUresult joined = argc > 2 ? cuInit(0) : CUDA_SUCCESS;
  void *driver = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW);
  if (driver == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
#define FIND(name, parameters) *(void **)&bare.name = dlsym(driver, #name);
  API(FIND)
  CUresult init = bare.cuInit(0);
  if (init == CUDA_SUCCESS)
    init = bare.cuDevicePrimaryCtxRetain(&context, 0);
  if (init == CUDA_SUCCESS)
    init = bare.cuCtxSetCurrent(context);
  if (init == CUDA_SUCCESS)
    init = bare.cuModuleLoadData(&module, ptx);
  if (init == CUDA_SUCCESS)
    init = bare.cuModuleGetFunction(&spin, module, "spin_ns");
  printf("{\"joined\": %d, \"init\": %d}\n", (int)joined, (int)init);
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (strncmp(line, "take ", 5) == 0)
      take(atoi(line + 5));
    if (strcmp(line, "run\n") == 0)
      run(spin);
    fflush(stdout);
  }
  return 0;
}
