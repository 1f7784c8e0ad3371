/* The lease of a device, and which others may have work on it. */
#ifndef GPUSHARE_TIME_LEASE_H
#define GPUSHARE_TIME_LEASE_H

#include "interposer/time/thread.h"

/* Estimated nanoseconds that this process may have in flight. */
static inline double gs_bound(const struct gs_time_device *device) {
  uint64_t given = __atomic_load_n(&device->limits->inflight_bound_ns, __ATOMIC_RELAXED);
  uint32_t residents = __atomic_load_n(&device->residents, __ATOMIC_RELAXED);
  double bound = given ? (double)(int64_t)given : GS_BOUND_DEFAULT_NS;
  /* the bound applies to the grant, so its processes share it */
  return GS_LIKELY(residents <= 1) ? bound : bound / residents;
}

/* Number of the grant's processes that have work on the device or had some within the last `within` ns. */
uint32_t gs_slots_active(const struct gs_time_device *device, uint64_t now, uint64_t within);

/* How many others have work on the device at a time, as the arbiter reports it. foreign_work: that word, just read. */
static inline uint32_t gs_foreign_count(const struct gs_device_limits *limits, uint32_t foreign_work) {
  if (!(foreign_work & 1))
    return 0;
  uint32_t count = __atomic_load_n(&limits->foreign_count, __ATOMIC_RELAXED);
  return count > 1 ? count : 1;
}

/* The same, given the lease word just read: without a lease nothing of this process is there once it has drained. Without
 * a daemon others are unknown, so the work that runs is charged in full. */
static inline uint32_t gs_others(const struct gs_time_device *device, uint32_t lease) {
  const struct gs_slot_device *slot = device->slot;
  if (!(lease & GS_LEASE_HELD)) {
    if (__atomic_load_n(&device->local, __ATOMIC_RELAXED))
      return 0;
    if (__atomic_load_n(&slot->drained, __ATOMIC_RELAXED) == lease &&
        __atomic_load_n(&slot->inflight, __ATOMIC_RELAXED) == 0)
      return GS_METER_AWAY;
  }
  return gs_foreign_count(device->limits, __atomic_load_n(&device->limits->foreign_work, __ATOMIC_ACQUIRE));
}

static inline bool gs_turn_passed(const struct gs_time_device *device, uint32_t lease) {
  return gs_others(device, lease) != __atomic_load_n(&device->meter->others, __ATOMIC_RELAXED) ||
         __atomic_load_n(&device->limits->foreign_work, __ATOMIC_RELAXED) !=
             __atomic_load_n(&device->meter->foreign_work, __ATOMIC_RELAXED);
}

/* Passes a change of the others on the device to the meter. Called with the device's lock held. */
void gs_notice_turn(struct gs_time_device *device, uint32_t lease, uint64_t now);

/* The same outside a submission; returns at once if there is no change. Takes the lock. */
void gs_look_at_turn(struct gs_time_device *device);

/* Whether this process may still submit although the lease was revoked: the ranks of a gang stop at the same
 * collective. */
bool gs_under_cut(const struct gs_time_device *device);

/* Withdraws the report that the device has drained, because work is about to be submitted under a cut. */
void gs_clear_drained(struct gs_time_device *device);

void gs_set_dependent(struct gs_time_device *device, bool dependent);

#endif
