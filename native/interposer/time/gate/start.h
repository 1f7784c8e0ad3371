#ifndef GPUSHARE_TIME_START_H
#define GPUSHARE_TIME_START_H

#include "interposer/time/timing.h"

/* To be called when this process has a context on the device. Idempotent; the first call for a device starts the gate
 * thread if it does not run yet. No context need be current. */
void gs_time_start(int ordinal);

#endif
