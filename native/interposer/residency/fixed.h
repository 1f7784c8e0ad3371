/* What a process has on the device that is not moved, by what it is: for people who ask why their memory stays. */
#ifndef GPUSHARE_FIXED_H
#define GPUSHARE_FIXED_H

#include "interposer/residency/state.h"

/* Publishes the sums in the process's slot, at most once a second, if its memory has changed since. For the mover. */
void gs_fixed_publish(struct gs_fixed_told *told, uint64_t now);

#endif
