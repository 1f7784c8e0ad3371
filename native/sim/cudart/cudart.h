/* The CUDA runtime on the public driver API: lets programs that load a shared runtime, or that nvcc links with `-cudart
 * none`, run on the simulated device. NVIDIA's own runtime needs private tables of NVIDIA's driver. Functions that only
 * forward are generated (gen_runtime.py); hand-written ones are in the files below.
 *
 * The driver is found with dlopen("libcuda.so.1") and cuGetProcAddress, so an interposer in front of the driver also
 * affects this library. Registration functions run before constructors, so this library must not depend on one of its
 * own. */
#ifndef SIM_CUDART_H
#define SIM_CUDART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim_api.h"

#include "api/gs_cuda_textures.h"

enum { RT_MAX_DEVICES = 16 };

/* Runtime error numbers. Errors that the driver also has use the same number. */
typedef int cudaError_t;
enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidSymbol = 13,
  cudaErrorInvalidChannelDescriptor = 20,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorCallRequiresNewerDriver = 36,
  cudaErrorMissingConfiguration = 52,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999
};

typedef struct {
  unsigned x, y, z;
} rt_dim3;

enum { RT_HOST_TO_HOST, RT_HOST_TO_DEVICE, RT_DEVICE_TO_HOST, RT_DEVICE_TO_DEVICE, RT_DEFAULT };

/* The runtime's structures that this library reads or writes. */
struct cudaChannelFormatDesc {
  int x, y, z, w; /* bits of each channel */
  int f;
};
struct cudaExtent {
  size_t width, height, depth;
};
struct cudaPos {
  size_t x, y, z;
};
struct cudaPitchedPtr {
  void *ptr;
  size_t pitch, xsize, ysize;
};
struct cudaMemcpy3DParms {
  CUarray srcArray;
  struct cudaPos srcPos;
  struct cudaPitchedPtr srcPtr;
  CUarray dstArray;
  struct cudaPos dstPos;
  struct cudaPitchedPtr dstPtr;
  struct cudaExtent extent; /* in elements of an array if there is one, otherwise in bytes */
  int kind;
};

struct cudaKernelNodeParams {
  const void *func;
  rt_dim3 grid, block;
  unsigned shared;
  void **params, **extra;
};

#include "rt_api.h"

/* Valid after rt_start() or rt_enter() returned cudaSuccess: the driver's functions with the legacy and with the
 * per-thread default stream. A function that the driver lacks returns cudaErrorCallRequiresNewerDriver. */
extern struct rt_functions rt_drivers[2];
extern _Thread_local bool rt_per_thread; /* within a _ptds or _ptsz function */
#define rt_driver (rt_drivers[rt_per_thread])

struct rt_lookup {
  const char *name;
  int version[2]; /* of the plain function and of the one for the per-thread default stream */
  size_t field;   /* offset in struct rt_functions */
};
extern const struct rt_lookup rt_lookups[];
extern const unsigned rt_nlookups;

struct rt_error {
  cudaError_t error;
  const char *name, *text;
};
extern const struct rt_error rt_errors[];
extern const unsigned rt_nerrors;

/* ---- driver.c: each call remembers an error for cudaGetLastError ------------------------------------------------- */
cudaError_t rt_fail(cudaError_t error); /* records and returns it; cudaSuccess is not recorded */
cudaError_t rt_done(CUresult result);   /* the same for a result of the driver */
cudaError_t rt_start(void);             /* loads and initialises the driver */
/* rt_start, and ensures that the calling thread has a context: its own, or its device's primary context */
cudaError_t rt_enter(void);
cudaError_t rt_enter_for(const void *out); /* rt_enter, for a call that needs this pointer */
cudaError_t rt_device(CUdevice *device);   /* rt_enter, and the device of that context */
CUcontext rt_context(void);                /* of the calling thread, or NULL */
int rt_device_count(void);
/* Resets the context chosen for the thread's device: all threads select a context again. True: the primary context was
 * retained. */
bool rt_device_forget(CUdevice *device);
void *rt_driver_symbol(const char *name, int version, uint64_t flags, int *status);

/* ---- symbols.c --------------------------------------------------------------------------------------------------- */
cudaError_t rt_kernel(const void *host, CUkernel *kernel);
cudaError_t rt_function(const void *host, CUfunction *function); /* of the current context */
const void *rt_host_of(CUkernel kernel);                         /* the host stand-in of a kernel looked up before */
cudaError_t rt_symbol(const void *host, CUdeviceptr *address, size_t *bytes);
/* The address of bytes [offset, offset + count) of a symbol. */
cudaError_t rt_symbol_part(const void *symbol, size_t count, size_t offset, void **at);
void rt_symbols_reset(int device); /* after a reset, which frees the device's memory */

/* ---- arrays.c ---------------------------------------------------------------------------------------------------- */
/* Sets the format and the number of channels of an element. */
cudaError_t rt_format(const struct cudaChannelFormatDesc *channels, CUDA_ARRAY3D_DESCRIPTOR *out);
struct cudaChannelFormatDesc rt_channels(const CUDA_ARRAY3D_DESCRIPTOR *array);
static inline size_t rt_element_bytes(const struct cudaChannelFormatDesc *channels) {
  return (size_t)(channels->x + channels->y + channels->z + channels->w) / 8;
}
cudaError_t rt_copy_3d(const struct cudaMemcpy3DParms *copy, CUDA_MEMCPY3D *out);
cudaError_t rt_copy_3d_back(const CUDA_MEMCPY3D *copy, struct cudaMemcpy3DParms *out);

/* ---- graphs.c ---------------------------------------------------------------------------------------------------- */
cudaError_t rt_kernel_node(const struct cudaKernelNodeParams *in, CUDA_KERNEL_NODE_PARAMS *out);
/* A kernel without a known stand-in is returned as the driver's handle. */
struct cudaKernelNodeParams rt_kernel_node_back(const CUDA_KERNEL_NODE_PARAMS *is);

#endif
