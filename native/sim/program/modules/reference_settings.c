/* Settings for how kernels would read through a texture reference. */
#include <string.h>

#include "sim/memory/memory.h"
#include "sim/program/images/image.h"
#include "sim/program/images/references.h"

enum { ANISOTROPY_MAX = 16 };

/* Defines a pair of functions that set and get one field. valid: a condition on `value`, the new value. */
#define PROPERTY(Name, type, given, field, valid) \
  CUresult cuTexRefSet##Name(CUtexref hTexRef, given value) { \
    struct sim_reference *reference; \
    CUresult result = sim_reference_get(hTexRef, false, &reference); \
    if (result == CUDA_SUCCESS && !(valid)) \
      result = CUDA_ERROR_INVALID_VALUE; \
    if (result == CUDA_SUCCESS) \
      reference->field = value; \
    return result; \
  } \
  CUresult cuTexRefGet##Name(type *out, CUtexref hTexRef) { \
    struct sim_reference *reference; \
    CUresult result = sim_reference_get(hTexRef, false, &reference); \
    if (result == CUDA_SUCCESS && out == NULL) \
      result = CUDA_ERROR_INVALID_VALUE; \
    if (result == CUDA_SUCCESS) \
      *out = (type)reference->field; \
    return result; \
  }

PROPERTY(FilterMode, CUfilter_mode, CUfilter_mode, filter, value >= 0 && value <= CU_TR_FILTER_MODE_LINEAR)
PROPERTY(MipmapFilterMode, CUfilter_mode, CUfilter_mode, mipmap_filter, value >= 0 && value <= CU_TR_FILTER_MODE_LINEAR)
PROPERTY(MipmapLevelBias, float, float, bias, true)
PROPERTY(Flags, unsigned int, unsigned int, flags,
         !(value & ~(unsigned)(CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                               CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION)))

CUresult cuTexRefSetMaxAnisotropy(CUtexref hTexRef, unsigned int maxAniso) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result == CUDA_SUCCESS)
    reference->anisotropy = maxAniso < 1 ? 1 : maxAniso > ANISOTROPY_MAX ? ANISOTROPY_MAX : maxAniso;
  return result;
}
CUresult cuTexRefGetMaxAnisotropy(int *pmaxAniso, CUtexref hTexRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (pmaxAniso == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pmaxAniso = (int)reference->anisotropy;
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetFormat(CUtexref hTexRef, CUarray_format fmt, int NumPackedComponents) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (NumPackedComponents <= 0 || sim_element_bytes(fmt, (unsigned)NumPackedComponents) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  reference->format = fmt;
  reference->channels = NumPackedComponents;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetFormat(CUarray_format *pFormat, int *pNumChannels, CUtexref hTexRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (pFormat)
    *pFormat = reference->format;
  if (pNumChannels)
    *pNumChannels = reference->channels;
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddressMode(CUtexref hTexRef, int dim, CUaddress_mode am) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (dim < 0 || dim >= SIM_TEXTURE_DIMENSIONS || am < 0 || am > CU_TR_ADDRESS_MODE_BORDER)
    return CUDA_ERROR_INVALID_VALUE;
  reference->address_mode[dim] = am;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetAddressMode(CUaddress_mode *pam, CUtexref hTexRef, int dim) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (pam == NULL || dim < 0 || dim >= SIM_TEXTURE_DIMENSIONS)
    return CUDA_ERROR_INVALID_VALUE;
  *pam = reference->address_mode[dim];
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp, float maxMipmapLevelClamp) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  reference->clamp[0] = minMipmapLevelClamp;
  reference->clamp[1] = maxMipmapLevelClamp;
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetMipmapLevelClamp(float *pminMipmapLevelClamp, float *pmaxMipmapLevelClamp, CUtexref hTexRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (pminMipmapLevelClamp == NULL || pmaxMipmapLevelClamp == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pminMipmapLevelClamp = reference->clamp[0];
  *pmaxMipmapLevelClamp = reference->clamp[1];
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetBorderColor(CUtexref hTexRef, float *pBorderColor) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (pBorderColor == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(reference->border, pBorderColor, sizeof reference->border);
  return CUDA_SUCCESS;
}
CUresult cuTexRefGetBorderColor(float *pBorderColor, CUtexref hTexRef) {
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result)
    return result;
  if (pBorderColor == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(pBorderColor, reference->border, sizeof reference->border);
  return CUDA_SUCCESS;
}

CUresult cuParamSetTexRef(CUfunction hfunc, int texunit, CUtexref hTexRef) {
  struct sim_function *function;
  struct sim_reference *reference;
  CUresult result = sim_reference_get(hTexRef, false, &reference);
  if (result == CUDA_SUCCESS)
    result = sim_function_get(hfunc, &function);
  if (result == CUDA_SUCCESS && texunit != CU_PARAM_TR_DEFAULT)
    result = CUDA_ERROR_INVALID_VALUE;
  return result;
}
