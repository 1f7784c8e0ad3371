/* The arbiter's thread: reads what tenants wrote in their pages, steps the core of each device, writes lease words.
 *
 * One mutex guards everything here. Each API call and each wake of the thread is one critical section, at whose end all
 * devices have decided and the timer is armed. Futexes are woken after it, so that the mutex is free when a tenant
 * runs. The mutex inherits priority: the thread is real-time, its callers in Python are not. */
#define _GNU_SOURCE /* pthread_setname_np */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "arbiter/thread/state.h"

/* ---- deciding ---- */

/* Publishes how many other grants have work on the device to each holder, and to those whose work may outlive their
 * lease. */
static void publish_foreign_work(gs_arbiter *a, uint32_t device, uint64_t now) {
  int32_t watched[GS_ARBITER_MAX_GRANTS];
  int n = gs_core_watched(a->core[device], watched);
  for (int i = 0; i < n; i++) {
    struct entry *e = &a->grant[watched[i]];
    uint32_t ordinal = e->ordinal[device];
    __atomic_store_n(&e->limits->device[ordinal].spare_milli, gs_core_spare_milli(a->core[device], watched[i]),
                     __ATOMIC_RELAXED);
    arbiter_publish_foreign_work(e, ordinal, gs_core_foreign_work(a->core[device], watched[i]), now);
  }
}

static void decide(gs_arbiter *a, uint32_t device, uint64_t now) {
  struct gs_core_decision decisions[GS_CORE_DECISIONS];
  int32_t watched[GS_ARBITER_MAX_GRANTS];
  int nwatched = gs_core_watched(a->core[device], watched);
  for (int i = 0; i < nwatched; i++)
    arbiter_observe(a, watched[i], now);
  int n = gs_core_step(a->core[device], now, decisions, &a->due_ns[device]);
  publish_foreign_work(a, device, now); /* before the lease: its holder meters by it */
  for (int i = 0; i < n; i++)
    arbiter_carry_out(a, device, &decisions[i], now);
}

/* Writes the heartbeats and checks all grants, in case a bell was missed. Stops when no process has joined. */
static void tick(gs_arbiter *a, uint64_t now) {
  bool any = false;
  for (int32_t g = 0; g < GS_ARBITER_MAX_GRANTS; g++) {
    struct entry *e = &a->grant[g];
    if (!e->present)
      continue;
    arbiter_observe(a, g, now);
    e->bells = 0;
    if (e->muted) {
      struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = (uint64_t)e->generation << 32 | (uint32_t)g};
      e->muted = epoll_ctl(a->epoll, EPOLL_CTL_MOD, e->bell, &event) < 0;
    }
    if (e->live == 0 && !e->muted)
      continue;
    any = true;
    __atomic_add_fetch(&e->limits->heartbeat, 1, __ATOMIC_RELEASE);
  }
  for (uint32_t d = 0; d < GS_ARBITER_MAX_DEVICES; d++)
    if (a->core[d])
      a->due_ns[d] = now;
  a->tick_ns = any ? now + TICK_NS : NEVER;
}

void arbiter_run(gs_arbiter *a, uint64_t now) {
  if (a->tick_ns <= now)
    tick(a, now);
  /* There must be room for the words of a pass. Devices without a pass are due in the next section. */
  for (bool again = true; again && a->nwakes <= WAKES_MAX - WAKES_PASS;) {
    for (uint32_t d = 0; d < GS_ARBITER_MAX_DEVICES; d++)
      if (a->core[d] && a->due_ns[d] <= now)
        decide(a, d, now);
    again = a->ngangs && arbiter_run_gangs(a, now);
  }
  if (a->ngangs)
    arbiter_follow_gangs(a, now);
  uint64_t next = a->tick_ns < a->gangs_due_ns ? a->tick_ns : a->gangs_due_ns;
  for (uint32_t d = 0; d < GS_ARBITER_MAX_DEVICES; d++)
    if (a->core[d] && a->due_ns[d] < next)
      next = a->due_ns[d];
  if (next == a->armed_ns)
    return;
  struct itimerspec at = {0}; /* zero disarms */
  if (next != NEVER) {
    at.it_value.tv_sec = (time_t)(next / 1000000000u);
    at.it_value.tv_nsec = (long)(next % 1000000000u);
  }
  timerfd_settime(a->timer, TFD_TIMER_ABSTIME, &at, NULL);
  a->armed_ns = next;
}

void arbiter_changed(gs_arbiter *a, int32_t grant, uint64_t now) {
  struct entry *e = &a->grant[grant];
  arbiter_observe(a, grant, now);
  for (uint32_t o = 0; o < e->ndevices; o++)
    a->due_ns[e->device[o]] = now;
  if (e->live && a->tick_ns == NEVER)
    a->tick_ns = now;
}

/* ---- the thread ---- */

static void on_bell(gs_arbiter *a, uint64_t data, uint64_t now) {
  int32_t grant = (int32_t)(data & 0xffffffff);
  struct entry *e = &a->grant[grant];
  if (!e->present || e->generation != data >> 32)
    return;
  for (uint32_t o = 0; o < e->ndevices; o++)
    gs_core_bell_rang(a->core[e->device[o]], grant);
  arbiter_changed(a, grant, now);
  if (++e->bells <= BELLS_PER_TICK)
    return;
  struct epoll_event none = {.events = 0, .data.u64 = data};
  e->muted = epoll_ctl(a->epoll, EPOLL_CTL_MOD, e->bell, &none) == 0;
  if (a->tick_ns == NEVER)
    a->tick_ns = now + TICK_NS;
}

static void *serve(void *argument) {
  gs_arbiter *a = argument;
  struct epoll_event events[64];
  bool stopping = false;
  while (!stopping) {
    int n = epoll_wait(a->epoll, events, 64, -1);
    pthread_mutex_lock(&a->lock);
    uint64_t now = now_ns();
    for (int i = 0; i < n; i++) {
      /* All are edge-triggered and never read. That saves a system call, and a tenant, which holds the same eventfd,
       * could make a read block. */
      if (events[i].data.u64 == TIMER)
        a->armed_ns = NEVER;
      else if (events[i].data.u64 != STOPPER)
        on_bell(a, events[i].data.u64, now);
    }
    stopping = a->stopping;
    if (!stopping)
      arbiter_run(a, now);
    arbiter_release_and_wake(a);
  }
  return NULL;
}

int arbiter_start_thread(gs_arbiter *a, struct gs_err *err) {
  pthread_attr_t attributes;
  struct sched_param priority = {.sched_priority = 1};
  sigset_t mask, old;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  sigfillset(&mask);
  /* Signals for the thread's own faults stay unblocked: the SIGBUS of a truncated page is handled. */
  sigdelset(&mask, SIGBUS);
  sigdelset(&mask, SIGSEGV);
  sigdelset(&mask, SIGFPE);
  sigdelset(&mask, SIGILL);
  pthread_sigmask(SIG_SETMASK, &mask, &old);
  int rc = EPERM;
  if (a->config.realtime) {
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
    pthread_attr_setschedparam(&attributes, &priority);
    rc = pthread_create(&a->thread, &attributes, serve, a);
    pthread_attr_setinheritsched(&attributes, PTHREAD_INHERIT_SCHED);
  }
  if (rc == EPERM)
    rc = pthread_create(&a->thread, &attributes, serve, a);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  pthread_attr_destroy(&attributes);
  if (rc)
    return gs_fail(err, -rc, "cannot start the arbiter's thread: %s", strerror(rc));
  pthread_setname_np(a->thread, "gs-arbiter");
  return 0;
}
