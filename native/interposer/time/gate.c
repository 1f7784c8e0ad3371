/* The gate: a submission passes while the arbiter leases the device to this grant, and while little enough is in
 * flight. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "interposer/os/system.h"
#include "interposer/process/trace.h"
#include "interposer/time/repeat.h"
#include "interposer/time/timing.h"

enum {
  STEP_NS = 50000000,        /* a waiter looks around this often */
  CUT_STEP_NS = 1000000,     /* a rank just revoked: its cut may be raised just before it sleeps */
  CUT_STEPS_NS = 10000000,   /* for so long */
  POLL_NS = 50000,           /* between looks at a mark that is awaited */
  BOUND_TRACED_NS = 1000000, /* shorter waits under the bound are how a busy program runs */
  BUDGET_WINDOW_NS = 100000000,
  BUDGET_LEAST_MILLI = 20 /* a grant that only borrows still moves when nobody lends any more */
};

/* ---- start ---- */

/* A tool that traces every CUDA call shows our events to its user and slows every call: what it runs is charged by
 * residency. A loaded libcupti alone is not one: frameworks link it and rarely use it. */
static bool profiled(void) { return getenv("CUDA_INJECTION64_PATH") || getenv("NVTX_INJECTION64_PATH"); }

static struct gs_time *create(void) {
  struct gs_time *time = gs_private_map(sizeof *time), *none = NULL;
  if (!time)
    return NULL;
  time->profiled = profiled();
  gs_biased_start();
  /* Not 0 and not a parent's: what a thread remembers from before a fork is stale. */
  time->generation = (uint32_t)gs_now() | 1;
  time->repeats = 1;
  for (uint32_t i = 0; i < gs_process->ndevices; i++) {
    time->device[i].ordinal = (int)i;
    time->device[i].limits = &gs_process->limits->device[i];
    time->device[i].slot = &gs_process->slot->device[i];
  }
  if (__atomic_compare_exchange_n(&gs_process->time, &none, time, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return time;
  return none;
}

void gs_time_start(int ordinal) {
  struct gs_time *time = gs_time();
  int saved = errno;
  if (ordinal < 0 || ordinal >= (int)gs_process->ndevices)
    return;
  if (!time)
    time = create();
  if (time && !__atomic_load_n(&time->device[ordinal].meter, __ATOMIC_ACQUIRE)) {
    struct gs_meter *meter = gs_private_map(sizeof *meter);
    gs_latch_take(&time->tables);
    if (!time->device[ordinal].meter)
      __atomic_store_n(&time->device[ordinal].meter, meter, __ATOMIC_RELEASE);
    gs_latch_drop(&time->tables);
    gs_gate_thread_start();
  }
  errno = saved;
}

/* ---- the local budget ---- */

/* Processes of the grant that have, or had `within` ns ago, work on the device; this one counts always. */
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

/* How long until the local budget lets a submission pass; 0: it does. */
static uint64_t budget_wait_ns(struct gs_time_device *device) {
  uint64_t now = gs_now(), wait = 0;
  uint32_t milli = __atomic_load_n(&device->limits->guarantee_milli, __ATOMIC_RELAXED);
  double rate, spent;
  gs_biased_take(&device->lock);
  spent = device->meter ? device->meter->busy + device->meter->inflight : 0;
  gs_biased_drop(&device->lock);
  gs_latch_take(&device->budget_lock);
  rate = (milli > BUDGET_LEAST_MILLI ? milli : BUDGET_LEAST_MILLI) / 1000.0 /
         gs_slots_active(device, now, BUDGET_WINDOW_NS);
  if (device->budget_time == 0) {
    device->budget_ns = rate * BUDGET_WINDOW_NS;
    device->budget_spent = spent;
  } else {
    device->budget_ns += rate * (double)(now - device->budget_time) - (spent - device->budget_spent);
    device->budget_spent = spent;
    if (device->budget_ns > rate * BUDGET_WINDOW_NS)
      device->budget_ns = rate * BUDGET_WINDOW_NS;
  }
  device->budget_time = now;
  if (device->budget_ns <= 0)
    wait = (uint64_t)(-device->budget_ns / rate) + POLL_NS;
  gs_latch_drop(&device->budget_lock);
  return wait;
}

static void daemon_gone(uint32_t beat) {
  struct gs_time *time = gs_time();
  for (uint32_t i = 0; i < gs_process->ndevices; i++) {
    struct gs_time_device *device = &time->device[i];
    gs_latch_take(&device->budget_lock);
    device->budget_time = 0;
    gs_latch_drop(&device->budget_lock);
    __atomic_store_n(&device->local, 1, __ATOMIC_RELEASE);
  }
  gs_repeat_end(time);
  gs_trace(GS_TRACE_DAEMON_LOST, GS_NO_DEVICE, beat, gs_process->limits->device[0].guarantee_milli);
}

void gs_daemon_check(struct gs_heartbeat *seen, uint64_t now) {
  uint32_t beat = __atomic_load_n(&gs_process->limits->heartbeat, __ATOMIC_RELAXED);
  struct gs_time *time = gs_time();
  if (seen->time == 0 || seen->beat != beat) {
    bool moved = seen->time != 0;
    seen->beat = beat;
    seen->time = now;
    if (moved)
      for (uint32_t i = 0; i < gs_process->ndevices; i++)
        __atomic_store_n(&time->device[i].local, 0, __ATOMIC_RELEASE);
  } else if (now - seen->time >= GS_HEARTBEAT_NS && !__atomic_load_n(&time->device[0].local, __ATOMIC_RELAXED)) {
    daemon_gone(beat);
  }
}

/* ---- waiting for a lease ---- */

bool gs_under_cut(const struct gs_time_device *device) {
  return !(__atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE) & GS_LEASE_HELD) &&
         !__atomic_load_n(&device->local, __ATOMIC_ACQUIRE) &&
         (gs_claimed(device) || __atomic_load_n(&device->slot->collectives, __ATOMIC_ACQUIRE) <
                                    __atomic_load_n(&device->slot->cut, __ATOMIC_ACQUIRE));
}

void gs_undrain(struct gs_time_device *device) {
  uint32_t lease = __atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE), *drained = &device->slot->drained;
  bool said;
  /* Under the lock, in which the gate thread looks whether it is true and says so. */
  gs_biased_take(&device->lock);
  said = !(lease & GS_LEASE_HELD) && __atomic_load_n(drained, __ATOMIC_RELAXED) == lease;
  if (said) {
    __atomic_store_n(drained, lease - 2, __ATOMIC_SEQ_CST);
    if (device->meter)
      gs_meter_turn(device->meter, gs_others(device, lease), gs_now()); /* from now on, work of ours is there again */
  }
  gs_biased_drop(&device->lock);
  if (said)
    gs_futex_wake(&device->limits->lease, INT_MAX, true); /* our gate thread: to say it again when it is true */
}

static bool may_pass(struct gs_time_device *device, uint32_t lease, uint64_t *wait) {
  if (gs_called_back)
    return true;
  if (!__atomic_load_n(&device->local, __ATOMIC_ACQUIRE)) {
    *wait = STEP_NS;
    if (lease & GS_LEASE_HELD)
      return true;
    if (!gs_under_cut(device))
      return false;
    gs_undrain(device);
    return true;
  }
  *wait = budget_wait_ns(device);
  if (*wait > STEP_NS)
    *wait = STEP_NS;
  return *wait == 0;
}

/* The end of others' work within our lease, which may be over by now. */
static void catch_up(struct gs_time_device *device, uint64_t now) {
  uint32_t foreign_work = __atomic_load_n(&device->limits->foreign_work, __ATOMIC_ACQUIRE);
  uint64_t told = __atomic_load_n(&device->limits->foreign_work_ns, __ATOMIC_RELAXED);
  if (foreign_work == device->meter->foreign_work)
    return;
  __atomic_store_n(&device->meter->foreign_work, foreign_work, __ATOMIC_RELAXED);
  if (told > gs_meter_last_turn(device->meter) && told < now)
    gs_meter_turn(device->meter, foreign_work & 1, told);
}

void gs_notice_turn(struct gs_time_device *device, uint32_t lease, uint64_t now) {
  uint32_t others = gs_others(device, lease);
  catch_up(device, now);
  if (others != device->meter->others)
    gs_meter_turn(device->meter, others, lease & GS_LEASE_HELD || others != 1 ? now : now + GS_METER_OVERLAP_NS);
}

void gs_look_at_turn(struct gs_time_device *device) {
  uint32_t lease = __atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE);
  if (!gs_turn_passed(device, lease))
    return;
  gs_biased_take(&device->lock);
  gs_notice_turn(device, lease, gs_now());
  gs_biased_drop(&device->lock);
}

uint32_t gs_gate_wait(struct gs_time_device *device, struct gs_stream *stream) {
  const uint32_t *word = &device->limits->lease;
  struct gs_heartbeat heartbeat = {0, 0};
  uint32_t lease = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  uint64_t began, revoked, wait, waited;
  int saved = errno;
  if (may_pass(device, lease, &wait))
    return lease;
  /* What waits here is not the device's work: the open segment ends before it. */
  gs_repeat_absorb_all(device);
  if (stream && gs_stream_open(stream))
    gs_mark_record(stream, false);
  began = revoked = gs_now();
  gs_daemon_check(&heartbeat, began);
  __atomic_add_fetch(&device->slot->waiting, 1, __ATOMIC_SEQ_CST);
  gs_ring();
  for (;;) {
    uint32_t before = lease;
    lease = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (may_pass(device, lease, &wait))
      break;
    if (lease != before)
      revoked = gs_now();
    if (__atomic_load_n(&device->local, __ATOMIC_ACQUIRE)) {
      gs_nap(wait);
    } else if (__atomic_load_n(&device->slot->collectives, __ATOMIC_RELAXED) > 0 && gs_now() - revoked < CUT_STEPS_NS) {
      gs_futex_wait(word, lease, CUT_STEP_NS, true);
    } else if (!gs_futex_wait(word, lease, wait, true)) {
      gs_ring(); /* a bell rung into a daemon that was starting is lost */
    }
    gs_daemon_check(&heartbeat, gs_now());
  }
  __atomic_sub_fetch(&device->slot->waiting, 1, __ATOMIC_SEQ_CST);
  waited = gs_now() - began;
  __atomic_add_fetch(&device->slot->wait_ns, waited, __ATOMIC_RELAXED);
  gs_trace(GS_TRACE_WAITED, device->ordinal, waited, lease);
  errno = saved;
  return lease;
}

/* ---- the bound on work in flight ---- */

void gs_set_dependent(struct gs_time_device *device, bool dependent) {
  if (dependent)
    __atomic_or_fetch(&device->slot->flags, GS_SLOT_DEPENDENT, __ATOMIC_RELAXED);
  else if (__atomic_load_n(&device->slot->flags, __ATOMIC_RELAXED) & GS_SLOT_DEPENDENT)
    __atomic_and_fetch(&device->slot->flags, ~(uint32_t)GS_SLOT_DEPENDENT, __ATOMIC_RELAXED);
}

/* Estimated time in flight over all streams that move, without what must be done by now although no mark says so. Stuck
 * streams count nothing: CUDA cannot see every order between streams, nor can we, and what they wait for may be held
 * here. Under the lock. */
static double inflight(struct gs_time_device *device, double bound, uint64_t now, bool *any_stuck) {
  struct gs_time *time = gs_time();
  uint32_t streams = __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE);
  double sum = 0;
  *any_stuck = false;
  for (uint32_t i = 0; i < streams; i++) {
    const struct gs_stream *stream = time->stream[i];
    if (!stream || !gs_stream_live(stream) || stream->device != device || gs_stream_known_done(stream))
      continue;
    if (gs_queue_stuck(device->meter, &stream->queue, GS_DEPENDENT_NS, now))
      *any_stuck = true;
    else
      sum += gs_queue_inflight(&stream->queue, bound, now);
  }
  return sum;
}

static void set_stuck(struct gs_time_device *device, uint64_t waited, uint64_t pace) {
  if (!(__atomic_load_n(&device->slot->flags, __ATOMIC_RELAXED) & GS_SLOT_DEPENDENT))
    gs_trace(GS_TRACE_STUCK, device->ordinal, waited, pace);
  gs_set_dependent(device, true);
}

void gs_bound_wait(struct gs_time_device *device, struct gs_stream *stream, uint64_t key) {
  double bound = gs_bound(device);
  uint64_t began = gs_now(), now, pace;
  int saved = errno;
  for (;;) {
    uint32_t marks;
    bool under, stuck;
    /* Peers spin for what comes next here: it is theirs to wait for the device, not ours. */
    if (gs_called_back || gs_under_cut(device))
      break;
    gs_reap(device);
    now = gs_now();
    gs_biased_take(&device->lock);
    under = inflight(device, bound, now, &stuck) <= bound;
    /* A stuck stream may only be slow, beside others on the device: it takes more, but not a whole channel full. */
    pace = gs_queue_stuck(device->meter, &stream->queue, GS_DEPENDENT_NS, now)
               ? gs_meter_pace(device->meter, key, GS_DEPENDENT_NS)
               : 0;
    marks = device->meter->marks;
    gs_biased_drop(&device->lock);
    if (under && stuck)
      set_stuck(device, now - began, pace);
    if (under && now - began >= pace)
      break;
    if (marks == 0 && gs_stream_open(stream))
      gs_mark_record(stream, false);
    gs_nap(POLL_NS);
  }
  now = gs_now();
  if (now - began >= BOUND_TRACED_NS)
    gs_trace(GS_TRACE_BOUND, device->ordinal, now - began, (uint64_t)bound);
  errno = saved;
}
