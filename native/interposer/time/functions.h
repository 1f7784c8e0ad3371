#ifndef GPUSHARE_TIME_FUNCTIONS_H
#define GPUSHARE_TIME_FUNCTIONS_H

#include "interposer/time/timing.h"

/* The handles of all functions, or of one graph (key), may be reused or have changed: their times are measured anew. */
void gs_functions_changed(void);

void gs_function_changed(uint64_t key);

#endif
