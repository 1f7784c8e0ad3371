#ifndef GPUSHARE_TIME_START_H
#define GPUSHARE_TIME_START_H

#include "interposer/time/timing.h"

/* A context of this process lives on ordinal for the first time (idempotent; starts the gate thread at the first). May
 * be called with no context current. */
void gs_time_start(int ordinal);

#endif
