#ifndef GPUSHARE_JOIN_H
#define GPUSHARE_JOIN_H

#include "interposer/process/process.h"

/* Finds the grant, maps its pages and takes a slot. Fills state and gives the new value of state->joined; says one line
 * when it is GS_JOIN_FAILED. Called once per process, with the join lock held. */
uint32_t gs_join(struct gs_process *state);

#endif
