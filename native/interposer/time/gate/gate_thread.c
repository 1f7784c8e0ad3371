/* The only thread that the interposer adds to a program: it notices revokes, reports when the device has drained, and
 * watches the daemon. */
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interposer/os/system.h"
#include "interposer/os/thread.h"
#include "interposer/os/waits.h"
#include "interposer/process/join.h"
#include "interposer/process/trace.h"
#include "interposer/time/gate/gate.h"
#include "interposer/time/gate/gate_thread.h"
#include "interposer/time/marks/marks.h"
#include "interposer/time/marks/query.h"
#include "interposer/time/marks/publish.h"
#include "interposer/time/marks/residency.h"
#include "interposer/time/streams/capture.h"
#include "page/gs_clock.h"

enum {
  TICK_ACTIVE_NS = 50000000, /* interval of the checks of the heartbeat while the program submits */
  TICK_IDLE_NS = 500000000,
  POLL_IDLE_NS = 10000000,   /* interval of checks of an idle program's leases if the kernel cannot wait for several */
  TICK_WORKING_NS = 5000000, /* while work is in flight */
  TICK_CONTENDED_NS = GS_LOOK_NS, /* if others wait: interval of updates of the estimated end */
  DRAIN_POLL_NS = 100000,
  DRAIN_SLOW_NS = 1000000,
  DRAIN_FAST_FOR_NS = 10000000 /* a longer drain is due to a long kernel: check less often */
};

static bool used(const struct gs_time_device *device) {
  return __atomic_load_n(&device->meter, __ATOMIC_ACQUIRE) != NULL;
}

/* Checks what is done: queries work that is overdue by `patience` ns, and reaps completed marks. False once the process
 * is exiting. */
static bool look(struct gs_time *time, struct gs_time_device *device, uint64_t patience) {
  bool go;
  gs_latch_take(&time->driving);
  go = !__atomic_load_n(&time->stop, __ATOMIC_ACQUIRE);
  if (go) {
    if (gs_overdue(device, gs_now(), patience))
      gs_query_streams(device, patience);
    gs_reap(device);
  }
  gs_latch_drop(&time->driving);
  return go;
}

/* Time that the work in flight takes alongside the grant's other processes. Called with the lock held. */
static uint64_t rest_of(struct gs_time_device *device, uint64_t now) {
  uint32_t residents = gs_residents(device);
  return gs_rest(device, now) * (residents > 1 ? residents : 1);
}

/* Checks a device whose lease was revoked. Returns the ns until the next check; 0: nothing is left on it. The arbiter
 * is notified twice: when little is left, as far as known, and when nothing is. */
static uint64_t drain(struct gs_time_device *device) {
  uint64_t now, rest;
  bool drained, reported, idle;
  gs_biased_take(&device->lock);
  now = gs_now();
  rest = rest_of(device, now);
  reported = device->slot->drained == device->draining;
  /* A rank that may still submit, or is about to, does not count as drained; nor does a process with work of functions
   * never observed, however short its estimate. */
  drained = rest < GS_DRAINED_NS && device->meter->unobserved == 0 && !gs_under_cut(device) &&
            __atomic_load_n(&device->claims, __ATOMIC_SEQ_CST) == 0;
  idle = drained && device->slot->inflight == 0;
  if (drained) {
    __atomic_store_n(&device->slot->drained, device->draining, __ATOMIC_RELEASE);
    gs_notice_turn(device, device->draining, now);
  }
  gs_biased_drop(&device->lock);
  if (drained && !reported)
    gs_trace(GS_TRACE_DRAINED, device->ordinal, device->draining, now - device->revoked);
  if (idle || (drained && !reported))
    gs_ring();
  if (idle) {
    device->draining = 0;
    return 0;
  }
  rest = rest < GS_DRAINED_NS ? DRAIN_POLL_NS : rest - (GS_DRAINED_NS - 1);
  if (now - device->revoked > DRAIN_FAST_FOR_NS)
    return DRAIN_SLOW_NS;
  return rest < DRAIN_POLL_NS ? rest : DRAIN_POLL_NS;
}

static uint64_t in_flight(struct gs_time_device *device, uint64_t now) {
  gs_biased_take(&device->lock);
  uint64_t rest = rest_of(device, now);
  gs_biased_drop(&device->lock);
  return rest;
}

static bool has_to_look(const struct gs_time_device *device) {
  uint64_t now = gs_now();
  bool marks = __atomic_load_n(&device->meter->marks, __ATOMIC_RELAXED) > 0;
  return __atomic_load_n(&device->unobserved_streams, __ATOMIC_RELAXED) > 0 ||
         (now - __atomic_load_n(&device->looked_at, __ATOMIC_RELAXED) >= TICK_CONTENDED_NS &&
          (marks || gs_overdue(device, now, GS_LOOK_NS)));
}

/* Interval of looks at work in flight: short where nothing else shows when it is done. */
static uint64_t look_again(const struct gs_time_device *device) {
  if (__atomic_load_n(&device->unobserved_streams, __ATOMIC_RELAXED) > 0 && !gs_time()->profiled) {
    uint64_t interval = (gs_now() - __atomic_load_n(&device->unobserved_since, __ATOMIC_RELAXED)) / 16;
    return interval < DRAIN_POLL_NS ? DRAIN_POLL_NS : interval < TICK_CONTENDED_NS ? interval : TICK_CONTENDED_NS;
  }
  return __atomic_load_n(&device->limits->contended, __ATOMIC_RELAXED) ? TICK_CONTENDED_NS : TICK_WORKING_NS;
}

/* Whether the end of this process's work has to be found without a lease. */
static bool has_to_drain(const struct gs_time_device *device, uint32_t lease) {
  bool submitted = __atomic_load_n(&device->slot->inflight, __ATOMIC_RELAXED) > 0 &&
                   !__atomic_load_n(&device->local, __ATOMIC_RELAXED); /* with the local budget it may */
  return lease != device->seen || __atomic_load_n(&device->slot->drained, __ATOMIC_ACQUIRE) != lease || submitted ||
         gs_under_cut(device);
}

/* The program launches nothing, perhaps for long: its waits among the grant's other processes are charged all the same.
 * One that launches does this itself. Returns the ns until the next check. */
static uint64_t explain(struct gs_time_device *device, uint64_t tick) {
  bool sooner;
  if (!gs_meter_unexplained(device->meter))
    return tick;
  gs_biased_take(&device->lock);
  gs_meter_explain(device->meter, gs_now());
  sooner = gs_publish(device, gs_now());
  gs_biased_drop(&device->lock);
  if (sooner)
    gs_tell_sooner(device);
  return gs_meter_unexplained(device->meter) && tick > TICK_WORKING_NS ? TICK_WORKING_NS : tick;
}

/* Checks one device; returns how long nothing has to be done for it, in ns. launches: the program has launched since the
 * last check. */
static uint64_t serve(struct gs_time *time, struct gs_time_device *device, uint64_t tick, bool launches) {
  uint32_t lease = __atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE);
  uint64_t again;
  gs_look_at_turn(device);
  bool revoked = !(lease & GS_LEASE_HELD);
  if (lease != device->seen)
    device->draining = 0;
  if (revoked && !device->draining && has_to_drain(device, lease)) {
    device->draining = lease;
    device->revoked = gs_now();
    if (lease != device->seen)
      gs_trace(GS_TRACE_REVOKED, device->ordinal, lease, in_flight(device, device->revoked));
    else /* it had drained and has submitted again */
      gs_ring();
  }
  device->seen = lease;
  if (device->draining) {
    if (!look(time, device, 0))
      return tick;
    again = drain(device);
    if (again)
      return again;
  }
  if (__atomic_load_n(&device->slot->inflight, __ATOMIC_RELAXED) == 0)
    return launches ? tick : explain(device, tick);
  /* A program that launches reaps its marks itself, and is delayed whenever this thread takes the meter's lock from
   * it. */
  if (has_to_look(device))
    look(time, device, GS_LOOK_NS);
  again = look_again(device);
  return again < tick ? again : tick;
}

static void wait_for_change(struct gs_time *time, uint64_t timeout) {
  struct gs_futex_waiter waiters[GS_MAX_DEVICES];
  uint32_t count = 0;
  for (uint32_t i = 0; i < gs_process->ndevices; i++) {
    const struct gs_time_device *device = &time->device[i];
    if (!used(device))
      continue;
    waiters[count++] = gs_waits_for(&device->limits->lease, device->seen, true);
  }
  if (count > 1 && gs_futex_wait_any(waiters, count, timeout))
    return;
  uint64_t poll = timeout < TICK_IDLE_NS ? TICK_CONTENDED_NS : POLL_IDLE_NS;
  if (count != 1 && timeout > poll)
    timeout = poll; /* of several words only the first is waited for; with none the process may get a device */
  if (count == 0)
    gs_nap(timeout);
  else
    gs_futex_wait((const uint32_t *)(uintptr_t)waiters[0].address, (uint32_t)waiters[0].value, timeout, true);
}

/* Announces a long sleep. A launch counts its work in flight and then reads this word; this thread writes the word and
 * then reads the count. So at least one of the two sees the other's write. */
static bool may_doze(struct gs_time *time) {
  __atomic_store_n(&time->dozes, 1, __ATOMIC_SEQ_CST);
  for (uint32_t i = 0; i < gs_process->ndevices; i++)
    if (used(&time->device[i]) && __atomic_load_n(&time->device[i].slot->inflight, __ATOMIC_SEQ_CST) > 0)
      return false;
  return true;
}

/* Joins again with the process's slot if the daemon came back or the connection to it was lost. */
static void watch_daemon(uint64_t now, uint64_t *tried) {
  uint32_t epoch = __atomic_load_n(&gs_process->limits->daemon_epoch, __ATOMIC_ACQUIRE);
  bool lost = gs_process->socket < 0;
  struct gs_err err;
  char byte;
  if (!lost && epoch == gs_process->daemon_epoch) {
    ssize_t got = recv(gs_process->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    lost = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  }
  if ((!lost && epoch == gs_process->daemon_epoch) || now - *tried < TICK_ACTIVE_NS)
    return;
  *tried = now;
  gs_rejoin(&err);
}

static void *gate_thread(void *argument) {
  struct gs_time *time = argument;
  struct gs_heartbeat heartbeat = {0, 0};
  uint64_t launches_seen = 0, active_at = gs_now(), tried = 0, looked = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  prctl(PR_SET_NAME, "gpushare-gate");
  gs_latch_take(&time->driving);
  if (!__atomic_load_n(&time->stop, __ATOMIC_ACQUIRE))
    gs_real.cuThreadExchangeStreamCaptureMode(&mode);
  gs_latch_drop(&time->driving);
  while (!__atomic_load_n(&time->stop, __ATOMIC_ACQUIRE)) {
    uint64_t now = gs_now(), launches = 0, wait;
    bool launched;
    for (uint32_t i = 0; i < gs_process->ndevices; i++)
      launches += __atomic_load_n(&time->device[i].slot->launches, __ATOMIC_RELAXED) +
                  __atomic_load_n(&time->device[i].slot->waiting, __ATOMIC_RELAXED);
    launched = launches != launches_seen;
    if (launched)
      active_at = now;
    wait = launched ? TICK_WORKING_NS : now - active_at < TICK_IDLE_NS ? TICK_ACTIVE_NS : TICK_IDLE_NS;
    launches_seen = launches;
    if (now - looked >= TICK_ACTIVE_NS) {
      /* After a long sleep the last heartbeat read is old because of the sleep, not because of the daemon. */
      if (now - looked > 2 * (uint64_t)TICK_ACTIVE_NS)
        heartbeat.time = 0;
      looked = now;
      gs_daemon_check(&heartbeat, now);
      gs_captures_check();
      watch_daemon(now, &tried);
    }
    for (uint32_t i = 0; i < gs_process->ndevices; i++) {
      uint64_t again = used(&time->device[i]) ? serve(time, &time->device[i], wait, launched) : wait;
      if (again < wait)
        wait = again;
    }
    if (wait <= TICK_WORKING_NS || may_doze(time))
      wait_for_change(time, wait);
    __atomic_store_n(&time->dozes, 0, __ATOMIC_RELAXED);
  }
  return NULL;
}

/* The driver tears itself down in exit handlers that were registered before this one, and so run after it. */
static void stop_at_exit(void) {
  struct gs_time *time = gs_time();
  if (!time)
    return;
  __atomic_store_n(&time->stop, 1, __ATOMIC_RELEASE);
  /* Never released: then the gate thread is not in the driver and will not enter it again. */
  for (int i = 0; i < 1000 && !gs_latch_try(&time->driving); i++)
    nanosleep(&(struct timespec){0, 100000}, NULL);
  for (uint32_t i = 0; i < gs_process->ndevices; i++) {
    struct gs_time_device *device = &time->device[i];
    if (!used(device))
      continue;
    gs_biased_take(&device->lock);
    gs_meter_end(device->meter);
    gs_publish(device, gs_now());
    gs_biased_drop(&device->lock);
  }
}

void gs_gate_thread_start(void) {
  struct gs_time *time = gs_time();
  uint32_t no = 0;
  if (!__atomic_compare_exchange_n(&time->thread_started, &no, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    /* A device is added: the thread waits on a set of words without it, and includes it within one tick. */
    return;
  }
  int failed = gs_thread_start(gate_thread, time);
  if (failed)
    gs_say("no thread for the gate (%d): a revoked lease is seen as drained only after its deadline", failed);
  else
    atexit(stop_at_exit);
}
