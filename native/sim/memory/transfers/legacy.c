/* The CUDA 2 variants with 32-bit sizes and device pointers. The cuMemAlloc of that interface returns addresses that
 * fit in 32 bits, so the other functions only widen their arguments. */
#include "sim/memory/memory.h"

static CUDA_MEMCPY2D wide2(const CUDA_MEMCPY2D_v1 *copy) {
  return (CUDA_MEMCPY2D){.srcXInBytes = copy->srcXInBytes,
                         .srcY = copy->srcY,
                         .srcMemoryType = copy->srcMemoryType,
                         .srcHost = copy->srcHost,
                         .srcDevice = copy->srcDevice,
                         .srcArray = copy->srcArray,
                         .srcPitch = copy->srcPitch,
                         .dstXInBytes = copy->dstXInBytes,
                         .dstY = copy->dstY,
                         .dstMemoryType = copy->dstMemoryType,
                         .dstHost = copy->dstHost,
                         .dstDevice = copy->dstDevice,
                         .dstArray = copy->dstArray,
                         .dstPitch = copy->dstPitch,
                         .WidthInBytes = copy->WidthInBytes,
                         .Height = copy->Height};
}

static CUDA_MEMCPY3D wide3(const CUDA_MEMCPY3D_v1 *copy) {
  return (CUDA_MEMCPY3D){.srcXInBytes = copy->srcXInBytes,
                         .srcY = copy->srcY,
                         .srcZ = copy->srcZ,
                         .srcLOD = copy->srcLOD,
                         .srcMemoryType = copy->srcMemoryType,
                         .srcHost = copy->srcHost,
                         .srcDevice = copy->srcDevice,
                         .srcArray = copy->srcArray,
                         .srcPitch = copy->srcPitch,
                         .srcHeight = copy->srcHeight,
                         .dstXInBytes = copy->dstXInBytes,
                         .dstY = copy->dstY,
                         .dstZ = copy->dstZ,
                         .dstLOD = copy->dstLOD,
                         .dstMemoryType = copy->dstMemoryType,
                         .dstHost = copy->dstHost,
                         .dstDevice = copy->dstDevice,
                         .dstArray = copy->dstArray,
                         .dstPitch = copy->dstPitch,
                         .dstHeight = copy->dstHeight,
                         .WidthInBytes = copy->WidthInBytes,
                         .Height = copy->Height,
                         .Depth = copy->Depth};
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1 *pCopy) {
  const CUDA_MEMCPY2D wide = pCopy ? wide2(pCopy) : (CUDA_MEMCPY2D){0};
  return cuMemcpy2D_v2(pCopy ? &wide : NULL);
}
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *pCopy) { return cuMemcpy2D(pCopy); }
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *pCopy, CUstream hStream) {
  const CUDA_MEMCPY2D wide = pCopy ? wide2(pCopy) : (CUDA_MEMCPY2D){0};
  return cuMemcpy2DAsync_v2(pCopy ? &wide : NULL, hStream);
}
CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1 *pCopy) {
  const CUDA_MEMCPY3D wide = pCopy ? wide3(pCopy) : (CUDA_MEMCPY3D){0};
  return cuMemcpy3D_v2(pCopy ? &wide : NULL);
}
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *pCopy, CUstream hStream) {
  const CUDA_MEMCPY3D wide = pCopy ? wide3(pCopy) : (CUDA_MEMCPY3D){0};
  return cuMemcpy3DAsync_v2(pCopy ? &wide : NULL, hStream);
}
CUresult cuMemcpyHtoD(CUdeviceptr_v1 dstDevice, const void *srcHost, unsigned int ByteCount) {
  return cuMemcpyHtoD_v2(dstDevice, srcHost, ByteCount);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 dstDevice, const void *srcHost, unsigned int ByteCount, CUstream hStream) {
  return cuMemcpyHtoDAsync_v2(dstDevice, srcHost, ByteCount, hStream);
}
CUresult cuMemcpyDtoH(void *dstHost, CUdeviceptr_v1 srcDevice, unsigned int ByteCount) {
  return cuMemcpyDtoH_v2(dstHost, srcDevice, ByteCount);
}
CUresult cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr_v1 srcDevice, unsigned int ByteCount, CUstream hStream) {
  return cuMemcpyDtoHAsync_v2(dstHost, srcDevice, ByteCount, hStream);
}
CUresult cuMemcpyDtoD(CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned int ByteCount) {
  return cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned int ByteCount,
                           CUstream hStream) {
  return cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream);
}
CUresult cuMemcpyDtoA(CUarray dstArray, unsigned int dstOffset, CUdeviceptr_v1 srcDevice, unsigned int ByteCount) {
  return cuMemcpyDtoA_v2(dstArray, dstOffset, srcDevice, ByteCount);
}
CUresult cuMemcpyAtoD(CUdeviceptr_v1 dstDevice, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount) {
  return cuMemcpyAtoD_v2(dstDevice, srcArray, srcOffset, ByteCount);
}
CUresult cuMemcpyHtoA(CUarray dstArray, unsigned int dstOffset, const void *srcHost, unsigned int ByteCount) {
  return cuMemcpyHtoA_v2(dstArray, dstOffset, srcHost, ByteCount);
}
CUresult cuMemcpyHtoAAsync(CUarray dstArray, unsigned int dstOffset, const void *srcHost, unsigned int ByteCount,
                           CUstream hStream) {
  return cuMemcpyHtoAAsync_v2(dstArray, dstOffset, srcHost, ByteCount, hStream);
}
CUresult cuMemcpyAtoH(void *dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount) {
  return cuMemcpyAtoH_v2(dstHost, srcArray, srcOffset, ByteCount);
}
CUresult cuMemcpyAtoHAsync(void *dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount,
                           CUstream hStream) {
  return cuMemcpyAtoHAsync_v2(dstHost, srcArray, srcOffset, ByteCount, hStream);
}
CUresult cuMemcpyAtoA(CUarray dstArray, unsigned int dstOffset, CUarray srcArray, unsigned int srcOffset,
                      unsigned int ByteCount) {
  return cuMemcpyAtoA_v2(dstArray, dstOffset, srcArray, srcOffset, ByteCount);
}
CUresult cuMemsetD8(CUdeviceptr_v1 dstDevice, unsigned char uc, unsigned int N) {
  return cuMemsetD8_v2(dstDevice, uc, N);
}
CUresult cuMemsetD16(CUdeviceptr_v1 dstDevice, unsigned short us, unsigned int N) {
  return cuMemsetD16_v2(dstDevice, us, N);
}
CUresult cuMemsetD32(CUdeviceptr_v1 dstDevice, unsigned int ui, unsigned int N) {
  return cuMemsetD32_v2(dstDevice, ui, N);
}
CUresult cuMemsetD2D8(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned char uc, unsigned int Width,
                      unsigned int Height) {
  return cuMemsetD2D8_v2(dstDevice, dstPitch, uc, Width, Height);
}
CUresult cuMemsetD2D16(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned short us, unsigned int Width,
                       unsigned int Height) {
  return cuMemsetD2D16_v2(dstDevice, dstPitch, us, Width, Height);
}
CUresult cuMemsetD2D32(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned int ui, unsigned int Width,
                       unsigned int Height) {
  return cuMemsetD2D32_v2(dstDevice, dstPitch, ui, Width, Height);
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *pdptr, void *p, unsigned int Flags) {
  CUdeviceptr address;
  CUresult result = cuMemHostGetDevicePointer_v2(pdptr ? &address : NULL, p, Flags);
  if (result != CUDA_SUCCESS)
    return result;
  if (address > UINT32_MAX)
    return CUDA_ERROR_INVALID_VALUE; /* the address does not fit in the caller's 32-bit pointer */
  *pdptr = (CUdeviceptr_v1)address;
  return CUDA_SUCCESS;
}
CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray) {
  const CUDA_ARRAY_DESCRIPTOR wide = pAllocateArray
                                         ? (CUDA_ARRAY_DESCRIPTOR){pAllocateArray->Width, pAllocateArray->Height,
                                                                   pAllocateArray->Format, pAllocateArray->NumChannels}
                                         : (CUDA_ARRAY_DESCRIPTOR){0};
  return cuArrayCreate_v2(pHandle, pAllocateArray ? &wide : NULL);
}
CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray) {
  const CUDA_ARRAY3D_DESCRIPTOR wide =
      pAllocateArray
          ? (CUDA_ARRAY3D_DESCRIPTOR){pAllocateArray->Width,  pAllocateArray->Height,      pAllocateArray->Depth,
                                      pAllocateArray->Format, pAllocateArray->NumChannels, pAllocateArray->Flags}
          : (CUDA_ARRAY3D_DESCRIPTOR){0};
  return cuArray3DCreate_v2(pHandle, pAllocateArray ? &wide : NULL);
}
CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray) {
  CUDA_ARRAY_DESCRIPTOR wide;
  CUresult result = cuArrayGetDescriptor_v2(pArrayDescriptor ? &wide : NULL, hArray);
  if (result == CUDA_SUCCESS)
    *pArrayDescriptor =
        (CUDA_ARRAY_DESCRIPTOR_v1){(unsigned)wide.Width, (unsigned)wide.Height, wide.Format, wide.NumChannels};
  return result;
}
CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray) {
  CUDA_ARRAY3D_DESCRIPTOR wide;
  CUresult result = cuArray3DGetDescriptor_v2(pArrayDescriptor ? &wide : NULL, hArray);
  if (result == CUDA_SUCCESS)
    *pArrayDescriptor = (CUDA_ARRAY3D_DESCRIPTOR_v1){(unsigned)wide.Width, (unsigned)wide.Height, (unsigned)wide.Depth,
                                                     wide.Format,          wide.NumChannels,      wide.Flags};
  return result;
}
