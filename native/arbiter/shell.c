/* The arbiter's thread: sees what tenants wrote in their pages, asks the core of each device, writes lease words.
 *
 * One mutex guards everything here; every API call and every wake of the thread is one critical section that ends with
 * the devices decided and the timer armed. Futexes are woken after it, so that a tenant that runs at once never finds
 * the mutex held. The mutex inherits priority: the thread is real-time, its callers in Python are not. */
#define _GNU_SOURCE /* pthread_setname_np */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "arbiter/shell_state.h"

void arbiter_release_and_wake(gs_arbiter *a) {
  uint32_t *wake[WAKES_MAX];
  int n = a->nwakes;
  memcpy(wake, a->wake, (size_t)n * sizeof wake[0]);
  a->nwakes = 0;
  pthread_mutex_unlock(&a->lock);
  /* The page may be unmapped by now: a wake at an address without memory fails with EFAULT and hurts nobody. */
  for (int i = 0; i < n; i++)
    syscall(SYS_futex, wake[i], FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static const uint32_t kinds[] = {
    [GS_CORE_LEASE] = GS_EVENT_LEASE,       [GS_CORE_AGAIN] = GS_EVENT_BESIDE, [GS_CORE_REVOKE] = GS_EVENT_REVOKE,
    [GS_CORE_HANDOVER] = GS_EVENT_HANDOVER, [GS_CORE_LATE] = GS_EVENT_LATE,    [GS_CORE_WAKE] = GS_EVENT_WAKE,
    [GS_CORE_DRAINED] = GS_EVENT_DRAINED,   [GS_CORE_LEFT] = GS_EVENT_LEFT,
};

void arbiter_record(gs_arbiter *a, uint32_t device, const struct gs_core_decision *d, uint64_t now) {
  a->event[a->nevents++ % GS_ARBITER_EVENTS] = (struct gs_event){
      .t_ns = now,
      .kind = kinds[d->action],
      .device = device,
      .grant = handle_of(a, d->grant),
      .other = d->other < 0 ? -1 : handle_of(a, d->other),
      .receipt = d->receipt,
  };
}

/* ---- the pages ---- */

void arbiter_wake(gs_arbiter *a, uint32_t *word) {
  if (a->nwakes < WAKES_MAX)
    a->wake[a->nwakes++] = word;
}

void arbiter_set_lease(gs_arbiter *a, struct entry *e, uint32_t ordinal, bool held) {
  uint32_t *word = &e->limits->device[ordinal].lease;
  uint32_t value = load32(word);
  if (((value & GS_LEASE_HELD) != 0) == held)
    return;
  /* A rank counts its collective and then looks here; we write here and then look at its count: one of us sees the
   * other. */
  __atomic_store_n(word, value + 1, __ATOMIC_SEQ_CST);
  arbiter_wake(a, word);
}

void arbiter_set_bound(const gs_arbiter *a, struct entry *e, uint32_t ordinal, enum gs_core_company company) {
  struct gs_device_limits *d = &e->limits->device[ordinal];
  /* What is in flight when an interactive grant wakes is most of what it waits for. */
  uint64_t bound = company == GS_CORE_ALONE    ? a->config.bound_alone_ns
                   : company == GS_CORE_BESIDE ? a->config.bound_ns
                                               : a->config.bound_ns / 4;
  __atomic_store_n(&d->inflight_bound_ns, bound, __ATOMIC_RELEASE);
  __atomic_store_n(&d->contended, company != GS_CORE_ALONE, __ATOMIC_RELEASE);
}

uint32_t arbiter_slots_of(const struct entry *e) {
  uint32_t high = load32(&e->limits->slots_high);
  return high < GS_MAX_SLOTS ? high : GS_MAX_SLOTS;
}

void arbiter_look_at(struct entry *e, uint32_t ordinal, uint64_t now, struct gs_core_view *view) {
  uint32_t lease = load32(&e->limits->device[ordinal].lease), high = arbiter_slots_of(e);
  uint64_t memory = 0;
  *view = (struct gs_core_view){.drained = 1, .busy_ns = e->dead_busy_ns[ordinal]};
  for (uint32_t i = 0; i < high; i++) {
    const struct gs_slot *slot = &e->usage->slot[i];
    if (load32(&slot->state) != GS_SLOT_LIVE)
      continue;
    const struct gs_slot_device *d = &slot->device[ordinal];
    uint64_t queue_end = load64(&d->queue_end_ns);
    if (queue_end > now + QUEUE_CLAIM_MAX_NS)
      queue_end = now + QUEUE_CLAIM_MAX_NS;
    view->live++;
    view->waiting += load32(&d->waiting) != 0;
    view->launches += load64(&d->launches);
    view->busy_ns += load64(&d->busy_ns);
    if (queue_end > view->busy_until_ns)
      view->busy_until_ns = queue_end;
    bool empty = load32(&d->inflight) == 0 && queue_end <= now;
    /* of ranks that are uneven one may have submitted since it said so */
    bool said = load32(&d->drained) == lease && !(e->cuts && e->cuts->uneven);
    if (!said && !empty)
      view->drained = 0;
    memory += load64(&d->memory_bytes);
  }
  e->live = view->live;
  e->memory_bytes[ordinal] = memory;
  if (memory > e->memory_peak_bytes[ordinal])
    e->memory_peak_bytes[ordinal] = memory;
}

void arbiter_observe(gs_arbiter *a, int32_t grant, uint64_t now) {
  struct entry *e = &a->grant[grant];
  struct gs_core_view view[GS_MAX_DEVICES];
  uint32_t wanted = 0;
  for (uint32_t o = 0; o < e->ndevices; o++) {
    arbiter_look_at(e, o, now, &view[o]);
    wanted += view[o].waiting;
  }
  for (uint32_t o = 0; o < e->ndevices; o++) {
    view[o].wanted = wanted;
    view[o].spins = e->cuts && e->cuts->uneven;
    gs_core_observe(a->core[e->device[o]], grant, &view[o]);
  }
}

static void observe_on(gs_arbiter *a, int32_t grant, uint32_t device, uint64_t now) {
  struct entry *e = &a->grant[grant];
  struct gs_core_view view;
  if (e->cuts) { /* all its devices are one wish */
    arbiter_observe(a, grant, now);
    return;
  }
  arbiter_look_at(e, e->ordinal[device], now, &view);
  gs_core_observe(a->core[device], grant, &view);
}

/* ---- deciding ---- */

void arbiter_carry_out(gs_arbiter *a, uint32_t device, const struct gs_core_decision *d, uint64_t now) {
  struct entry *e = &a->grant[d->grant];
  uint32_t ordinal = e->ordinal[device];
  switch ((enum gs_core_action)d->action) {
    case GS_CORE_CONTENDED: arbiter_set_bound(a, e, ordinal, (enum gs_core_company)d->value); return;
    case GS_CORE_LEASE:
    case GS_CORE_AGAIN: arbiter_set_lease(a, e, ordinal, true); break;
    case GS_CORE_REVOKE:
      if (e->cuts) /* before its ranks see the revoke */
        arbiter_wake_cut(a, e, arbiter_cut(e, now));
      arbiter_set_lease(a, e, ordinal, false);
      break;
    case GS_CORE_HANDOVER:
    case GS_CORE_LATE:
    case GS_CORE_WAKE:
    case GS_CORE_DRAINED:
    case GS_CORE_LEFT: break;
  }
  arbiter_record(a, device, d, now);
}

/* To those that have a lease: whether others' work is on the device beside theirs. */
static void publish_foreign_work(gs_arbiter *a, uint32_t device, const int32_t *watched, int n, uint64_t now) {
  for (int i = 0; i < n; i++) {
    if (!gs_core_holds(a->core[device], watched[i]))
      continue;
    struct entry *e = &a->grant[watched[i]];
    struct gs_device_limits *limits = &e->limits->device[e->ordinal[device]];
    uint32_t foreign = (uint32_t)gs_core_foreign_work(a->core[device], watched[i]);
    uint32_t before = load32(&limits->foreign_work);
    if ((before & 1) == foreign)
      continue;
    __atomic_store_n(&limits->foreign_work_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&limits->foreign_work, ((before >> 1) + 1) << 1 | foreign, __ATOMIC_RELEASE);
  }
}

static void decide(gs_arbiter *a, uint32_t device, uint64_t now) {
  struct gs_core_decision decisions[GS_CORE_DECISIONS];
  int32_t watched[GS_ARBITER_MAX_GRANTS];
  int nwatched = gs_core_watched(a->core[device], watched);
  for (int i = 0; i < nwatched; i++)
    observe_on(a, watched[i], device, now);
  int n = gs_core_step(a->core[device], now, decisions, &a->due_ns[device]);
  nwatched = gs_core_watched(a->core[device], watched);
  publish_foreign_work(a, device, watched, nwatched, now); /* before the lease: its holder meters by it */
  for (int i = 0; i < n; i++)
    arbiter_carry_out(a, device, &decisions[i], now);
}

/* Heartbeats, and a look at everybody: finds what a bell that never rang would have said. Nothing when no process is
 * joined. */
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
  /* What a pass wakes must find room; what does not get its pass is due at once in the next section. */
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
    gs_core_heard(a->core[e->device[o]], grant);
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
      /* All are edge-triggered and never read: it saves a call, and a tenant holds the same bell and could make a read
       * of it block. */
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
  /* Faults of its own stay deliverable: a truncated page is survived through SIGBUS. */
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
