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
