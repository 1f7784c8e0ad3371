/* A program that calls the driver on command. The first argument selects how it finds the driver's functions. It reads
 * one command per line from stdin and answers "result value value" on one line. Objects it created are referenced by
 * number, counted per kind.
 *   linked      exported names, bound by the dynamic linker
 *   dlsym       dlopen("libcuda.so.1") and exported names
 *   proc        only cuGetProcAddress_v2 by dlsym, then base names and versions, as the CUDA runtime does */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/gs_cuda_types.h"

/* clang-format off */
#define FUNCTIONS(X) \
  X(cuInit, cuInit, 2000, unsigned) \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000, int *) \
  X(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, size_t *, CUdevice) \
  X(cuDeviceTotalMem, cuDeviceTotalMem, 2000, unsigned *, CUdevice) \
  X(cuCtxCreate_v2, cuCtxCreate, 3020, CUcontext *, unsigned, CUdevice) \
  X(cuCtxCreate_v4, cuCtxCreate, 12050, CUcontext *, CUctxCreateParams *, unsigned, CUdevice) \
  X(cuCtxDestroy_v2, cuCtxDestroy, 4000, CUcontext) \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, CUcontext) \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000, void) \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, CUcontext *, CUdevice) \
  X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, CUdevice) \
  X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, CUdevice) \
  X(cuMemGetInfo_v2, cuMemGetInfo, 3020, size_t *, size_t *) \
  X(cuMemAlloc_v2, cuMemAlloc, 3020, CUdeviceptr *, size_t) \
  X(cuMemAlloc, cuMemAlloc, 2000, CUdeviceptr_v1 *, unsigned) \
  X(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, CUdeviceptr *, size_t *, size_t, size_t, unsigned) \
  X(cuMemAllocManaged, cuMemAllocManaged, 6000, CUdeviceptr *, size_t, unsigned) \
  X(cuMemFree_v2, cuMemFree, 3020, CUdeviceptr) \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020, CUdeviceptr *, size_t, CUstream) \
  X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, CUdeviceptr *, size_t, CUmemoryPool, CUstream) \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020, CUdeviceptr, CUstream) \
  X(cuMemPoolCreate, cuMemPoolCreate, 11020, CUmemoryPool *, const CUmemPoolProps *) \
  X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, CUmemoryPool) \
  X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, CUmemoryPool, size_t) \
  X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, CUmemoryPool *, CUdevice) \
  X(cuMemCreate, cuMemCreate, 10020, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long) \
  X(cuMemRelease, cuMemRelease, 10020, CUmemGenericAllocationHandle) \
  X(cuMemAddressReserve, cuMemAddressReserve, 10020, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long) \
  X(cuMemMap, cuMemMap, 10020, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) \
  X(cuMemUnmap, cuMemUnmap, 10020, CUdeviceptr, size_t) \
  X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, CUmemGenericAllocationHandle *, void *) \
  X(cuArrayCreate_v2, cuArrayCreate, 3020, CUarray *, const CUDA_ARRAY_DESCRIPTOR *) \
  X(cuArray3DCreate_v2, cuArray3DCreate, 3020, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *) \
  X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned) \
  X(cuArrayDestroy, cuArrayDestroy, 2000, CUarray) \
  X(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, CUmipmappedArray)
/* clang-format on */

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags, int *status);
#define DECLARE(symbol, base, version, ...) CUresult symbol(__VA_ARGS__);
FUNCTIONS(DECLARE)
#define POINTER(symbol, base, version, ...) static CUresult (*p_##symbol)(__VA_ARGS__);
FUNCTIONS(POINTER)

enum { MAX = 4096 };
static CUcontext contexts[MAX];
static CUdeviceptr pointers[MAX], spaces[MAX];
static CUmemoryPool pools[MAX];
static CUmemGenericAllocationHandle handles[MAX];
static CUarray arrays[MAX];
static CUmipmappedArray mipmaps[MAX];
static int ncontexts, npointers, nspaces, npools, nhandles, narrays, nmipmaps;

static void *must(void *pointer, const char *what) {
  if (pointer)
    return pointer;
  printf("missing %s\n", what);
  fflush(stdout);
  _exit(3);
}

static void bind_all(const char *how) {
  if (strcmp(how, "linked") == 0) {
#define LINKED(symbol, base, version, ...) p_##symbol = symbol;
    FUNCTIONS(LINKED)
    return;
  }
  void *driver = must(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
  if (strcmp(how, "dlsym") == 0) {
#define BY_NAME(symbol, base, version, ...) p_##symbol = must(dlsym(driver, #symbol), #symbol);
    FUNCTIONS(BY_NAME)
    return;
  }
  CUresult (*get)(const char *, void **, int, cuuint64_t, int *) = must(dlsym(driver, "cuGetProcAddress_v2"), "lookup");
  void *found;
  int status;
  (void)get("", &found, 0, 0, NULL); /* the runtime's first query */
#define BY_VERSION(symbol, base, version, ...) \
  found = NULL; \
  get(#base, &found, version, 0, &status); \
  p_##symbol = must(found, #symbol);
  FUNCTIONS(BY_VERSION)
}

static CUresult create(size_t bytes) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  return p_cuMemCreate(&handles[nhandles], bytes, &prop, 0);
}

static CUresult pool_create(void) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  return p_cuMemPoolCreate(&pools[npools], &props);
}

/* Allocates in steps until an allocation fails; returns the sum. */
static size_t fill(size_t step) {
  size_t sum = 0;
  while (npointers < MAX && p_cuMemAlloc_v2(&pointers[npointers], step) == CUDA_SUCCESS) {
    npointers++;
    sum += step;
  }
  return sum;
}

/* Allocates and frees varying sizes until `rounds` allocations succeeded, to provoke races. Returns the number of
 * refusals. */
static size_t churn(size_t rounds, size_t step) {
  size_t granted = 0, refused = 0;
  while (granted < rounds) {
    CUdeviceptr at;
    if (p_cuMemAlloc_v2(&at, step * (1 + (granted + refused) % 3)) == CUDA_SUCCESS) {
      granted++;
      p_cuMemFree_v2(at);
    } else {
      refused++;
      sched_yield();
    }
  }
  return refused;
}

struct work {
  size_t rounds, step;
};

static void *churn_in_thread(void *argument) {
  const struct work *work = argument;
  p_cuCtxSetCurrent(contexts[ncontexts - 1]);
  return (void *)churn(work->rounds, work->step);
}

/* churn in several threads at once; returns the sum of their results. */
static size_t threads(size_t count, size_t rounds, size_t step) {
  struct work work = {rounds, step};
  pthread_t thread[16];
  size_t sum = 0;
  for (size_t i = 0; i < count && i < 16; i++)
    pthread_create(&thread[i], NULL, churn_in_thread, &work);
  for (size_t i = 0; i < count && i < 16; i++) {
    void *refused;
    pthread_join(thread[i], &refused);
    sum += (size_t)refused;
  }
  return sum;
}

static void answer(CUresult result, size_t one, size_t two) {
  printf("%d %zu %zu\n", (int)result, one, two);
  fflush(stdout);
}

static int obey(const char *verb, size_t a, size_t b, size_t c) {
  CUresult r = CUDA_SUCCESS;
  size_t one = 0, two = 0;
  unsigned narrow = 0;
  CUdeviceptr_v1 low = 0;
  const CUDA_ARRAY3D_DESCRIPTOR cube = {a, b, c, 0x20, 1, 0}; /* floats */
  const CUDA_ARRAY_DESCRIPTOR flat = {a, b, 0x20, 4};
  if (!strcmp(verb, "init"))
    r = p_cuInit(0);
  else if (!strcmp(verb, "ctx"))
    r = p_cuCtxCreate_v2(&contexts[ncontexts], 0, (CUdevice)a), ncontexts += r == 0;
  else if (!strcmp(verb, "ctx4"))
    r = p_cuCtxCreate_v4(&contexts[ncontexts], NULL, 0, (CUdevice)a), ncontexts += r == 0;
  else if (!strcmp(verb, "destroy"))
    r = p_cuCtxDestroy_v2(contexts[a]);
  else if (!strcmp(verb, "retain")) {
    r = p_cuDevicePrimaryCtxRetain(&contexts[ncontexts], (CUdevice)a);
    if (r == 0)
      p_cuCtxSetCurrent(contexts[ncontexts++]);
  } else if (!strcmp(verb, "release"))
    r = p_cuDevicePrimaryCtxRelease_v2((CUdevice)a);
  else if (!strcmp(verb, "reset"))
    r = p_cuDevicePrimaryCtxReset_v2((CUdevice)a);
  else if (!strcmp(verb, "alloc"))
    r = p_cuMemAlloc_v2(&pointers[npointers], a), npointers += r == 0;
  else if (!strcmp(verb, "alloc1")) {
    r = p_cuMemAlloc(&low, (unsigned)a);
    if (r == 0)
      pointers[npointers++] = low;
  } else if (!strcmp(verb, "managed"))
    r = p_cuMemAllocManaged(&pointers[npointers], a, 1), npointers += r == 0;
  else if (!strcmp(verb, "pitch"))
    r = p_cuMemAllocPitch_v2(&pointers[npointers], &one, a, b, 4), npointers += r == 0;
  else if (!strcmp(verb, "free"))
    r = p_cuMemFree_v2(pointers[a]);
  else if (!strcmp(verb, "freeat"))
    r = p_cuMemFree_v2(a);
  else if (!strcmp(verb, "async"))
    r = p_cuMemAllocAsync(&pointers[npointers], a, NULL), npointers += r == 0;
  else if (!strcmp(verb, "frompool"))
    r = p_cuMemAllocFromPoolAsync(&pointers[npointers], a, pools[b], NULL), npointers += r == 0;
  else if (!strcmp(verb, "freeasync"))
    r = p_cuMemFreeAsync(pointers[a], NULL);
  else if (!strcmp(verb, "pool"))
    r = pool_create(), npools += r == 0;
  else if (!strcmp(verb, "default"))
    r = p_cuDeviceGetDefaultMemPool(&pools[npools], 0), npools += r == 0;
  else if (!strcmp(verb, "unpool"))
    r = p_cuMemPoolDestroy(pools[a]);
  else if (!strcmp(verb, "trim"))
    r = p_cuMemPoolTrimTo(pools[a], b);
  else if (!strcmp(verb, "create"))
    r = create(a), nhandles += r == 0;
  else if (!strcmp(verb, "drop"))
    r = p_cuMemRelease(handles[a]);
  else if (!strcmp(verb, "space"))
    r = p_cuMemAddressReserve(&spaces[nspaces], a, 0, 0, 0), nspaces += r == 0;
  else if (!strcmp(verb, "map"))
    r = p_cuMemMap(spaces[a] + c, 2 << 20, 0, handles[b], 0);
  else if (!strcmp(verb, "unmap"))
    r = p_cuMemUnmap(spaces[a], b);
  else if (!strcmp(verb, "hold"))
    r = p_cuMemRetainAllocationHandle(&handles[nhandles], (void *)(spaces[a] + 4096)), nhandles += r == 0;
  else if (!strcmp(verb, "array"))
    r = p_cuArrayCreate_v2(&arrays[narrays], &flat), narrays += r == 0;
  else if (!strcmp(verb, "array3"))
    r = p_cuArray3DCreate_v2(&arrays[narrays], &cube), narrays += r == 0;
  else if (!strcmp(verb, "mipmap"))
    r = p_cuMipmappedArrayCreate(&mipmaps[nmipmaps], &cube, 3), nmipmaps += r == 0;
  else if (!strcmp(verb, "unarray"))
    r = p_cuArrayDestroy(arrays[a]);
  else if (!strcmp(verb, "unmipmap"))
    r = p_cuMipmappedArrayDestroy(mipmaps[a]);
  else if (!strcmp(verb, "info"))
    r = p_cuMemGetInfo_v2(&one, &two);
  else if (!strcmp(verb, "total"))
    r = p_cuDeviceTotalMem_v2(&one, (CUdevice)a);
  else if (!strcmp(verb, "total1"))
    r = p_cuDeviceTotalMem(&narrow, (CUdevice)a), one = narrow;
  else if (!strcmp(verb, "sync"))
    r = p_cuCtxSynchronize();
  else if (!strcmp(verb, "fill"))
    one = fill(a);
  else if (!strcmp(verb, "churn"))
    one = churn(a, b);
  else if (!strcmp(verb, "threads"))
    one = threads(a, b, c);
  else if (!strcmp(verb, "nulls")) /* the driver must refuse each; the interposer must not crash */
    one = (size_t)(p_cuMemAlloc_v2(NULL, 512) | p_cuMemAllocPitch_v2(NULL, NULL, 4, 4, 4) << 1 |
                   p_cuMemCreate(NULL, 0, NULL, 0) << 2 | p_cuMemGetInfo_v2(NULL, NULL) << 3 |
                   p_cuCtxCreate_v2(NULL, 0, 0) << 4 | p_cuArrayCreate_v2(NULL, NULL) << 5 |
                   p_cuMemPoolCreate(NULL, NULL) << 6 | p_cuDevicePrimaryCtxRetain(NULL, 0) << 7);
  else if (!strcmp(verb, "fork")) {
    int status;
    pid_t child = fork();
    if (child == 0)
      _exit(p_cuInit(0) & 127);
    waitpid(child, &status, 0);
    one = (size_t)WEXITSTATUS(status);
  } else
    return 0;
  answer(r, one, two);
  return 1;
}

int main(int argc, char **argv) {
  char line[256], verb[32];
  bind_all(argc > 1 ? argv[1] : "linked");
  while (fgets(line, sizeof line, stdin)) {
    size_t a = 0, b = 0, c = 0;
    if (sscanf(line, "%31s %zu %zu %zu", verb, &a, &b, &c) < 1 || !obey(verb, a, b, c)) {
      printf("what? %s", line);
      return 2;
    }
  }
  return 0;
}
