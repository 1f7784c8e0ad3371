/* Launches, as nvcc's generated code makes them. */
#include "sim/cudart/cudart.h"

#include <stdlib.h>
#include <string.h>

/* f<<<...>>>(...) pushes a configuration, and the stub of f, which may be called at once or nested in arguments, pops
 * it. */
enum { MAX_NESTED = 16 };

struct configuration {
  rt_dim3 grid, block;
  size_t shared;
  CUstream stream;
};

static _Thread_local struct {
  struct configuration pushed[MAX_NESTED];
  unsigned depth;
} pending;

RT_API(unsigned, __cudaPushCallConfiguration, (rt_dim3 grid, rt_dim3 block, size_t shared, CUstream stream)) {
  if (pending.depth == MAX_NESTED)
    return (unsigned)rt_fail(cudaErrorInvalidConfiguration);
  pending.pushed[pending.depth++] = (struct configuration){grid, block, shared, stream};
  return 0;
}

RT_API(cudaError_t, __cudaPopCallConfiguration, (rt_dim3 * grid, rt_dim3 *block, size_t *shared, void *stream)) {
  if (pending.depth == 0)
    return rt_fail(cudaErrorMissingConfiguration);
  const struct configuration *top = &pending.pushed[--pending.depth];
  *grid = top->grid;
  *block = top->block;
  *shared = top->shared;
  memcpy(stream, &top->stream, sizeof top->stream);
  return cudaSuccess;
}

static cudaError_t launch(CUkernel kernel, rt_dim3 grid, rt_dim3 block, void **args, size_t shared, CUstream stream) {
  if (shared > UINT32_MAX)
    return rt_fail(cudaErrorInvalidValue);
  /* a kernel handle is accepted wherever a function is */
  CUresult result = rt_driver.cuLaunchKernel((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                             (unsigned)shared, stream, args, NULL);
  return result == CUDA_ERROR_INVALID_VALUE ? rt_fail(cudaErrorInvalidConfiguration) : rt_done(result);
}

RT_API(cudaError_t, __cudaGetKernel, (CUkernel * kernel, const void *host)) { return rt_kernel(host, kernel); }
RT_API(cudaError_t, cudaGetKernel, (CUkernel * kernel, const void *host)) { return rt_kernel(host, kernel); }

RT_API(cudaError_t, __cudaLaunchKernel,
       (CUkernel kernel, rt_dim3 grid, rt_dim3 block, void **args, size_t shared, CUstream stream)) {
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  return kernel ? launch(kernel, grid, block, args, shared, stream) : rt_fail(cudaErrorInvalidDeviceFunction);
}
RT_API(cudaError_t, __cudaLaunchKernel_ptsz,
       (CUkernel kernel, rt_dim3 grid, rt_dim3 block, void **args, size_t shared, CUstream stream)) {
  return __cudaLaunchKernel(kernel, grid, block, args, shared, rt_own(stream));
}

RT_API(cudaError_t, cudaLaunchKernel,
       (const void *host, rt_dim3 grid, rt_dim3 block, void **args, size_t shared, CUstream stream)) {
  CUkernel kernel;
  cudaError_t error = rt_kernel(host, &kernel);
  return error == cudaSuccess ? launch(kernel, grid, block, args, shared, stream) : error;
}
RT_API(cudaError_t, cudaLaunchKernel_ptsz,
       (const void *host, rt_dim3 grid, rt_dim3 block, void **args, size_t shared, CUstream stream)) {
  return cudaLaunchKernel(host, grid, block, args, shared, rt_own(stream));
}

RT_API(cudaError_t, cudaLaunchCooperativeKernel,
       (const void *host, rt_dim3 grid, rt_dim3 block, void **args, size_t shared, CUstream stream)) {
  CUkernel kernel;
  cudaError_t error = rt_kernel(host, &kernel);
  if (error != cudaSuccess)
    return error;
  return rt_done(rt_driver.cuLaunchCooperativeKernel((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y,
                                                     block.z, (unsigned)shared, stream, args));
}
RT_API(cudaError_t, cudaLaunchCooperativeKernel_ptsz,
       (const void *host, rt_dim3 grid, rt_dim3 block, void **args, size_t shared, CUstream stream)) {
  return cudaLaunchCooperativeKernel(host, grid, block, args, shared, rt_own(stream));
}

/* The same fields as the driver's, in another order; attributes are the driver's own. */
struct launch_config {
  rt_dim3 grid, block;
  size_t shared;
  CUstream stream;
  CUlaunchAttribute *attributes;
  unsigned nattributes;
};

RT_API(cudaError_t, cudaLaunchKernelExC, (const struct launch_config *config, const void *host, void **args)) {
  CUkernel kernel;
  cudaError_t error = rt_kernel(host, &kernel);
  if (error != cudaSuccess)
    return error;
  if (!config || config->shared > UINT32_MAX)
    return rt_fail(cudaErrorInvalidValue);
  const CUlaunchConfig wanted = {.gridDimX = config->grid.x,
                                 .gridDimY = config->grid.y,
                                 .gridDimZ = config->grid.z,
                                 .blockDimX = config->block.x,
                                 .blockDimY = config->block.y,
                                 .blockDimZ = config->block.z,
                                 .sharedMemBytes = (unsigned)config->shared,
                                 .hStream = config->stream,
                                 .attrs = config->attributes,
                                 .numAttrs = config->nattributes};
  return rt_done(rt_driver.cuLaunchKernelEx(&wanted, (CUfunction)kernel, args, NULL));
}
RT_API(cudaError_t, cudaLaunchKernelExC_ptsz, (const struct launch_config *config, const void *host, void **args)) {
  if (!config)
    return rt_fail(cudaErrorInvalidValue);
  struct launch_config own = *config;
  own.stream = rt_own(own.stream);
  return cudaLaunchKernelExC(&own, host, args);
}

RT_API(cudaError_t, cudaLaunchHostFunc, (CUstream stream, CUhostFn function, void *data)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuLaunchHostFunc(stream, function, data)) : error;
}
RT_API(cudaError_t, cudaLaunchHostFunc_ptsz, (CUstream stream, CUhostFn function, void *data)) {
  return cudaLaunchHostFunc(rt_own(stream), function, data);
}

/* ---- about kernels ----------------------------------------------------------------------------------------------- */

struct func_attributes {
  size_t shared_bytes, const_bytes, local_bytes;
  int max_threads, registers, ptx_version, binary_version, cache_mode_ca, max_dynamic_shared, preferred_carveout;
  int cluster_must_be_set, cluster_width, cluster_height, cluster_depth, cluster_policy, nonportable_cluster;
  int reserved[16];
};

enum {
  FUNC_MAX_THREADS,
  FUNC_SHARED,
  FUNC_CONST,
  FUNC_LOCAL,
  FUNC_REGISTERS,
  FUNC_PTX,
  FUNC_BINARY,
  FUNC_CACHE_CA,
  FUNC_MAX_DYNAMIC_SHARED,
  FUNC_CARVEOUT
};

RT_API(cudaError_t, cudaFuncGetAttributes, (struct func_attributes * out, const void *host)) {
  int value[FUNC_CARVEOUT + 1];
  CUkernel kernel;
  CUdevice device;
  cudaError_t error = rt_kernel(host, &kernel);
  if (error == cudaSuccess)
    error = rt_device(&device);
  if (error != cudaSuccess)
    return error;
  if (!out)
    return rt_fail(cudaErrorInvalidValue);
  for (int i = 0; i <= FUNC_CARVEOUT; i++) {
    CUresult result = rt_driver.cuKernelGetAttribute(&value[i], i, kernel, device);
    if (result != CUDA_SUCCESS)
      return rt_done(result);
  }
  *out = (struct func_attributes){.shared_bytes = (size_t)value[FUNC_SHARED],
                                  .const_bytes = (size_t)value[FUNC_CONST],
                                  .local_bytes = (size_t)value[FUNC_LOCAL],
                                  .max_threads = value[FUNC_MAX_THREADS],
                                  .registers = value[FUNC_REGISTERS],
                                  .ptx_version = value[FUNC_PTX],
                                  .binary_version = value[FUNC_BINARY],
                                  .cache_mode_ca = value[FUNC_CACHE_CA],
                                  .max_dynamic_shared = value[FUNC_MAX_DYNAMIC_SHARED],
                                  .preferred_carveout = value[FUNC_CARVEOUT]};
  return cudaSuccess;
}

RT_API(cudaError_t, cudaFuncSetAttribute, (const void *host, int attribute, int value)) {
  CUkernel kernel;
  CUdevice device;
  cudaError_t error = rt_kernel(host, &kernel);
  if (error == cudaSuccess)
    error = rt_device(&device);
  return error == cudaSuccess ? rt_done(rt_driver.cuKernelSetAttribute(attribute, value, kernel, device)) : error;
}

RT_API(cudaError_t, cudaFuncSetCacheConfig, (const void *host, int config)) {
  CUkernel kernel;
  CUdevice device;
  cudaError_t error = rt_kernel(host, &kernel);
  if (error == cudaSuccess)
    error = rt_device(&device);
  return error == cudaSuccess ? rt_done(rt_driver.cuKernelSetCacheConfig(kernel, config, device)) : error;
}

RT_API(cudaError_t, cudaGetFuncBySymbol, (CUfunction * function, const void *host)) {
  CUkernel kernel;
  cudaError_t error = rt_kernel(host, &kernel);
  return error == cudaSuccess ? rt_done(rt_driver.cuKernelGetFunction(function, kernel)) : error;
}

RT_API(cudaError_t, cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
       (int *blocks, const void *host, int block_size, size_t shared, unsigned flags)) {
  CUkernel kernel;
  cudaError_t error = rt_kernel(host, &kernel);
  if (error != cudaSuccess)
    return error;
  return rt_done(rt_driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, (CUfunction)kernel, block_size,
                                                                                shared, flags));
}
RT_API(cudaError_t, cudaOccupancyMaxActiveBlocksPerMultiprocessor,
       (int *blocks, const void *host, int block_size, size_t shared)) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, block_size, shared, 0);
}
