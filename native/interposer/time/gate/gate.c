#include "interposer/time/gate/gate.h"

#include <errno.h>

#include "interposer/os/system.h"
#include "interposer/process/join.h"
#include "interposer/process/trace.h"
#include "interposer/time/marks/marks.h"
#include "interposer/time/marks/residency.h"
#include "interposer/time/streams/repeat.h"

enum {
  STEP_NS = 50000000,      /* how often a waiting thread checks the other conditions */
  CUT_STEP_NS = 1000000,   /* for a rank whose lease was just revoked: its cut may be raised just before it sleeps */
  CUT_STEPS_NS = 10000000, /* for this long */
  /* A stream stands still while a callback waits, and is charged as if it ran, so it must not wait for ever. */
  CALLBACK_PATIENCE_NS = 1000000000,
  POLL_NS = 50000,           /* interval of the checks of an awaited mark */
  HELD_BOUNDS = 10,          /* as many bounds may be queued behind waits for values */
  POLL_MOST = 100,           /* each of many threads sleeps at most this many times POLL_NS */
  BOUND_TRACED_NS = 1000000, /* shorter waits for the bound are normal for a busy program */
  BUDGET_WINDOW_NS = 100000000,
  BUDGET_LEAST_MILLI = 20 /* so that a grant that only borrows still makes progress when there is no lender left */
};

/* ---- the local budget ---- */

/* How long until the local budget lets a submission pass, in ns; 0: it passes now. The time and what is spent are read
 * under the lock: a thread that was kept from it comes with none that are older than those of the one before. */
static uint64_t budget_wait_ns(struct gs_time_device *device) {
  uint64_t now, wait = 0;
  uint32_t milli = __atomic_load_n(&device->limits->guarantee_milli, __ATOMIC_RELAXED);
  double rate, spent;
  gs_latch_take(&device->budget_lock);
  now = gs_now();
  gs_biased_take(&device->lock);
  spent = device->meter ? device->meter->busy + device->meter->inflight : 0;
  gs_biased_drop(&device->lock);
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
  uint32_t no = 0;
  /* Of the threads that notice it only one begins the budget anew. */
  if (!__atomic_compare_exchange_n(&time->device[0].local, &no, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return;
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

/* What callbacks submit without a lease passes as long as less than the bound was submitted this way since the
 * revoke. */
static bool callback_passes(struct gs_time_device *device, uint32_t lease) {
  bool passes;
  gs_biased_take(&device->lock);
  passes = device->callback_lease != lease || device->callback_ns < gs_bound(device);
  gs_biased_drop(&device->lock);
  return passes;
}

/* Lets one callback pass per CALLBACK_PATIENCE_NS, however many wait. */
static bool out_of_patience(struct gs_time_device *device, uint64_t began) {
  uint64_t passed = __atomic_load_n(&device->callback_passed, __ATOMIC_ACQUIRE), now = gs_now();
  return now - (began > passed ? began : passed) >= CALLBACK_PATIENCE_NS &&
         __atomic_compare_exchange_n(&device->callback_passed, &passed, now, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static bool may_pass(struct gs_time_device *device, uint32_t lease, uint64_t *wait) {
  if (!gs_memory_there(device) && !gs_submission_passes(gs_passage())) {
    *wait = STEP_NS;
    return false;
  }
  if (gs_called_back && callback_passes(device, lease))
    return true;
  if (!__atomic_load_n(&device->local, __ATOMIC_ACQUIRE)) {
    *wait = STEP_NS;
    if (lease & GS_LEASE_HELD)
      return true;
    if (!gs_under_cut(device))
      return false;
    gs_clear_drained(device);
    return true;
  }
  *wait = budget_wait_ns(device);
  if (*wait > STEP_NS)
    *wait = STEP_NS;
  return *wait == 0;
}

uint32_t gs_gate_wait(struct gs_time_device *device) {
  const uint32_t *word = &device->limits->lease;
  struct gs_heartbeat heartbeat = {0, 0};
  uint32_t lease = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  uint64_t began, revoked, wait, waited;
  int saved = errno;
  if (may_pass(device, lease, &wait))
    return lease;
  gs_repeat_absorb_all(device);
  gs_mark_all(device); /* time spent waiting here is not work of the device: open segments end before it */
  began = revoked = gs_now();
  gs_daemon_check(&heartbeat, began);
  __atomic_add_fetch(&device->slot->waiting, 1, __ATOMIC_SEQ_CST);
  gs_ring();
  for (;;) {
    uint32_t before = lease;
    lease = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (may_pass(device, lease, &wait) || (gs_called_back && gs_memory_there(device) && out_of_patience(device, began)))
      break;
    if (lease != before)
      revoked = gs_now();
    if (__atomic_load_n(&device->local, __ATOMIC_ACQUIRE)) {
      gs_nap(wait);
    } else if (__atomic_load_n(&device->slot->collectives, __ATOMIC_RELAXED) > 0 && gs_now() - revoked < CUT_STEPS_NS) {
      gs_futex_wait(word, lease, CUT_STEP_NS, true);
    } else if (!gs_futex_wait(word, lease, wait, true)) {
      gs_ring(); /* rings again: a bell rung while the daemon was starting is lost */
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

/* Time since the newest known end of work. */
static double since_known(const struct gs_meter *meter, uint64_t now) {
  uint64_t known = meter->pieces ? meter->piece[meter->pieces - 1].to : 0;
  return known < now ? (double)(now - known) : 0;
}

/* What is behind a wait for a value is not in flight yet, and the thread that is to set the value may be the one that
 * submits. None of it shows how long it takes before all of it runs. */
static bool few_held(const struct gs_time_device *device, double bound) {
  double held = 0;
  for (const struct gs_stream *stream = device->active; stream; stream = stream->next)
    if (gs_stream_held(stream))
      held += stream->queue.inflight;
  return held <= HELD_BOUNDS * bound;
}

/* Estimated time in flight of all streams that make progress, without work that must be done by now although no mark
 * has shown it. Stuck streams do not count: not even CUDA can see every order between streams, and the work that they
 * wait for may be held here. Called with the lock held. */
static double inflight(struct gs_time_device *device, double bound, uint64_t now, bool *any_stuck) {
  double sum = 0, seems_done = 0;
  bool few = few_held(device, bound);
  *any_stuck = false;
  for (const struct gs_stream *stream = device->active; stream; stream = stream->next) {
    if (gs_stream_known_done(stream) || (few && gs_stream_held(stream)))
      continue;
    if (gs_queue_stuck(device->meter, &stream->queue, GS_DEPENDENT_NS, now)) {
      *any_stuck = true;
      continue;
    }
    double rest = gs_queue_inflight(&stream->queue, bound, now);
    sum += rest;
    if (stream->queue.inflight > rest)
      seems_done += stream->queue.inflight - rest;
  }
  /* Each stream alone could be this far, but all share one device, which had only the time since it is last known to
   * have worked. */
  double could = since_known(device->meter, now);
  return could < seems_done ? sum + seems_done - could : sum;
}

static void set_stuck(struct gs_time_device *device, uint64_t waited, uint64_t pace) {
  if (!(__atomic_load_n(&device->slot->flags, __ATOMIC_RELAXED) & GS_SLOT_DEPENDENT))
    gs_trace(GS_TRACE_STUCK, device->ordinal, waited, pace);
  gs_set_dependent(device, true);
}

/* Sleeps so that one of the waiting threads looks every POLL_NS, however many wait. */
static void nap_in_turn(const struct gs_time_device *device) {
  uint32_t waiting = __atomic_load_n(&device->slot->waiting, __ATOMIC_RELAXED);
  gs_nap(POLL_NS * (uint64_t)(waiting < POLL_MOST ? waiting : POLL_MOST));
}

bool gs_bound_wait(struct gs_time_device *device, struct gs_stream *stream, uint64_t key, uint32_t lease,
                   uint64_t began) {
  double bound = gs_bound(device);
  uint64_t now, pace;
  bool notified = false, passes = false;
  /* A mark that is done shows nothing of what is behind a wait for a value: if that may pass, the driver is not asked. */
  bool asks = __atomic_load_n(&stream->held_launches, __ATOMIC_RELAXED) == 0;
  int saved = errno;
  /* The grant wants the device all the time, even if this thread gets no processor in time to submit more. */
  __atomic_add_fetch(&device->slot->waiting, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE) == lease && gs_memory_there(device)) {
    uint32_t marks;
    bool under, stuck, notify, held;
    /* Peers spin for the next work of this rank, so the device waits, not this thread. */
    if (gs_called_back || gs_under_cut(device)) {
      gs_biased_take(&device->lock);
      passes = true;
      break;
    }
    if (asks)
      gs_reap(device);
    now = gs_now();
    gs_biased_take(&device->lock);
    under = inflight(device, bound, now, &stuck) <= bound;
    /* A stuck stream may only be slow because it shares the device: it accepts more work, but not enough to fill the
     * channel. */
    held = gs_stream_held(stream) && few_held(device, bound);
    pace = !held && gs_queue_stuck(device->meter, &stream->queue, GS_DEPENDENT_NS, now)
               ? gs_meter_pace(device->meter, key, GS_DEPENDENT_NS)
               : 0;
    marks = device->meter->marks;
    passes = under && now - began >= pace;
    notify = passes && !notified && (stuck || now - began >= BOUND_TRACED_NS);
    if (passes && !notify)
      break; /* keeps the lock, so that the next of several threads sees what this one submits */
    gs_biased_drop(&device->lock);
    if (!asks) {
      asks = true;
      continue;
    }
    if (under && stuck)
      set_stuck(device, now - began, pace);
    if (notify && now - began >= BOUND_TRACED_NS)
      gs_trace(GS_TRACE_BOUND, device->ordinal, now - began, (uint64_t)bound);
    notified = notified || notify;
    passes = false;
    if (notify)
      continue;
    if (marks == 0 && gs_stream_open(stream))
      gs_mark_record(stream, false);
    nap_in_turn(device);
  }
  __atomic_sub_fetch(&device->slot->waiting, 1, __ATOMIC_SEQ_CST);
  errno = saved;
  return passes;
}
