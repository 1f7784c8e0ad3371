#ifndef GPUSHARE_JOIN_H
#define GPUSHARE_JOIN_H

#include "interposer/process/process.h"

/* Finds the grant, maps its pages and takes a slot. Fills state and gives the new value of state->joined; says one line
 * when it is GS_JOIN_FAILED. Called once per process, with the join lock held. */
uint32_t gs_join(struct gs_process *state);

/* Connects again after the daemon went away, with the slot we hold. Called by the gate thread only, whenever
 * limits->daemon_epoch differs from process->daemon_epoch or the socket is closed. One try, does not block for long. */
int gs_rejoin(struct gs_err *err);
/* Rings the arbiter's bell. */
void gs_ring(void);

#endif
