/* The client's side of a lane: the device time granted, and the report of how it was used. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim/model/model.h"

/* Intervals this close to being overwritten are not read: the engine may be writing them. */
enum { RING_MARGIN = 16 };

/* Reads interval k; false if it is not published yet. If intervals were missed, their device time is accounted for just
 * before the oldest one left. */
static bool interval_at(const struct sim_device *device, uint64_t k, uint64_t count, uint64_t got,
                        struct sim_interval *out) {
  if (k >= count)
    return false;
  const struct sim_interval *slot = &device->page->interval[k % SIM_INTERVALS];
  out->from = __atomic_load_n(&slot->from, __ATOMIC_RELAXED);
  out->before = __atomic_load_n(&slot->before, __ATOMIC_RELAXED);
  out->until = __atomic_load_n(&slot->until, __ATOMIC_SEQ_CST);
  if (out->before > got)
    out->from -= out->before - got;
  return true;
}

static uint64_t first_interval(const struct sim_device *device, uint64_t count) {
  uint64_t oldest = count > SIM_INTERVALS - RING_MARGIN ? count - (SIM_INTERVALS - RING_MARGIN) : 0;
  return device->interval > oldest ? device->interval : oldest;
}

static uint64_t overlap(const struct sim_interval *interval, uint64_t from, uint64_t until) {
  uint64_t start = interval->from > from ? interval->from : from;
  uint64_t end = interval->until < until ? interval->until : until;
  return end > start ? end - start : 0;
}

uint64_t sim_lane_when(const struct sim_device *device, uint64_t need) {
  uint64_t count = __atomic_load_n(&device->page->count, __ATOMIC_SEQ_CST);
  uint64_t got = device->got;
  struct sim_interval interval;
  for (uint64_t k = first_interval(device, count); interval_at(device, k, count, got, &interval); k++) {
    uint64_t length = overlap(&interval, device->cursor, SIM_NEVER);
    uint64_t start = interval.from > device->cursor ? interval.from : device->cursor;
    if (length >= need)
      return start + need;
    need -= length;
    got += length;
  }
  return SIM_NEVER;
}

uint64_t sim_lane_consume(struct sim_device *device, uint64_t t) {
  uint64_t count = __atomic_load_n(&device->page->count, __ATOMIC_SEQ_CST);
  uint64_t sum = 0, total = device->got, k = first_interval(device, count);
  struct sim_interval interval;
  if (t <= device->cursor)
    return 0;
  for (; interval_at(device, k, count, device->got + sum, &interval) && interval.from < t; k++) {
    sum += overlap(&interval, device->cursor, t);
    /* Use the engine's sum: an interval may have been extended after this process had passed its end. */
    total =
        interval.before + (interval.until < t ? interval.until : t) - device->page->interval[k % SIM_INTERVALS].from;
    if (interval.until > t)
      break;
  }
  device->interval = k;
  device->cursor = t;
  device->got = total;
  return sum;
}

static void publish(struct sim_device *device) {
  struct sim_lane *page = device->page;
  uint64_t number = page->reports; /* no other process writes it */
  struct sim_report *slot = &page->report[number % 2];
  __atomic_store_n(&slot->seq, UINT64_MAX, __ATOMIC_SEQ_CST);
  __atomic_store_n(&slot->at, device->cursor, __ATOMIC_SEQ_CST);
  __atomic_store_n(&slot->executed, device->executed, __ATOMIC_SEQ_CST);
  __atomic_store_n(&slot->backlog, device->backlog, __ATOMIC_SEQ_CST);
  __atomic_store_n(&slot->barriers, device->barriers, __ATOMIC_SEQ_CST);
  __atomic_store_n(&slot->seq, number, __ATOMIC_SEQ_CST);
  __atomic_store_n(&page->reports, number + 1, __ATOMIC_SEQ_CST);
  device->dirty = false;
}

void sim_lane_report(struct sim_device *device) {
  if (device->dirty)
    publish(device);
  if (device->backlog == 0 || __atomic_load_n(&device->page->aware, __ATOMIC_SEQ_CST))
    return;
  if (sim_lane_when(device, device->backlog) != SIM_NEVER)
    return; /* the time already granted is sufficient */
  /* The engine is not watching this lane. Either the work is new, or the engine counts it as done because it extended
   * an interval after this process had passed its end; that time is lost. A new report resolves both cases. */
  publish(device);
  uint64_t one = 1;
  ssize_t written = write(device->bell, &one, sizeof one);
  (void)written; /* write fails only if the counter is full, and then the engine has yet to handle the bell */
}

void sim_lane_boundary(struct sim_device *device, uint64_t executed) {
  struct sim_lane *page = device->page;
  uint64_t k = page->boundaries;
  __atomic_store_n(&page->boundary[k % SIM_BOUNDARIES], executed, __ATOMIC_RELAXED);
  __atomic_store_n(&page->boundaries, k + 1, __ATOMIC_RELEASE);
}

uint32_t sim_lane_word(const struct sim_device *device) {
  return __atomic_load_n(&device->page->wake, __ATOMIC_SEQ_CST);
}

void sim_lane_wait(const struct sim_device *device, uint32_t word, uint64_t timeout_ns) {
  int saved = errno;
  struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
  syscall(SYS_futex, &device->page->wake, FUTEX_WAIT, word, &timeout, NULL, 0);
  errno = saved;
}

void sim_lane_wake(struct sim_device *device) {
  __atomic_add_fetch(&device->page->wake, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &device->page->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
