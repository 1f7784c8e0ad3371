/* The gate: a submission passes while the arbiter leases the device to this grant, and while little enough is in
 * flight. */
#ifndef GPUSHARE_TIME_GATE_H
#define GPUSHARE_TIME_GATE_H

#include "interposer/time/lease.h"

/* What one observer saw of the daemon's heartbeat. */
struct gs_heartbeat {
  uint32_t beat;
  uint64_t time; /* of the last change; 0: not looked yet */
};

/* Decides between leases and the local budget, for all devices. */
void gs_daemon_check(struct gs_heartbeat *seen, uint64_t now);

/* Waits for a lease, or for the local budget where the daemon is gone. Gives the lease word that let it through. */
uint32_t gs_gate_wait(struct gs_time_device *device, struct gs_stream *stream);

/* Waits until the work in flight is under the bound, softly: a stuck stream takes the launch of key, only not too
 * fast. */
void gs_bound_wait(struct gs_time_device *device, struct gs_stream *stream, uint64_t key);

#endif
