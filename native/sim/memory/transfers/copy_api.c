/* The copy functions of the driver API, in all variants. Functions without a version suffix that take 32-bit device
 * pointers are in legacy.c. */
#include <string.h>

#include "sim/memory/memory.h"

enum { HOST = CU_MEMORYTYPE_HOST, DEVICE = CU_MEMORYTYPE_DEVICE, UNIFIED = CU_MEMORYTYPE_UNIFIED };

/* ---- one run of bytes -------------------------------------------------------------------------------------------- */

static CUDA_MEMCPY3D linear(CUmemorytype to, uint64_t dst, CUmemorytype from, uint64_t src, size_t bytes) {
  return (CUDA_MEMCPY3D){.srcMemoryType = from,
                         .srcHost = (const void *)(uintptr_t)src,
                         .srcDevice = src,
                         .dstMemoryType = to,
                         .dstHost = (void *)(uintptr_t)dst,
                         .dstDevice = dst,
                         .WidthInBytes = bytes,
                         .Height = 1,
                         .Depth = 1};
}

static CUresult copy(CUmemorytype to, uint64_t dst, CUmemorytype from, uint64_t src, size_t bytes, CUstream stream,
                     enum sim_copy_mode mode) {
  CUDA_MEMCPY3D params = linear(to, dst, from, src, bytes);
  return sim_copy_submit(&params, stream, mode);
}

static uint64_t number(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  return copy(UNIFIED, dst, UNIFIED, src, ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
  return copy(UNIFIED, dst, UNIFIED, src, ByteCount, hStream, SIM_COPY_ASYNC);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
  return copy(DEVICE, dstDevice, HOST, number(srcHost), ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream) {
  return copy(DEVICE, dstDevice, HOST, number(srcHost), ByteCount, hStream, SIM_COPY_ASYNC);
}
CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return copy(HOST, number(dstHost), DEVICE, srcDevice, ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return copy(HOST, number(dstHost), DEVICE, srcDevice, ByteCount, hStream, SIM_COPY_ASYNC);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return copy(DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return copy(DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, hStream, SIM_COPY_ASYNC);
}

/* ---- between devices --------------------------------------------------------------------------------------------- */

static CUresult peer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes,
                     CUstream stream, enum sim_copy_mode mode) {
  struct sim_ctx *there, *here;
  CUresult result = sim_ctx_get(dst_context, &there);
  if (result == CUDA_SUCCESS)
    result = sim_ctx_get(src_context, &here);
  return result == CUDA_SUCCESS ? copy(DEVICE, dst, DEVICE, src, bytes, stream, mode) : result;
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                      size_t ByteCount) {
  return peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           size_t ByteCount, CUstream hStream) {
  return peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream, SIM_COPY_ASYNC);
}

static CUresult peer3(const CUDA_MEMCPY3D_PEER *pCopy, CUstream stream, enum sim_copy_mode mode) {
  struct sim_ctx *there, *here;
  if (!pCopy)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = sim_ctx_get(pCopy->dstContext, &there);
  if (result == CUDA_SUCCESS)
    result = sim_ctx_get(pCopy->srcContext, &here);
  if (result != CUDA_SUCCESS)
    return result;
  /* the layout is the same, except that it has contexts where CUDA_MEMCPY3D has reserved words */
  CUDA_MEMCPY3D params;
  _Static_assert(sizeof params == sizeof *pCopy, "layout");
  memcpy(&params, pCopy, sizeof params);
  params.reserved0 = params.reserved1 = NULL;
  return sim_copy_submit(&params, stream, mode);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy) { return peer3(pCopy, NULL, SIM_COPY_SYNC); }
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream) {
  return peer3(pCopy, hStream, SIM_COPY_ASYNC);
}

/* ---- two and three dimensions ------------------------------------------------------------------------------------ */

static CUresult copy2(const CUDA_MEMCPY2D *pCopy, CUstream stream, enum sim_copy_mode mode) {
  if (!pCopy)
    return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY3D params = {.srcXInBytes = pCopy->srcXInBytes,
                                .srcY = pCopy->srcY,
                                .srcMemoryType = pCopy->srcMemoryType,
                                .srcHost = pCopy->srcHost,
                                .srcDevice = pCopy->srcDevice,
                                .srcArray = pCopy->srcArray,
                                .srcPitch = pCopy->srcPitch,
                                .dstXInBytes = pCopy->dstXInBytes,
                                .dstY = pCopy->dstY,
                                .dstMemoryType = pCopy->dstMemoryType,
                                .dstHost = pCopy->dstHost,
                                .dstDevice = pCopy->dstDevice,
                                .dstArray = pCopy->dstArray,
                                .dstPitch = pCopy->dstPitch,
                                .WidthInBytes = pCopy->WidthInBytes,
                                .Height = pCopy->Height,
                                .Depth = 1};
  return sim_copy_submit(&params, stream, mode);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy) { return copy2(pCopy, NULL, SIM_COPY_SYNC); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy) { return copy2(pCopy, NULL, SIM_COPY_SYNC); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
  return copy2(pCopy, hStream, SIM_COPY_ASYNC);
}

static CUresult copy3(const CUDA_MEMCPY3D *pCopy, CUstream stream, enum sim_copy_mode mode) {
  return pCopy ? sim_copy_submit(pCopy, stream, mode) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy) { return copy3(pCopy, NULL, SIM_COPY_SYNC); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
  return copy3(pCopy, hStream, SIM_COPY_ASYNC);
}

/* ---- one-dimensional arrays -------------------------------------------------------------------------------------- */

static CUresult to_array(CUarray array, size_t offset, CUmemorytype from, uint64_t src, size_t bytes, CUstream stream,
                         enum sim_copy_mode mode) {
  CUDA_MEMCPY3D params = linear(CU_MEMORYTYPE_ARRAY, 0, from, src, bytes);
  params.dstArray = array;
  params.dstXInBytes = offset;
  return sim_copy_submit(&params, stream, mode);
}

static CUresult from_array(CUmemorytype to, uint64_t dst, CUarray array, size_t offset, size_t bytes, CUstream stream,
                           enum sim_copy_mode mode) {
  CUDA_MEMCPY3D params = linear(to, dst, CU_MEMORYTYPE_ARRAY, 0, bytes);
  params.srcArray = array;
  params.srcXInBytes = offset;
  return sim_copy_submit(&params, stream, mode);
}

static CUresult array_to_array(CUarray dst, size_t dst_offset, CUarray src, size_t src_offset, size_t bytes) {
  CUDA_MEMCPY3D params = linear(CU_MEMORYTYPE_ARRAY, 0, CU_MEMORYTYPE_ARRAY, 0, bytes);
  params.dstArray = dst;
  params.dstXInBytes = dst_offset;
  params.srcArray = src;
  params.srcXInBytes = src_offset;
  return sim_copy_submit(&params, NULL, SIM_COPY_SYNC);
}

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount) {
  return to_array(dstArray, dstOffset, DEVICE, srcDevice, ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  return from_array(DEVICE, dstDevice, srcArray, srcOffset, ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount) {
  return to_array(dstArray, dstOffset, HOST, number(srcHost), ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount,
                              CUstream hStream) {
  return to_array(dstArray, dstOffset, HOST, number(srcHost), ByteCount, hStream, SIM_COPY_ASYNC);
}
CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  return from_array(HOST, number(dstHost), srcArray, srcOffset, ByteCount, NULL, SIM_COPY_SYNC);
}
CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream) {
  return from_array(HOST, number(dstHost), srcArray, srcOffset, ByteCount, hStream, SIM_COPY_ASYNC);
}
CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  return array_to_array(dstArray, dstOffset, srcArray, srcOffset, ByteCount);
}
