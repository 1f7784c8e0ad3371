/* Memory: allocation, copies, fills, pools, symbols. */
#include "sim/cudart/cudart.h"

static uint64_t number(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/* ---- allocation -------------------------------------------------------------------------------------------------- */

/* Allocating 0 bytes succeeds in the runtime and returns NULL; the driver reports an error. */
static cudaError_t started(const void *out) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && !out ? rt_fail(cudaErrorInvalidValue) : error;
}

RT_API(cudaError_t, cudaMalloc, (void **pointer, size_t bytes)) {
  CUdeviceptr address = 0;
  cudaError_t error = started(pointer);
  if (error == cudaSuccess && bytes > 0)
    error = rt_done(rt_driver.cuMemAlloc(&address, bytes));
  if (error == cudaSuccess)
    *pointer = (void *)(uintptr_t)address;
  return error;
}

RT_API(cudaError_t, cudaMallocPitch, (void **pointer, size_t *pitch, size_t width, size_t height)) {
  enum { ELEMENT = 16 }; /* the widest access of a kernel, in bytes */
  CUdeviceptr address = 0;
  cudaError_t error = started(pointer);
  if (error == cudaSuccess && !pitch)
    return rt_fail(cudaErrorInvalidValue);
  if (error == cudaSuccess && width > 0 && height > 0)
    error = rt_done(rt_driver.cuMemAllocPitch(&address, pitch, width, height, ELEMENT));
  if (error == cudaSuccess)
    *pointer = (void *)(uintptr_t)address;
  return error;
}

RT_API(cudaError_t, cudaMallocManaged, (void **pointer, size_t bytes, unsigned flags)) {
  CUdeviceptr address = 0;
  cudaError_t error = started(pointer);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuMemAllocManaged(&address, bytes, flags));
  if (error == cudaSuccess)
    *pointer = (void *)(uintptr_t)address;
  return error;
}

RT_API(cudaError_t, cudaFree, (void *pointer)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && pointer ? rt_done(rt_driver.cuMemFree(number(pointer))) : error;
}

RT_API(cudaError_t, cudaHostAlloc, (void **pointer, size_t bytes, unsigned flags)) {
  cudaError_t error = started(pointer);
  if (error != cudaSuccess)
    return error;
  *pointer = NULL;
  return bytes ? rt_done(rt_driver.cuMemHostAlloc(pointer, bytes, flags)) : cudaSuccess;
}
RT_API(cudaError_t, cudaMallocHost, (void **pointer, size_t bytes)) { return cudaHostAlloc(pointer, bytes, 0); }

RT_API(cudaError_t, cudaFreeHost, (void *pointer)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && pointer ? rt_done(rt_driver.cuMemFreeHost(pointer)) : error;
}

RT_API(cudaError_t, cudaHostRegister, (void *pointer, size_t bytes, unsigned flags)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemHostRegister(pointer, bytes, flags)) : error;
}

RT_API(cudaError_t, cudaHostUnregister, (void *pointer)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemHostUnregister(pointer)) : error;
}

RT_API(cudaError_t, cudaHostGetDevicePointer, (void **device, void *host, unsigned flags)) {
  CUdeviceptr address = 0;
  cudaError_t error = started(device);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuMemHostGetDevicePointer(&address, host, flags));
  if (error == cudaSuccess)
    *device = (void *)(uintptr_t)address;
  return error;
}

RT_API(cudaError_t, cudaHostGetFlags, (unsigned *flags, void *host)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemHostGetFlags(flags, host)) : error;
}

RT_API(cudaError_t, cudaMemGetInfo, (size_t *free_bytes, size_t *total_bytes)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemGetInfo(free_bytes, total_bytes)) : error;
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static cudaError_t pool_result(CUresult result, CUdeviceptr address, void **pointer) {
  if (result == CUDA_SUCCESS)
    *pointer = (void *)(uintptr_t)address;
  return rt_done(result);
}

RT_API(cudaError_t, cudaMallocAsync, (void **pointer, size_t bytes, CUstream stream)) {
  CUdeviceptr address = 0;
  cudaError_t error = started(pointer);
  return error == cudaSuccess ? pool_result(rt_driver.cuMemAllocAsync(&address, bytes, stream), address, pointer)
                              : error;
}
RT_API(cudaError_t, cudaMallocAsync_ptsz, (void **pointer, size_t bytes, CUstream stream)) {
  return cudaMallocAsync(pointer, bytes, rt_own(stream));
}

RT_API(cudaError_t, cudaMallocFromPoolAsync, (void **pointer, size_t bytes, CUmemoryPool pool, CUstream stream)) {
  CUdeviceptr address = 0;
  cudaError_t error = started(pointer);
  if (error != cudaSuccess)
    return error;
  return pool_result(rt_driver.cuMemAllocFromPoolAsync(&address, bytes, pool, stream), address, pointer);
}
RT_API(cudaError_t, cudaMallocFromPoolAsync_ptsz, (void **pointer, size_t bytes, CUmemoryPool pool, CUstream stream)) {
  return cudaMallocFromPoolAsync(pointer, bytes, pool, rt_own(stream));
}

RT_API(cudaError_t, cudaFreeAsync, (void *pointer, CUstream stream)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && pointer ? rt_done(rt_driver.cuMemFreeAsync(number(pointer), stream)) : error;
}
RT_API(cudaError_t, cudaFreeAsync_ptsz, (void *pointer, CUstream stream)) {
  return cudaFreeAsync(pointer, rt_own(stream));
}

RT_API(cudaError_t, cudaDeviceGetDefaultMemPool, (CUmemoryPool * pool, int device)) {
  cudaError_t error = rt_start();
  return error == cudaSuccess ? rt_done(rt_driver.cuDeviceGetDefaultMemPool(pool, device)) : error;
}
RT_API(cudaError_t, cudaDeviceGetMemPool, (CUmemoryPool * pool, int device)) {
  cudaError_t error = rt_start();
  return error == cudaSuccess ? rt_done(rt_driver.cuDeviceGetMemPool(pool, device)) : error;
}
RT_API(cudaError_t, cudaDeviceSetMemPool, (int device, CUmemoryPool pool)) {
  cudaError_t error = rt_start();
  return error == cudaSuccess ? rt_done(rt_driver.cuDeviceSetMemPool(device, pool)) : error;
}
RT_API(cudaError_t, cudaMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties)) {
  cudaError_t error = rt_start();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemPoolCreate(pool, properties)) : error;
}
RT_API(cudaError_t, cudaMemPoolDestroy, (CUmemoryPool pool)) {
  cudaError_t error = rt_start();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemPoolDestroy(pool)) : error;
}
RT_API(cudaError_t, cudaMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value)) {
  cudaError_t error = rt_start();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemPoolSetAttribute(pool, attribute, value)) : error;
}
RT_API(cudaError_t, cudaMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value)) {
  cudaError_t error = rt_start();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemPoolGetAttribute(pool, attribute, value)) : error;
}
RT_API(cudaError_t, cudaMemPoolTrimTo, (CUmemoryPool pool, size_t keep)) {
  cudaError_t error = rt_start();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemPoolTrimTo(pool, keep)) : error;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static CUresult copy(void *to, const void *from, size_t bytes, int kind) {
  switch (kind) {
    case RT_HOST_TO_DEVICE: return rt_driver.cuMemcpyHtoD(number(to), from, bytes);
    case RT_DEVICE_TO_HOST: return rt_driver.cuMemcpyDtoH(to, number(from), bytes);
    case RT_DEVICE_TO_DEVICE: return rt_driver.cuMemcpyDtoD(number(to), number(from), bytes);
    default: return rt_driver.cuMemcpy(number(to), number(from), bytes);
  }
}

static CUresult copy_async(void *to, const void *from, size_t bytes, int kind, CUstream stream) {
  switch (kind) {
    case RT_HOST_TO_DEVICE: return rt_driver.cuMemcpyHtoDAsync(number(to), from, bytes, stream);
    case RT_DEVICE_TO_HOST: return rt_driver.cuMemcpyDtoHAsync(to, number(from), bytes, stream);
    case RT_DEVICE_TO_DEVICE: return rt_driver.cuMemcpyDtoDAsync(number(to), number(from), bytes, stream);
    default: return rt_driver.cuMemcpyAsync(number(to), number(from), bytes, stream);
  }
}

static cudaError_t directed(int kind) {
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  return kind >= RT_HOST_TO_HOST && kind <= RT_DEFAULT ? cudaSuccess : rt_fail(cudaErrorInvalidMemcpyDirection);
}

RT_API(cudaError_t, cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, CUstream stream)) {
  cudaError_t error = directed(kind);
  return error == cudaSuccess && bytes ? rt_done(copy_async(to, from, bytes, kind, stream)) : error;
}
RT_API(cudaError_t, cudaMemcpyAsync_ptsz, (void *to, const void *from, size_t bytes, int kind, CUstream stream)) {
  return cudaMemcpyAsync(to, from, bytes, kind, rt_own(stream));
}

RT_API(cudaError_t, cudaMemcpy, (void *to, const void *from, size_t bytes, int kind)) {
  cudaError_t error = directed(kind);
  return error == cudaSuccess && bytes ? rt_done(copy(to, from, bytes, kind)) : error;
}

/* For synchronous calls on the per-thread stream: the work has been submitted there; waits for it. */
static cudaError_t wait_own(cudaError_t error) {
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamSynchronize(CU_STREAM_PER_THREAD)) : error;
}

RT_API(cudaError_t, cudaMemcpy_ptds, (void *to, const void *from, size_t bytes, int kind)) {
  return wait_own(cudaMemcpyAsync(to, from, bytes, kind, CU_STREAM_PER_THREAD));
}

RT_API(cudaError_t, cudaMemcpyPeerAsync,
       (void *to, int to_device, const void *from, int from_device, size_t bytes, CUstream stream)) {
  if (to_device < 0 || to_device >= rt_device_count() || from_device < 0 || from_device >= rt_device_count())
    return rt_fail(rt_enter() == cudaSuccess ? cudaErrorInvalidDevice : cudaErrorInitializationError);
  return cudaMemcpyAsync(to, from, bytes, RT_DEVICE_TO_DEVICE, stream); /* unified addresses */
}
RT_API(cudaError_t, cudaMemcpyPeer, (void *to, int to_device, const void *from, int from_device, size_t bytes)) {
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

RT_API(cudaError_t, cudaMemcpy2D,
       (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind)) {
  cudaError_t error = directed(kind);
  if (error != cudaSuccess)
    return error;
  const CUDA_MEMCPY2D box = box_2d(to, to_pitch, from, from_pitch, width, height, kind);
  return rt_done(rt_driver.cuMemcpy2DUnaligned(&box));
}

RT_API(cudaError_t, cudaMemcpy2DAsync,
       (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
        CUstream stream)) {
  cudaError_t error = directed(kind);
  if (error != cudaSuccess)
    return error;
  const CUDA_MEMCPY2D box = box_2d(to, to_pitch, from, from_pitch, width, height, kind);
  return rt_done(rt_driver.cuMemcpy2DAsync(&box, stream));
}
RT_API(cudaError_t, cudaMemcpy2DAsync_ptsz,
       (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
        CUstream stream)) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, rt_own(stream));
}
RT_API(cudaError_t, cudaMemcpy2D_ptds,
       (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind)) {
  return wait_own(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, CU_STREAM_PER_THREAD));
}

/* ---- fills ------------------------------------------------------------------------------------------------------- */

RT_API(cudaError_t, cudaMemset, (void *at, int value, size_t bytes)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemsetD8(number(at), (unsigned char)value, bytes)) : error;
}
RT_API(cudaError_t, cudaMemsetAsync, (void *at, int value, size_t bytes, CUstream stream)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemsetD8Async(number(at), (unsigned char)value, bytes, stream))
                              : error;
}
RT_API(cudaError_t, cudaMemsetAsync_ptsz, (void *at, int value, size_t bytes, CUstream stream)) {
  return cudaMemsetAsync(at, value, bytes, rt_own(stream));
}
RT_API(cudaError_t, cudaMemset_ptds, (void *at, int value, size_t bytes)) {
  return cudaMemsetAsync(at, value, bytes, CU_STREAM_PER_THREAD);
}

RT_API(cudaError_t, cudaMemset2D, (void *at, size_t pitch, int value, size_t width, size_t height)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuMemsetD2D8(number(at), pitch, (unsigned char)value, width, height))
                              : error;
}
RT_API(cudaError_t, cudaMemset2DAsync,
       (void *at, size_t pitch, int value, size_t width, size_t height, CUstream stream)) {
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  return rt_done(rt_driver.cuMemsetD2D8Async(number(at), pitch, (unsigned char)value, width, height, stream));
}
RT_API(cudaError_t, cudaMemset2DAsync_ptsz,
       (void *at, size_t pitch, int value, size_t width, size_t height, CUstream stream)) {
  return cudaMemset2DAsync(at, pitch, value, width, height, rt_own(stream));
}
RT_API(cudaError_t, cudaMemset2D_ptds, (void *at, size_t pitch, int value, size_t width, size_t height)) {
  return cudaMemset2DAsync(at, pitch, value, width, height, CU_STREAM_PER_THREAD);
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

RT_API(cudaError_t, cudaGetSymbolAddress, (void **pointer, const void *symbol)) {
  CUdeviceptr address = 0;
  size_t bytes;
  cudaError_t error = rt_symbol(symbol, &address, &bytes);
  if (error == cudaSuccess)
    *pointer = (void *)(uintptr_t)address;
  return error;
}

RT_API(cudaError_t, cudaGetSymbolSize, (size_t *bytes, const void *symbol)) {
  CUdeviceptr address;
  return rt_symbol(symbol, &address, bytes);
}

/* The address of bytes [offset, offset + count) of a symbol. */
static cudaError_t symbol_part(const void *symbol, size_t count, size_t offset, void **at) {
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

RT_API(cudaError_t, cudaMemcpyToSymbolAsync,
       (const void *symbol, const void *from, size_t count, size_t offset, int kind, CUstream stream)) {
  void *at = NULL;
  if (!to_device(kind))
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = symbol_part(symbol, count, offset, &at);
  return error == cudaSuccess ? cudaMemcpyAsync(at, from, count, kind, stream) : error;
}
RT_API(cudaError_t, cudaMemcpyToSymbolAsync_ptsz,
       (const void *symbol, const void *from, size_t count, size_t offset, int kind, CUstream stream)) {
  return cudaMemcpyToSymbolAsync(symbol, from, count, offset, kind, rt_own(stream));
}
RT_API(cudaError_t, cudaMemcpyToSymbol, (const void *symbol, const void *from, size_t count, size_t offset, int kind)) {
  void *at = NULL;
  if (!to_device(kind))
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = symbol_part(symbol, count, offset, &at);
  return error == cudaSuccess ? cudaMemcpy(at, from, count, kind) : error;
}
RT_API(cudaError_t, cudaMemcpyToSymbol_ptds,
       (const void *symbol, const void *from, size_t count, size_t offset, int kind)) {
  return wait_own(cudaMemcpyToSymbolAsync(symbol, from, count, offset, kind, CU_STREAM_PER_THREAD));
}

RT_API(cudaError_t, cudaMemcpyFromSymbolAsync,
       (void *to, const void *symbol, size_t count, size_t offset, int kind, CUstream stream)) {
  void *at = NULL;
  if (!from_device(kind))
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = symbol_part(symbol, count, offset, &at);
  return error == cudaSuccess ? cudaMemcpyAsync(to, at, count, kind, stream) : error;
}
RT_API(cudaError_t, cudaMemcpyFromSymbolAsync_ptsz,
       (void *to, const void *symbol, size_t count, size_t offset, int kind, CUstream stream)) {
  return cudaMemcpyFromSymbolAsync(to, symbol, count, offset, kind, rt_own(stream));
}
RT_API(cudaError_t, cudaMemcpyFromSymbol, (void *to, const void *symbol, size_t count, size_t offset, int kind)) {
  void *at = NULL;
  if (!from_device(kind))
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = symbol_part(symbol, count, offset, &at);
  return error == cudaSuccess ? cudaMemcpy(to, at, count, kind) : error;
}
RT_API(cudaError_t, cudaMemcpyFromSymbol_ptds, (void *to, const void *symbol, size_t count, size_t offset, int kind)) {
  return wait_own(cudaMemcpyFromSymbolAsync(to, symbol, count, offset, kind, CU_STREAM_PER_THREAD));
}
