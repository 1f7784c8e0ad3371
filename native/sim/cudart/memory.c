/* Memory: allocation, copies, fills, pools, symbols. */
#include "sim/cudart/cudart.h"

static uint64_t number(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/* ---- allocation -------------------------------------------------------------------------------------------------- */

/* Allocating 0 bytes succeeds in the runtime and returns NULL; the driver reports an error. */
cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  CUdeviceptr address = 0;
  cudaError_t error = rt_enter_for(pointer);
  if (error == cudaSuccess && bytes > 0)
    error = rt_done(rt_driver.cuMemAlloc_v2(&address, bytes));
  if (error == cudaSuccess)
    *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
  enum { ELEMENT = 16 }; /* the widest access of a kernel, in bytes */
  CUdeviceptr address = 0;
  cudaError_t error = rt_enter_for(pointer);
  if (error == cudaSuccess && !pitch)
    return rt_fail(cudaErrorInvalidValue);
  if (error == cudaSuccess && width > 0 && height > 0)
    error = rt_done(rt_driver.cuMemAllocPitch_v2(&address, pitch, width, height, ELEMENT));
  if (error == cudaSuccess)
    *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t cudaFree(void *pointer) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && pointer ? rt_done(rt_driver.cuMemFree_v2(number(pointer))) : error;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  cudaError_t error = rt_enter_for(pointer);
  if (error != cudaSuccess)
    return error;
  *pointer = NULL;
  return bytes ? rt_done(rt_driver.cuMemHostAlloc(pointer, bytes, flags)) : cudaSuccess;
}
cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

cudaError_t cudaFreeHost(void *pointer) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && pointer ? rt_done(rt_driver.cuMemFreeHost(pointer)) : error;
}

cudaError_t cudaFreeAsync(void *pointer, CUstream stream) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && pointer ? rt_done(rt_driver.cuMemFreeAsync(number(pointer), stream)) : error;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static CUresult copy(void *to, const void *from, size_t bytes, int kind) {
  switch (kind) {
    case RT_HOST_TO_DEVICE: return rt_driver.cuMemcpyHtoD_v2(number(to), from, bytes);
    case RT_DEVICE_TO_HOST: return rt_driver.cuMemcpyDtoH_v2(to, number(from), bytes);
    case RT_DEVICE_TO_DEVICE: return rt_driver.cuMemcpyDtoD_v2(number(to), number(from), bytes);
    default: return rt_driver.cuMemcpy(number(to), number(from), bytes);
  }
}

static CUresult copy_async(void *to, const void *from, size_t bytes, int kind, CUstream stream) {
  switch (kind) {
    case RT_HOST_TO_DEVICE: return rt_driver.cuMemcpyHtoDAsync_v2(number(to), from, bytes, stream);
    case RT_DEVICE_TO_HOST: return rt_driver.cuMemcpyDtoHAsync_v2(to, number(from), bytes, stream);
    case RT_DEVICE_TO_DEVICE: return rt_driver.cuMemcpyDtoDAsync_v2(number(to), number(from), bytes, stream);
    default: return rt_driver.cuMemcpyAsync(number(to), number(from), bytes, stream);
  }
}

static cudaError_t directed(int kind) {
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  return kind >= RT_HOST_TO_HOST && kind <= RT_DEFAULT ? cudaSuccess : rt_fail(cudaErrorInvalidMemcpyDirection);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, CUstream stream) {
  cudaError_t error = directed(kind);
  return error == cudaSuccess && bytes ? rt_done(copy_async(to, from, bytes, kind, stream)) : error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  cudaError_t error = directed(kind);
  return error == cudaSuccess && bytes ? rt_done(copy(to, from, bytes, kind)) : error;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                CUstream stream) {
  if (to_device < 0 || to_device >= rt_device_count() || from_device < 0 || from_device >= rt_device_count())
    return rt_fail(rt_enter() == cudaSuccess ? cudaErrorInvalidDevice : cudaErrorInitializationError);
  return cudaMemcpyAsync(to, from, bytes, RT_DEVICE_TO_DEVICE, stream); /* unified addresses */
}
cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, NULL) : error;
}

static void side_2d(int host, const void *pointer, CUmemorytype *type, CUdeviceptr *device, const void **on_host,
                    int known) {
  *type = !known ? CU_MEMORYTYPE_UNIFIED : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  *device = number(pointer);
  *on_host = pointer;
}

static CUDA_MEMCPY2D box_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                            int kind) {
  CUDA_MEMCPY2D box = {.srcPitch = from_pitch, .dstPitch = to_pitch, .WidthInBytes = width, .Height = height};
  const void *host = NULL;
  int known = kind != RT_DEFAULT;
  side_2d(kind == RT_HOST_TO_HOST || kind == RT_HOST_TO_DEVICE, from, &box.srcMemoryType, &box.srcDevice, &box.srcHost,
          known);
  side_2d(kind == RT_HOST_TO_HOST || kind == RT_DEVICE_TO_HOST, to, &box.dstMemoryType, &box.dstDevice, &host, known);
  box.dstHost = to;
  return box;
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         int kind) {
  cudaError_t error = directed(kind);
  if (error != cudaSuccess)
    return error;
  const CUDA_MEMCPY2D box = box_2d(to, to_pitch, from, from_pitch, width, height, kind);
  return rt_done(rt_driver.cuMemcpy2DUnaligned_v2(&box));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, int kind, CUstream stream) {
  cudaError_t error = directed(kind);
  if (error != cudaSuccess)
    return error;
  const CUDA_MEMCPY2D box = box_2d(to, to_pitch, from, from_pitch, width, height, kind);
  return rt_done(rt_driver.cuMemcpy2DAsync_v2(&box, stream));
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
  CUdeviceptr address = 0;
  size_t bytes;
  cudaError_t error = pointer ? rt_symbol(symbol, &address, &bytes) : rt_fail(cudaErrorInvalidValue);
  if (error == cudaSuccess)
    *pointer = (void *)(uintptr_t)address;
  return error;
}

cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol) {
  CUdeviceptr address;
  return bytes ? rt_symbol(symbol, &address, bytes) : rt_fail(cudaErrorInvalidValue);
}

cudaError_t rt_symbol_part(const void *symbol, size_t count, size_t offset, void **at) {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  cudaError_t error = rt_symbol(symbol, &address, &bytes);
  if (error != cudaSuccess)
    return error;
  if (offset > bytes || count > bytes - offset)
    return rt_fail(cudaErrorInvalidValue);
  *at = (void *)(uintptr_t)(address + offset);
  return cudaSuccess;
}

static bool to_device(int kind) {
  return kind == RT_HOST_TO_DEVICE || kind == RT_DEVICE_TO_DEVICE || kind == RT_DEFAULT;
}

static bool from_device(int kind) {
  return kind == RT_DEVICE_TO_HOST || kind == RT_DEVICE_TO_DEVICE || kind == RT_DEFAULT;
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t count, size_t offset, int kind,
                                    CUstream stream) {
  void *at = NULL;
  if (!to_device(kind))
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = rt_symbol_part(symbol, count, offset, &at);
  return error == cudaSuccess ? cudaMemcpyAsync(at, from, count, kind, stream) : error;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t count, size_t offset, int kind) {
  void *at = NULL;
  if (!to_device(kind))
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = rt_symbol_part(symbol, count, offset, &at);
  return error == cudaSuccess ? cudaMemcpy(at, from, count, kind) : error;
}

cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t count, size_t offset, int kind,
                                      CUstream stream) {
  void *at = NULL;
  if (!from_device(kind))
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = rt_symbol_part(symbol, count, offset, &at);
  return error == cudaSuccess ? cudaMemcpyAsync(to, at, count, kind, stream) : error;
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t count, size_t offset, int kind) {
  void *at = NULL;
  if (!from_device(kind))
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = rt_symbol_part(symbol, count, offset, &at);
  return error == cudaSuccess ? cudaMemcpy(to, at, count, kind) : error;
}
