#ifndef GPUSHARE_ELSEWHERE_H
#define GPUSHARE_ELSEWHERE_H

#include "interposer/process/process.h"

/* Whether the program sees the device but the grant does not contain it. */
bool gs_elsewhere(CUdevice device);
/* Whether one of the places is memory of such a device; *device is the first one. NULL counts as no place. */
bool gs_place_elsewhere(const CUmemLocation *places, size_t count, CUdevice *device);
/* Prints a line about it, once per process, and returns CUDA_ERROR_NOT_PERMITTED. */
CUresult gs_refuse_elsewhere(CUdevice device);

#endif
