/* A driver with fault injection: takes the place of libcuda.so.1, with the simulated driver behind it as
 * libsimcuda.so.1. The file named by FAULTS contains words " name=result" (mapped, so the test can change it at run
 * time). A call with a listed name returns the result without calling the driver; a negative result ends the program. A
 * few other words select variants of the driver. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "api/gs_cuda_types.h"

enum { TOLD_BYTES = 4096 };

static const char *fault_of(const char *name) {
  static const char *words;
  char word[80];
  if (!words) {
    int fd = open(getenv("FAULTS"), O_RDONLY | O_CLOEXEC);
    words = mmap(NULL, TOLD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED)
      abort();
  }
  snprintf(word, sizeof word, " %s=", name);
  const char *at = strstr(words, word);
  return at ? at + strlen(word) : NULL;
}

static void *real(const char *name) {
  static void *driver;
  if (!driver)
    driver = dlopen("libsimcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *found = dlsym(driver, name);
  if (!found)
    abort();
  return found;
}

/* Twelve words are the maximum that any of these functions takes; extra words are harmless. */
#define WORDS(X) X a, X b, X c, X d, X e, X f, X g, X h, X i, X j, X k, X l
typedef CUresult (*any)(WORDS(uintptr_t));
#define FAULTY(name) \
  CUresult name(WORDS(uintptr_t)); \
  CUresult name(WORDS(uintptr_t)) { \
    const char *fault = fault_of(#name); \
    if (fault && atoi(fault) < 0) \
      abort(); \
    return fault ? (CUresult)atoi(fault) : ((any)real(#name))(a, b, c, d, e, f, g, h, i, j, k, l); \
  }

/* clang-format off */
FAULTY(cuMemAlloc_v2) FAULTY(cuMemAllocManaged) FAULTY(cuMemFree_v2) FAULTY(cuMemFreeAsync) FAULTY(cuMemAllocAsync)
FAULTY(cuMemCreate) FAULTY(cuMemRelease) FAULTY(cuMemUnmap)
FAULTY(cuModuleLoadData) FAULTY(cuModuleUnload) FAULTY(cuLibraryUnload) FAULTY(cuLibraryGetModule) FAULTY(cuKernelGetFunction)
FAULTY(cuLibraryGetGlobal)
FAULTY(cuCtxCreate_v2) FAULTY(cuCtxAttach) FAULTY(cuCtxGetApiVersion) FAULTY(cuCtxDestroy_v2) FAULTY(cuCtxSetLimit) FAULTY(cuGreenCtxCreate) FAULTY(cuGreenCtxDestroy)
FAULTY(cuDevicePrimaryCtxRetain) FAULTY(cuDevicePrimaryCtxReset_v2)
FAULTY(cuEventCreate) FAULTY(cuEventRecord) FAULTY(cuEventQuery) FAULTY(cuEventElapsedTime)
FAULTY(cuStreamQuery)
FAULTY(cuStreamBeginCapture_v2) FAULTY(cuStreamGetCtx) FAULTY(cuStreamIsCapturing)
FAULTY(cuGraphInstantiateWithFlags) FAULTY(cuGraphExecDestroy_v2) FAULTY(cuGraphExecDestroy) FAULTY(cuGraphLaunch)
FAULTY(cuCtxSetFlags) FAULTY(cuMemGetHandleForAddressRange)
FAULTY(cuLaunchKernel) FAULTY(cuMemPoolCreate) FAULTY(cuMemPoolDestroy)
    /* clang-format on */

    /* pitch=: a row pitch larger than on any known device. */
    CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element);
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
  CUresult (*allocate)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int) = real("cuMemAllocPitch_v2");
  return allocate(address, pitch, fault_of("pitch") ? width + 4096 : width, height, element);
}

/* tokens=: the driver has peer-to-peer tokens, with 1 for memory of cuMemAlloc, with 2 for mapped memory too. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address);
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  CUresult (*get)(void *, CUpointer_attribute, CUdeviceptr) = real("cuPointerGetAttribute");
  CUresult (*access)(unsigned long long *, const CUmemLocation *, CUdeviceptr) = real("cuMemGetAccess");
  const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
  const char *fault = attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS ? fault_of("tokens") : NULL;
  unsigned long long rights;
  if (!fault)
    return get(data, attribute, address);
  bool mapped = access(&rights, &here, address) == CUDA_SUCCESS;
  if (mapped && atoi(fault) < 2)
    return CUDA_ERROR_INVALID_VALUE;
  memset(data, mapped ? 0x77 : 0x11, 16);
  return CUDA_SUCCESS;
}

/* deferred=: arrays with deferred mapping can be created, as on newer hardware, one at a time. needs=N: an array
 * reports that it needs N times as much memory. */
enum { DEFERRED_MAPPING = 0x80 };
static CUDA_ARRAY3D_DESCRIPTOR imagined;

static CUresult create(CUDA_ARRAY3D_DESCRIPTOR **array, const CUDA_ARRAY3D_DESCRIPTOR *about, uintptr_t levels,
                       const char *name) {
  if (!fault_of("deferred") || !(about->Flags & DEFERRED_MAPPING))
    return ((CUresult (*)(void *, const void *, uintptr_t))real(name))(array, about, levels);
  imagined = *about;
  *array = &imagined;
  return CUDA_SUCCESS;
}
CUresult cuArray3DCreate_v2(void *array, const CUDA_ARRAY3D_DESCRIPTOR *about);
CUresult cuArray3DCreate_v2(void *array, const CUDA_ARRAY3D_DESCRIPTOR *about) {
  return create(array, about, 0, __func__);
}
CUresult cuMipmappedArrayCreate(void *array, const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned int levels);
CUresult cuMipmappedArrayCreate(void *array, const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned int levels) {
  return create(array, about, levels, __func__);
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, const void *array, CUdevice device,
                             const char *name) {
  const char *fault = fault_of(name), *times = fault_of("needs");
  CUresult result = fault ? (CUresult)atoi(fault) : CUDA_SUCCESS;
  if (array == &imagined)
    /* floats, with the rounding of the simulated device */
    needs->size = (imagined.Width * imagined.Height * 4 + 511) / 512 * 512;
  else if (!fault)
    result = ((CUresult (*)(void *, const void *, CUdevice))real(name))(needs, array, device);
  needs->size *= times ? (size_t)atoi(times) : 1;
  return result;
}
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, const void *array, CUdevice device);
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, const void *array, CUdevice device) {
  return requirements(needs, array, device, __func__);
}
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, const void *array,
                                               CUdevice device);
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, const void *array,
                                               CUdevice device) {
  return requirements(needs, array, device, __func__);
}

static CUresult destroy(const void *array, const char *name) {
  const char *fault = fault_of(name);
  if (fault || array == &imagined)
    return fault ? (CUresult)atoi(fault) : CUDA_SUCCESS;
  return ((CUresult (*)(const void *))real(name))(array);
}
CUresult cuArrayDestroy(const void *array);
CUresult cuArrayDestroy(const void *array) { return destroy(array, __func__); }
CUresult cuMipmappedArrayDestroy(const void *array);
CUresult cuMipmappedArrayDestroy(const void *array) { return destroy(array, __func__); }
