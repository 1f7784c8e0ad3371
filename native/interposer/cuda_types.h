/* Types of the driver API that handlers look into, beyond gs_cuda.h. What nothing here looks into stays opaque: hooks.h declares
 * it. The layouts are the simulated driver's, which tests hold against cuda.h. */
#ifndef GPUSHARE_CUDA_TYPES_H
#define GPUSHARE_CUDA_TYPES_H

#include "sim_cuda.h"

/* CUDA 2: sizes of 32 bits */
typedef struct CUDA_ARRAY_DESCRIPTOR_v1_st {
  unsigned int Width, Height;
  CUarray_format Format;
  unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct CUDA_ARRAY3D_DESCRIPTOR_v1_st {
  unsigned int Width, Height, Depth;
  CUarray_format Format;
  unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

#endif
