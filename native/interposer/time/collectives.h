/* Counting collectives: kernels that run until their peers on other devices run too, so ranks have to stop at the same
 * one. */
#ifndef GPUSHARE_TIME_COLLECTIVES_H
#define GPUSHARE_TIME_COLLECTIVES_H

#include "interposer/process/process.h"

/* So many are about to be submitted to a device, which is waited for. Pair it with gs_collective_end by the same
 * thread, which counts back what the driver refused. */
void gs_collective_begin(int ordinal, uint32_t count);
void gs_collective_end(int ordinal, uint32_t count, CUresult result);
/* Where a launch into the stream runs. */
int gs_collective_device(CUstream stream);

#endif
