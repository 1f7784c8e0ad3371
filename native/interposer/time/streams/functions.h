#ifndef GPUSHARE_TIME_FUNCTIONS_H
#define GPUSHARE_TIME_FUNCTIONS_H

#include "interposer/time/timing.h"

/* Have the times of all functions, or of one graph (key), measured anew: the handles may be reused, or the graph has
 * changed. */
void gs_functions_changed(void);

void gs_function_changed(uint64_t key);

#endif
