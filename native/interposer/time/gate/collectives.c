/* Collectives are counted before they are submitted, so `collectives` covers everything on the device whenever the
 * arbiter reads it. A launch that is in progress when the lease is revoked is counted and then reads the lease again;
 * the arbiter revokes the lease and then reads the count. So either the arbiter sees the launch and sets every rank's
 * cut to allow it, or the launch sees the revoke and withdraws its count. Under a cut, places are taken by
 * compare-and-exchange, so exactly as many collectives pass as the cut allows. */
#include "interposer/time/gate/collectives.h"

#include "interposer/process/device.h"
#include "interposer/time/gate/gate.h"
#include "interposer/time/gate/start.h"
#include "interposer/time/streams/streams.h"

static bool local(const struct gs_time_device *device) { return __atomic_load_n(&device->local, __ATOMIC_ACQUIRE); }
static bool held(const struct gs_time_device *device) {
  return __atomic_load_n(&device->limits->lease, __ATOMIC_SEQ_CST) & GS_LEASE_HELD;
}

/* Counts the collectives if they may pass. */
static bool claim(struct gs_time_device *device, uint32_t count) {
  uint64_t *counted = &device->slot->collectives, before = __atomic_load_n(counted, __ATOMIC_SEQ_CST);
  bool leased = held(device) || local(device);
  if (!leased) {
    if (before >= __atomic_load_n(&device->slot->cut, __ATOMIC_SEQ_CST))
      return false;
    gs_clear_drained(device);
  }
  if (!__atomic_compare_exchange_n(counted, &before, before + count, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
    return false;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (!leased || held(device) || local(device) || before < __atomic_load_n(&device->slot->cut, __ATOMIC_SEQ_CST))
    return true;
  __atomic_sub_fetch(counted, count, __ATOMIC_SEQ_CST); /* revoked in between */
  return false;
}

void gs_collective_begin(int ordinal, uint32_t count) {
  struct gs_time *time = gs_time();
  if (ordinal < 0 || ordinal >= (int)gs_process->ndevices || count == 0)
    return;
  if (!time) {
    gs_time_start(ordinal);
    if (!(time = gs_time()))
      return;
  }
  struct gs_time_device *device = &time->device[ordinal];
  /* the device does not count as drained from here until the launch is booked in the meter */
  __atomic_add_fetch(&device->claims, 1, __ATOMIC_SEQ_CST);
  while (!claim(device, count)) {
    __atomic_sub_fetch(&device->claims, 1, __ATOMIC_SEQ_CST);
    gs_gate_wait(device);
    __atomic_add_fetch(&device->claims, 1, __ATOMIC_SEQ_CST);
  }
  gs_claimed |= 1u << ordinal;
}

void gs_collective_end(int ordinal, uint32_t count, CUresult result) {
  struct gs_time *time = gs_time();
  if (ordinal < 0 || !(gs_claimed >> ordinal & 1))
    return;
  gs_claimed &= ~(1u << ordinal);
  if (!time)
    return;
  struct gs_time_device *device = &time->device[ordinal];
  if (result != CUDA_SUCCESS)
    __atomic_sub_fetch(&device->slot->collectives, count, __ATOMIC_SEQ_CST);
  __atomic_sub_fetch(&device->claims, 1, __ATOMIC_SEQ_CST);
}

int gs_collective_device(CUstream stream) {
  const struct gs_stream *known = gs_stream_of(stream);
  return known ? known->device->ordinal : gs_stream_device(stream);
}
