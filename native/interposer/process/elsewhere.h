#ifndef GPUSHARE_ELSEWHERE_H
#define GPUSHARE_ELSEWHERE_H

#include "interposer/process/process.h"

/* The machine has the device, and the grant has not. */
bool gs_elsewhere(CUdevice device);
/* One of the places is memory of such a device; *device is the first. NULL is no place. */
bool gs_place_elsewhere(const CUmemLocation *places, size_t count, CUdevice *device);
/* Says so, once per process; gives CUDA_ERROR_NOT_PERMITTED. */
CUresult gs_refuse_elsewhere(CUdevice device);

#endif
