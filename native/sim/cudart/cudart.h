/* A small CUDA runtime on the public driver API: sufficient for programs that nvcc links with -cudart shared or -cudart
 * none to run on the simulated device. NVIDIA's own runtime needs private tables of NVIDIA's driver.
 *
 * The driver is found with dlopen("libcuda.so.1") and cuGetProcAddress, so an interposer in front of the driver also
 * affects this library. Registration functions run before constructors, so this library must not depend on one of its
 * own. */
#ifndef SIM_CUDART_H
#define SIM_CUDART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/gs_cuda_types.h"

enum { RT_VERSION = 13000, RT_MAX_DEVICES = 16 };

/* Runtime error numbers. Errors that the driver also has use the same number. */
typedef int cudaError_t;
enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidSymbol = 13,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorMissingConfiguration = 52,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999
};

typedef struct {
  unsigned x, y, z;
} rt_dim3;

enum rt_copy_kind { RT_HOST_TO_HOST, RT_HOST_TO_DEVICE, RT_DEVICE_TO_HOST, RT_DEVICE_TO_DEVICE, RT_DEFAULT };

/* Every driver function used: name, requested version, parameters. */
/* clang-format off */
#define RT_DRIVER_FUNCTIONS(F)                                                                                        \
  F(cuInit, 2000, (unsigned))                                                                                         \
  F(cuDriverGetVersion, 2020, (int *))                                                                                \
  F(cuDeviceGetCount, 2000, (int *))                                                                                  \
  F(cuDeviceGetName, 2000, (char *, int, CUdevice))                                                                   \
  F(cuDeviceGetUuid, 11040, (CUuuid *, CUdevice))                                                                     \
  F(cuDeviceTotalMem, 3020, (size_t *, CUdevice))                                                                     \
  F(cuDeviceGetAttribute, 2000, (int *, CUdevice_attribute, CUdevice))                                                \
  F(cuDeviceGetPCIBusId, 4010, (char *, int, CUdevice))                                                               \
  F(cuDeviceGetByPCIBusId, 4010, (CUdevice *, const char *))                                                          \
  F(cuDeviceCanAccessPeer, 4000, (int *, CUdevice, CUdevice))                                                         \
  F(cuCtxEnablePeerAccess, 4000, (CUcontext, unsigned))                                                               \
  F(cuCtxDisablePeerAccess, 4000, (CUcontext))                                                                        \
  F(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                                          \
  F(cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                                                     \
  F(cuDevicePrimaryCtxReset, 11000, (CUdevice))                                                                       \
  F(cuCtxGetCurrent, 4000, (CUcontext *))                                                                             \
  F(cuCtxSetCurrent, 4000, (CUcontext))                                                                               \
  F(cuCtxGetDevice, 2000, (CUdevice *))                                                                               \
  F(cuCtxSynchronize, 2000, (void))                                                                                   \
  F(cuCtxGetStreamPriorityRange, 5050, (int *, int *))                                                                \
  F(cuCtxGetLimit, 3010, (size_t *, CUlimit))                                                                         \
  F(cuCtxSetLimit, 3010, (CUlimit, size_t))                                                                           \
  F(cuGetErrorString, 6000, (CUresult, const char **))                                                                \
  F(cuMemGetInfo, 3020, (size_t *, size_t *))                                                                         \
  F(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                                        \
  F(cuMemAllocPitch, 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                                       \
  F(cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned))                                                       \
  F(cuMemFree, 3020, (CUdeviceptr))                                                                                   \
  F(cuMemHostAlloc, 2020, (void **, size_t, unsigned))                                                                \
  F(cuMemFreeHost, 2000, (void *))                                                                                    \
  F(cuMemHostRegister, 6050, (void *, size_t, unsigned))                                                              \
  F(cuMemHostUnregister, 4000, (void *))                                                                              \
  F(cuMemHostGetDevicePointer, 3020, (CUdeviceptr *, void *, unsigned))                                               \
  F(cuMemHostGetFlags, 2030, (unsigned *, void *))                                                                    \
  F(cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream))                                                        \
  F(cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                                  \
  F(cuMemFreeAsync, 11020, (CUdeviceptr, CUstream))                                                                   \
  F(cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *, CUdevice))                                                     \
  F(cuDeviceGetMemPool, 11020, (CUmemoryPool *, CUdevice))                                                            \
  F(cuDeviceSetMemPool, 11020, (CUdevice, CUmemoryPool))                                                              \
  F(cuMemPoolCreate, 11020, (CUmemoryPool *, const CUmemPoolProps *))                                                 \
  F(cuMemPoolDestroy, 11020, (CUmemoryPool))                                                                          \
  F(cuMemPoolSetAttribute, 11020, (CUmemoryPool, CUmemPool_attribute, void *))                                        \
  F(cuMemPoolGetAttribute, 11020, (CUmemoryPool, CUmemPool_attribute, void *))                                        \
  F(cuMemPoolTrimTo, 11020, (CUmemoryPool, size_t))                                                                   \
  F(cuMemcpy, 4000, (CUdeviceptr, CUdeviceptr, size_t))                                                               \
  F(cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                                \
  F(cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t))                                                          \
  F(cuMemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, CUstream))                                           \
  F(cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t))                                                                \
  F(cuMemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, CUstream))                                                 \
  F(cuMemcpyDtoD, 3020, (CUdeviceptr, CUdeviceptr, size_t))                                                           \
  F(cuMemcpyDtoDAsync, 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                            \
  F(cuMemcpy2DUnaligned, 3020, (const CUDA_MEMCPY2D *))                                                               \
  F(cuMemcpy2DAsync, 3020, (const CUDA_MEMCPY2D *, CUstream))                                                         \
  F(cuMemsetD8, 3020, (CUdeviceptr, unsigned char, size_t))                                                           \
  F(cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, size_t, CUstream))                                            \
  F(cuMemsetD2D8, 3020, (CUdeviceptr, size_t, unsigned char, size_t, size_t))                                         \
  F(cuMemsetD2D8Async, 3020, (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream))                          \
  F(cuPointerGetAttributes, 7000, (unsigned, CUpointer_attribute *, void **, CUdeviceptr))                            \
  F(cuLibraryLoadData, 12000, (CUlibrary *, const void *, void *, void **, unsigned, void *, void **, unsigned))      \
  F(cuLibraryUnload, 12000, (CUlibrary))                                                                              \
  F(cuLibraryGetKernel, 12000, (CUkernel *, CUlibrary, const char *))                                                 \
  F(cuLibraryGetGlobal, 12000, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                    \
  F(cuLibraryGetManaged, 12000, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                   \
  F(cuKernelGetAttribute, 12000, (int *, CUfunction_attribute, CUkernel, CUdevice))                                   \
  F(cuKernelSetAttribute, 12000, (CUfunction_attribute, int, CUkernel, CUdevice))                                     \
  F(cuKernelSetCacheConfig, 12000, (CUkernel, int, CUdevice))                                                         \
  F(cuKernelGetFunction, 12000, (CUfunction *, CUkernel))                                                             \
  F(cuLaunchKernel, 4000,                                                                                             \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))   \
  F(cuLaunchKernelEx, 11060, (const CUlaunchConfig *, CUfunction, void **, void **))                                  \
  F(cuLaunchCooperativeKernel, 9000,                                                                                  \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))            \
  F(cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void *))                                                            \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, (int *, CUfunction, int, size_t, unsigned))           \
  F(cuStreamCreateWithPriority, 5050, (CUstream *, unsigned, int))                                                    \
  F(cuStreamDestroy, 4000, (CUstream))                                                                                \
  F(cuStreamSynchronize, 2000, (CUstream))                                                                            \
  F(cuStreamQuery, 2000, (CUstream))                                                                                  \
  F(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned))                                                           \
  F(cuStreamGetFlags, 5050, (CUstream, unsigned *))                                                                   \
  F(cuStreamGetPriority, 5050, (CUstream, int *))                                                                     \
  F(cuStreamGetId, 12000, (CUstream, unsigned long long *))                                                           \
  F(cuStreamAddCallback, 5000, (CUstream, CUstreamCallback, void *, unsigned))                                        \
  F(cuStreamBeginCapture, 10010, (CUstream, CUstreamCaptureMode))                                                     \
  F(cuStreamEndCapture, 10000, (CUstream, CUgraph *))                                                                 \
  F(cuStreamIsCapturing, 10000, (CUstream, CUstreamCaptureStatus *))                                                  \
  F(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *))                                                \
  F(cuEventCreate, 2000, (CUevent *, unsigned))                                                                       \
  F(cuEventDestroy, 4000, (CUevent))                                                                                  \
  F(cuEventRecord, 2000, (CUevent, CUstream))                                                                         \
  F(cuEventRecordWithFlags, 11010, (CUevent, CUstream, unsigned))                                                     \
  F(cuEventQuery, 2000, (CUevent))                                                                                    \
  F(cuEventSynchronize, 2000, (CUevent))                                                                              \
  F(cuEventElapsedTime, 2000, (float *, CUevent, CUevent))                                                            \
  F(cuGraphCreate, 10000, (CUgraph *, unsigned))                                                                      \
  F(cuGraphDestroy, 10000, (CUgraph))                                                                                 \
  F(cuGraphGetNodes, 10000, (CUgraph, CUgraphNode *, size_t *))                                                       \
  F(cuGraphInstantiateWithFlags, 11040, (CUgraphExec *, CUgraph, unsigned long long))                                 \
  F(cuGraphUpload, 11010, (CUgraphExec, CUstream))                                                                    \
  F(cuGraphLaunch, 10000, (CUgraphExec, CUstream))                                                                    \
  F(cuGraphExecDestroy, 10000, (CUgraphExec))                                                                         \
  F(cuProfilerStart, 4000, (void))                                                                                    \
  F(cuProfilerStop, 4000, (void))
/* clang-format on */

struct rt_driver {
#define RT_FIELD(name, version, parameters) CUresult(*name) parameters;
  RT_DRIVER_FUNCTIONS(RT_FIELD)
#undef RT_FIELD
};

/* Valid after rt_start() or rt_enter() returned cudaSuccess. */
extern struct rt_driver rt_driver;

/* ---- driver.c: each call remembers an error for cudaGetLastError ------------------------------------------------- */
cudaError_t rt_fail(cudaError_t error); /* records and returns it; cudaSuccess is not recorded */
cudaError_t rt_done(CUresult result);   /* the same for a result of the driver */
cudaError_t rt_start(void);             /* loads and initialises the driver */
/* rt_start, and makes sure that the calling thread has a context: its own, or its device's primary context */
cudaError_t rt_enter(void);
cudaError_t rt_device(CUdevice *device); /* rt_enter, and the device of that context */
int rt_device_count(void);
/* Resets the context chosen for the thread's device: all threads select a context again. True: the primary context was
 * retained. */
bool rt_device_forget(CUdevice *device);
void *rt_driver_symbol(const char *name, int version, uint64_t flags, int *status);
/* The stream for _ptsz functions. */
static inline CUstream rt_own(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

/* ---- symbols.c --------------------------------------------------------------------------------------------------- */
cudaError_t rt_kernel(const void *host, CUkernel *kernel);
cudaError_t rt_symbol(const void *host, CUdeviceptr *address, size_t *bytes);
void rt_symbols_reset(int device); /* after a reset, which frees the device's memory */

/* Declares and defines a function: callers get their declaration from the toolkit's headers, which this library does
 * not include. */
#define RT_API(type, name, parameters) \
  type name parameters __attribute__((visibility("default"))); \
  type name parameters

#endif
