/* Counts collectives. They run until their peers on other devices run too, so all ranks of a gang have to stop at the
 * same one. */
#ifndef GPUSHARE_TIME_COLLECTIVES_H
#define GPUSHARE_TIME_COLLECTIVES_H

#include "interposer/process/process.h"

/* Announces `count` collectives about to be submitted to a device, and waits until the gate lets them pass. The same
 * thread has to call gs_collective_end afterwards, which subtracts them again if the driver refused them. */
void gs_collective_begin(int ordinal, uint32_t count);
void gs_collective_end(int ordinal, uint32_t count, CUresult result);
/* The ordinal of the device on which a launch into the stream runs. */
int gs_collective_device(CUstream stream);

#endif
