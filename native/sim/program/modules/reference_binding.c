/* Binding of texture and surface references to arrays and memory. */
#include <string.h>

#include "sim/memory/memory.h"
#include "sim/program/images/references.h"

enum { ADDRESS_ALIGN = 512, LINEAR_MAX = 1 << 27 };

CUresult sim_reference_get(const void *handle, bool surface, struct sim_reference **reference) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  *reference = (struct sim_reference *)(uintptr_t)handle;
  bool live = *reference && (*reference)->magic == sim_reference_kind.magic && (*reference)->surface == surface;
  return live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuTexRefCreate(CUtexref *pTexRef) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pTexRef == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  struct sim_reference *made = sim_reference_new(false);
  if (made == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  made->created = true;
  *pTexRef = (CUtexref)made;
  return CUDA_SUCCESS;
}

CUresult cuTexRefDestroy(CUtexref hTexRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result == CUDA_SUCCESS && !reference->created)
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    sim_reference_free(reference);
  return result;
}

/* ---- binding ----------------------------------------------------------------------------------------------------- */

CUresult cuTexRefSetArray(CUtexref hTexRef, CUarray hArray, unsigned int Flags) {
  struct sim_reference *reference;
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (Flags != CU_TRSA_OVERRIDE_FORMAT || cuArray3DGetDescriptor_v2(&descriptor, hArray) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_VALUE;
  reference->bound = BOUND_ARRAY;
  reference->array = hArray;
  reference->format = descriptor.Format;
  reference->channels = (int)descriptor.NumChannels;
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmappedArray(CUtexref hTexRef, CUmipmappedArray hMipmappedArray, unsigned int Flags) {
  struct sim_reference *reference;
  CUarray first;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (Flags != CU_TRSA_OVERRIDE_FORMAT || cuMipmappedArrayGetLevel(&first, hMipmappedArray, 0) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_VALUE;
  reference->bound = BOUND_MIPMAPPED;
  reference->mipmapped = hMipmappedArray;
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress_v2(size_t *ByteOffset, CUtexref hTexRef, CUdeviceptr dptr, size_t bytes) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  size_t offset = dptr % ADDRESS_ALIGN;
  unsigned element = sim_element_bytes(reference->format, (unsigned)reference->channels);
  if ((offset && ByteOffset == NULL) || element == 0 || bytes / element > LINEAR_MAX ||
      sim_memory_host(dptr, bytes) == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  reference->bound = BOUND_ADDRESS;
  reference->address = dptr - offset;
  if (ByteOffset)
    *ByteOffset = offset;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetAddress(unsigned int *ByteOffset, CUtexref hTexRef, CUdeviceptr_v1 dptr, unsigned int bytes) {
  size_t offset = 0;
  CUresult result = cuTexRefSetAddress_v2(ByteOffset ? &offset : NULL, hTexRef, dptr, bytes);
  if (result == CUDA_SUCCESS && ByteOffset)
    *ByteOffset = (unsigned)offset;
  return result;
}

CUresult cuTexRefSetAddress2D_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr dptr, size_t Pitch) {
  enum { PITCH_ALIGN = 32 };
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  unsigned element = desc ? sim_element_bytes(desc->Format, desc->NumChannels) : 0;
  if (element == 0 || desc->Width == 0 || desc->Height == 0 || dptr % ADDRESS_ALIGN || Pitch % PITCH_ALIGN ||
      Pitch / element < desc->Width ||
      sim_memory_host(dptr, Pitch * (desc->Height - 1) + desc->Width * element) == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  reference->bound = BOUND_ADDRESS;
  reference->address = dptr;
  reference->format = desc->Format;
  reference->channels = (int)desc->NumChannels;
  return CUDA_SUCCESS;
}
CUresult cuTexRefSetAddress2D(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR_v1 *desc, CUdeviceptr_v1 dptr,
                              unsigned int Pitch) {
  if (desc == NULL)
    return cuTexRefSetAddress2D_v3(hTexRef, NULL, dptr, Pitch);
  const CUDA_ARRAY_DESCRIPTOR wide = {desc->Width, desc->Height, desc->Format, desc->NumChannels};
  return cuTexRefSetAddress2D_v3(hTexRef, &wide, dptr, Pitch);
}

CUresult cuTexRefGetAddress_v2(CUdeviceptr *pdptr, CUtexref hTexRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (pdptr == NULL || reference->bound != BOUND_ADDRESS)
    return CUDA_ERROR_INVALID_VALUE;
  *pdptr = reference->address;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetAddress(CUdeviceptr_v1 *pdptr, CUtexref hTexRef) {
  CUdeviceptr wide;
  CUresult result = cuTexRefGetAddress_v2(pdptr ? &wide : NULL, hTexRef);
  if (result == CUDA_SUCCESS)
    *pdptr = (CUdeviceptr_v1)wide;
  return result;
}

CUresult cuTexRefGetArray(CUarray *phArray, CUtexref hTexRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (phArray == NULL || reference->bound != BOUND_ARRAY)
    return CUDA_ERROR_INVALID_VALUE;
  *phArray = reference->array;
  return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmappedArray(CUmipmappedArray *phMipmappedArray, CUtexref hTexRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (phMipmappedArray == NULL || reference->bound != BOUND_MIPMAPPED)
    return CUDA_ERROR_INVALID_VALUE;
  *phMipmappedArray = reference->mipmapped;
  return CUDA_SUCCESS;
}

CUresult cuSurfRefSetArray(CUsurfref hSurfRef, CUarray hArray, unsigned int Flags) {
  struct sim_reference *reference;
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  CUresult result = sim_reference_get(hSurfRef, true, &reference);
  if (result)
    return result;
  if (Flags || cuArray3DGetDescriptor_v2(&descriptor, hArray) != CUDA_SUCCESS ||
      !(descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST))
    return CUDA_ERROR_INVALID_VALUE;
  reference->bound = BOUND_ARRAY;
  reference->array = hArray;
  return CUDA_SUCCESS;
}

CUresult cuSurfRefGetArray(CUarray *phArray, CUsurfref hSurfRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hSurfRef, true, &reference);
  if (result)
    return result;
  if (phArray == NULL || reference->bound != BOUND_ARRAY)
    return CUDA_ERROR_INVALID_VALUE;
  *phArray = reference->array;
  return CUDA_SUCCESS;
}
