/* The gate: lets a submission pass while the arbiter leases the device to this grant and the work in flight is below
 * its bound. */
#ifndef GPUSHARE_TIME_GATE_H
#define GPUSHARE_TIME_GATE_H

#include "interposer/time/lease.h"

/* The daemon's heartbeat as one observer saw it. */
struct gs_heartbeat {
  uint32_t beat;
  uint64_t time; /* of the last change; 0: not read yet */
};

/* Decides, for all devices, whether leases or the local budget apply. */
void gs_daemon_check(struct gs_heartbeat *seen, uint64_t now);

/* Waits for a lease or, without a daemon, for the local budget. Returns the lease word that let the submission pass. */
uint32_t gs_gate_wait(struct gs_time_device *device);

/* Waits until the work in flight is below the bound. The bound is soft: a stuck stream accepts launches of `key`, at a
 * limited rate. Returns true with the device's lock held, under which the launch is to be booked; false, without the
 * lock, once the lease word is no longer `lease`. began: when the launch was first held back. */
bool gs_bound_wait(struct gs_time_device *device, struct gs_stream *stream, uint64_t key, uint32_t lease,
                   uint64_t began);

#endif
