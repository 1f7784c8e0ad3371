/* Types of the driver API that handlers look into, beyond gs_cuda.h. What nothing here looks into stays opaque: hooks.h declares
 * it. The layouts are the simulated driver's, which tests hold against cuda.h. */
#ifndef GPUSHARE_CUDA_TYPES_H
#define GPUSHARE_CUDA_TYPES_H

#include "sim_cuda.h"

#endif
