#include "interposer/time/lease.h"

#include <limits.h>

/* Always counts this process. */
uint32_t gs_slots_active(const struct gs_time_device *device, uint64_t now, uint64_t within) {
  uint32_t high = __atomic_load_n(&gs_process->limits->slots_high, __ATOMIC_RELAXED), count = 0;
  for (uint32_t i = 0; i < high && i < GS_MAX_SLOTS; i++) {
    const struct gs_slot *slot = &gs_process->usage->slot[i];
    const struct gs_slot_device *words = &slot->device[device->ordinal];
    if (__atomic_load_n(&slot->state, __ATOMIC_RELAXED) == GS_SLOT_LIVE &&
        (words == device->slot || __atomic_load_n(&words->queue_end_ns, __ATOMIC_RELAXED) + within > now))
      count++;
  }
  return count > 0 ? count : 1;
}

bool gs_under_cut(const struct gs_time_device *device) {
  return !(__atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE) & GS_LEASE_HELD) &&
         !__atomic_load_n(&device->local, __ATOMIC_ACQUIRE) &&
         (gs_claimed_on(device) || __atomic_load_n(&device->slot->collectives, __ATOMIC_ACQUIRE) <
                                       __atomic_load_n(&device->slot->cut, __ATOMIC_ACQUIRE));
}

void gs_clear_drained(struct gs_time_device *device) {
  uint32_t lease = __atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE), *drained = &device->slot->drained;
  bool reported;
  /* Takes the lock under which the gate thread checks whether the device has drained and reports it. */
  gs_biased_take(&device->lock);
  reported = !(lease & GS_LEASE_HELD) && __atomic_load_n(drained, __ATOMIC_RELAXED) == lease;
  if (reported) {
    __atomic_store_n(drained, lease - 2, __ATOMIC_SEQ_CST);
    if (device->meter)
      /* from now on, work of this process is on the device again */
      gs_meter_turn(device->meter, gs_others(device, lease), gs_now());
  }
  gs_biased_drop(&device->lock);
  if (reported)
    /* wakes this process's gate thread, which reports the drain again when it is true */
    gs_futex_wake(&device->limits->lease, INT_MAX, true);
}

/* Catches up on when others came or left, which may have passed already. */
static void catch_up(struct gs_time_device *device, uint64_t now) {
  uint32_t foreign_work = __atomic_load_n(&device->limits->foreign_work, __ATOMIC_ACQUIRE);
  uint64_t since = __atomic_load_n(&device->limits->foreign_work_ns, __ATOMIC_RELAXED);
  if (foreign_work == device->meter->foreign_work)
    return;
  __atomic_store_n(&device->meter->foreign_work, foreign_work, __ATOMIC_RELAXED);
  if (since > gs_meter_last_turn(device->meter) && since < now)
    gs_meter_turn(device->meter, gs_foreign_count(device->limits, foreign_work), since);
}

void gs_notice_turn(struct gs_time_device *device, uint32_t lease, uint64_t now) {
  uint32_t others = gs_others(device, lease);
  catch_up(device, now);
  if (others != device->meter->others)
    gs_meter_turn(device->meter, others, now);
}

void gs_look_at_turn(struct gs_time_device *device) {
  uint32_t lease = __atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE);
  if (!gs_turn_passed(device, lease))
    return;
  gs_biased_take(&device->lock);
  gs_notice_turn(device, lease, gs_now());
  gs_biased_drop(&device->lock);
}

void gs_set_dependent(struct gs_time_device *device, bool dependent) {
  if (dependent)
    __atomic_or_fetch(&device->slot->flags, GS_SLOT_DEPENDENT, __ATOMIC_RELAXED);
  else if (__atomic_load_n(&device->slot->flags, __ATOMIC_RELAXED) & GS_SLOT_DEPENDENT)
    __atomic_and_fetch(&device->slot->flags, ~(uint32_t)GS_SLOT_DEPENDENT, __ATOMIC_RELAXED);
}
