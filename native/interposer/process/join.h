#ifndef GPUSHARE_JOIN_H
#define GPUSHARE_JOIN_H

#include "interposer/process/process.h"

/* Finds the grant, maps its pages and takes a slot. Fills state and returns the new value of state->joined; prints one
 * line if it is GS_JOIN_FAILED. Called once per process, with the join lock held. */
uint32_t gs_join(struct gs_process *state);

/* Reconnects to the daemon after it went away, with the slot that the process holds. Called only by the gate thread,
 * whenever limits->daemon_epoch differs from process->daemon_epoch or the socket is closed. Makes one attempt and does
 * not block for long. 0 or a negative errno. */
int gs_rejoin(struct gs_err *err);
/* Rings the arbiter's bell. */
void gs_ring(void);

#endif
