/* Publishes what the arbiter has to know. */
#include "interposer/time/marks/publish.h"

#include "interposer/process/join.h"
#include "interposer/time/lease.h"
#include "interposer/time/marks/residency.h"
#include "interposer/time/streams/active.h"
#include "interposer/time/streams/repeat.h"

enum {
  /* work that is done this much before the arbiter expects it is worth a bell: waking others takes 50 us, and work that
   * is only a little late is published with GS_METER_OVERDUE_NS more */
  SOONER_NS = GS_METER_OVERDUE_NS + 50000
};

/* An idle stream leaves the list, and its next launch is booked in full. Under the device's lock. */
static void leave_list(struct gs_stream *stream) {
  if (gs_stream_retired(stream) || stream->queue.sampled || stream->queue.head != stream->queue.tail)
    return;
  __atomic_store_n(&stream->repeater, NULL, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->due, UINT64_MAX, __ATOMIC_RELAXED);
  gs_active_drop(stream);
}

/* When the work in flight is expected to be done; 0: it is known to be done. *running: number of streams that are not
 * known to be idle. */
static uint64_t expected_end(struct gs_time_device *device, uint64_t now, uint32_t *running) {
  uint64_t end = 0, serial;
  double sum = 0;
  *running = 0;
  for (struct gs_stream *stream = device->active, *next; stream; stream = next) {
    uint64_t expected;
    next = stream->next;
    if (!gs_stream_may_run(stream)) {
      leave_list(stream);
      continue;
    }
    ++*running;
    expected = gs_queue_expected_end(device->meter, &stream->queue, now);
    if (expected <= now + GS_DRAINED_NS && (stream->unobserved || expected <= now))
      expected = now + GS_UNPROVEN_NS;
    if (expected > end)
      end = expected;
    sum += gs_queue_inflight(&stream->queue, 0, now);
  }
  /* Streams share the device: what is in flight in all of them may have to run one after another. */
  serial = now + (uint64_t)sum;
  return end && serial > end ? serial : end;
}

bool gs_publish(struct gs_time_device *device, uint64_t now) {
  uint32_t running;
  uint64_t end = expected_end(device, now, &running), launches = device->slot->launches,
           before = device->slot->queue_end_ns;
  bool idle = end == 0;
  if (idle) {
    gs_set_dependent(device, false);
    end = device->slot->queue_end_ns;
    if (device->idle_at != launches || end > now)
      end = now;
  }
  device->idle_at = idle ? launches : UINT64_MAX;
  __atomic_store_n(&device->slot->busy_ns, (uint64_t)device->meter->busy, __ATOMIC_RELAXED);
  __atomic_store_n(&device->slot->inflight, device->meter->marks > running ? device->meter->marks : running,
                   __ATOMIC_RELAXED);
  __atomic_store_n(&device->slot->queue_end_ns, end, __ATOMIC_RELAXED);
  return idle && before > now + SOONER_NS;
}

uint64_t gs_rest(struct gs_time_device *device, uint64_t now) {
  uint32_t running;
  uint64_t end = expected_end(device, now, &running);
  return end > now ? end - now : 0;
}

void gs_tell_sooner(const struct gs_time_device *device) {
  if (__atomic_load_n(&device->limits->contended, __ATOMIC_RELAXED))
    gs_ring();
}
