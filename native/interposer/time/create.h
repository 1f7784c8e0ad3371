/* Creates the state of device time: once for the process, and once for each device. */
#ifndef GPUSHARE_TIME_CREATE_H
#define GPUSHARE_TIME_CREATE_H

#include "interposer/time/timing.h"

/* The same as gs_time_start, without the gate thread: enough where gs_time is not NULL, since whoever created it starts
 * that thread. Returns whether the device had no meter. */
bool gs_time_create(int ordinal);

#endif
