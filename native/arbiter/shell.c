/* The arbiter's thread: sees what tenants wrote in their pages, asks the core of each device, writes lease words.
 *
 * One mutex guards everything here; every API call and every wake of the thread is one critical section that ends with the
 * devices decided and the timer armed. Futexes are woken after it, so that a tenant that runs at once never finds the mutex
 * held. The mutex inherits priority: the thread is real-time, its callers in Python are not. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "gs_arbiter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define NEVER UINT64_MAX
#define TICK_NS UINT64_C(50000000)
/* What a tenant may claim to have queued; its own word is all there is. */
#define QUEUE_CLAIM_MAX_NS UINT64_C(1000000000)
/* Bells of one grant per tick before it is not listened to until the next: a tenant that rings in a loop costs no core. */
#define BELLS_PER_TICK 500
#define NO_ORDINAL 0xff
enum { EVENTS = 4096, WAKES_MAX = 512 };

struct entry {
  bool present, muted;
  uint32_t generation; /* of this place in the table: tells late epoll events from fresh ones */
  struct gs_limits *limits;
  struct gs_usage *usage;
  int bell; /* our own duplicate */
  uint32_t bells, live, ndevices;
  uint32_t device[GS_MAX_DEVICES];                /* by ordinal */
  uint8_t ordinal[GS_ARBITER_MAX_DEVICES];        /* by node index */
  uint64_t dead_busy_ns[GS_MAX_DEVICES];          /* metered by processes that are gone */
  uint64_t memory_bytes[GS_MAX_DEVICES], memory_peak_bytes[GS_MAX_DEVICES];
};

struct gs_arbiter {
  struct gs_arbiter_config config;
  pthread_mutex_t lock;
  pthread_t thread;
  int epoll, timer, stopper;
  bool stopping;
  int32_t next_handle;
  uint64_t armed_ns, tick_ns; /* when the timer is set to fire, when the next tick is due; NEVER: not */
  gs_core *core[GS_ARBITER_MAX_DEVICES];
  uint64_t due_ns[GS_ARBITER_MAX_DEVICES]; /* when a core wants its next step */
  struct entry grant[GS_ARBITER_MAX_GRANTS];
  uint32_t *wake[WAKES_MAX];
  int nwakes;
  uint64_t nevents; /* ever recorded: the sequence number of the newest */
  struct gs_event event[EVENTS];
};

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint32_t load32(const uint32_t *word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static uint64_t load64(const uint64_t *word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void release_and_wake(gs_arbiter *a) {
  uint32_t *wake[WAKES_MAX];
  int n = a->nwakes;
  memcpy(wake, a->wake, (size_t)n * sizeof wake[0]);
  a->nwakes = 0;
  pthread_mutex_unlock(&a->lock);
  /* The page may be unmapped by now: a wake at an address without memory fails with EFAULT and hurts nobody. */
  for (int i = 0; i < n; i++)
    syscall(SYS_futex, wake[i], FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void record(gs_arbiter *a, uint64_t now, enum gs_event_kind kind, uint32_t device, int32_t grant, int32_t other,
                   uint64_t value) {
  a->event[a->nevents++ % EVENTS] = (struct gs_event){now, (uint32_t)kind, device, grant, other, value};
}

/* ---- the pages ---- */

static void set_lease(gs_arbiter *a, struct entry *e, uint32_t ordinal, bool held) {
  uint32_t *word = &e->limits->device[ordinal].lease;
  uint32_t value = load32(word);
  if (((value & GS_LEASE_HELD) != 0) == held)
    return;
  __atomic_store_n(word, value + 1, __ATOMIC_RELEASE);
  a->wake[a->nwakes++] = word;
}

static void set_bound(const gs_arbiter *a, struct entry *e, uint32_t ordinal, bool contended) {
  struct gs_device_limits *d = &e->limits->device[ordinal];
  __atomic_store_n(&d->inflight_bound_ns, contended ? a->config.bound_ns : a->config.bound_alone_ns, __ATOMIC_RELEASE);
  __atomic_store_n(&d->contended, contended, __ATOMIC_RELEASE);
}

static uint32_t slots_of(const struct entry *e) {
  uint32_t high = load32(&e->limits->slots_high);
  return high < GS_MAX_SLOTS ? high : GS_MAX_SLOTS;
}

static void look_at(struct entry *e, uint32_t ordinal, uint64_t now, struct gs_core_view *view) {
  uint32_t lease = load32(&e->limits->device[ordinal].lease), high = slots_of(e);
  uint64_t memory = 0;
  *view = (struct gs_core_view){.drained = 1};
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
    if (queue_end > view->busy_until_ns)
      view->busy_until_ns = queue_end;
    bool empty = load32(&d->inflight) == 0 && queue_end <= now;
    if (load32(&d->drained) != lease && !empty)
      view->drained = 0;
    memory += load64(&d->memory_bytes);
  }
  e->live = view->live;
  e->memory_bytes[ordinal] = memory;
  if (memory > e->memory_peak_bytes[ordinal])
    e->memory_peak_bytes[ordinal] = memory;
}

static void observe(gs_arbiter *a, int32_t grant, uint32_t ordinal, uint64_t now) {
  struct entry *e = &a->grant[grant];
  struct gs_core_view view;
  look_at(e, ordinal, now, &view);
  gs_core_observe(a->core[e->device[ordinal]], grant, &view);
}

/* ---- deciding ---- */

static void carry_out(gs_arbiter *a, uint32_t device, const struct gs_core_decision *d, uint64_t now) {
  struct entry *e = &a->grant[d->grant];
  uint32_t ordinal = e->ordinal[device];
  switch ((enum gs_core_action)d->action) {
  case GS_CORE_LEASE:
    set_lease(a, e, ordinal, true);
    record(a, now, GS_EVENT_LEASE, device, d->grant, d->other, d->value);
    break;
  case GS_CORE_REVOKE:
    set_lease(a, e, ordinal, false);
    record(a, now, GS_EVENT_REVOKE, device, d->grant, d->other, d->value);
    break;
  case GS_CORE_HANDOVER:
    record(a, now, GS_EVENT_HANDOVER, device, d->grant, d->other, d->value);
    break;
  case GS_CORE_LATE:
    record(a, now, GS_EVENT_LATE, device, d->grant, d->other, d->value);
    break;
  case GS_CORE_WAKE:
    record(a, now, GS_EVENT_WAKE, device, d->grant, d->other, d->value);
    break;
  case GS_CORE_CONTENDED:
    set_bound(a, e, ordinal, d->value != 0);
    break;
  }
}

static void decide(gs_arbiter *a, uint32_t device, uint64_t now) {
  struct gs_core_decision decisions[GS_CORE_DECISIONS];
  int32_t watched[GS_ARBITER_MAX_GRANTS];
  int nwatched = gs_core_watched(a->core[device], watched);
  for (int i = 0; i < nwatched; i++)
    observe(a, watched[i], a->grant[watched[i]].ordinal[device], now);
  int n = gs_core_step(a->core[device], now, decisions, &a->due_ns[device]);
  for (int i = 0; i < n; i++)
    carry_out(a, device, &decisions[i], now);
}

/* Heartbeats, and a look at everybody: finds what a bell that never rang would have said. Nothing when no process is joined. */
static void tick(gs_arbiter *a, uint64_t now) {
  bool any = false;
  for (int32_t g = 0; g < GS_ARBITER_MAX_GRANTS; g++) {
    struct entry *e = &a->grant[g];
    if (!e->present)
      continue;
    for (uint32_t o = 0; o < e->ndevices; o++)
      observe(a, g, o, now);
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

/* Ends every critical section that may have changed something. */
static void run(gs_arbiter *a, uint64_t now) {
  if (a->tick_ns <= now)
    tick(a, now);
  uint64_t next = a->tick_ns;
  for (uint32_t d = 0; d < GS_ARBITER_MAX_DEVICES; d++) {
    if (!a->core[d])
      continue;
    /* A step makes at most GS_CORE_DECISIONS wakes; what finds no room is due at once in the next section. */
    if (a->due_ns[d] <= now && a->nwakes <= WAKES_MAX - GS_CORE_DECISIONS)
      decide(a, d, now);
    if (a->due_ns[d] < next)
      next = a->due_ns[d];
  }
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

static void changed(gs_arbiter *a, int32_t grant, uint64_t now) {
  struct entry *e = &a->grant[grant];
  for (uint32_t o = 0; o < e->ndevices; o++) {
    observe(a, grant, o, now);
    a->due_ns[e->device[o]] = now;
  }
  if (e->live && a->tick_ns == NEVER)
    a->tick_ns = now;
}

/* ---- the thread ---- */

#define STOPPER UINT64_C(0xffffffff)
#define TIMER UINT64_C(0xfffffffe)

static void on_bell(gs_arbiter *a, uint64_t data, uint64_t now) {
  int32_t grant = (int32_t)(data & 0xffffffff);
  struct entry *e = &a->grant[grant];
  if (!e->present || e->generation != data >> 32)
    return;
  changed(a, grant, now);
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
      if (events[i].data.u64 == TIMER) {
        uint64_t expirations;
        if (read(a->timer, &expirations, sizeof expirations) == sizeof expirations)
          a->armed_ns = NEVER;
      } else if (events[i].data.u64 != STOPPER) {
        /* Bells are edge-triggered and never read: the tenant holds the same eventfd and could make a read block. */
        on_bell(a, events[i].data.u64, now);
      }
    }
    stopping = a->stopping;
    if (!stopping)
      run(a, now);
    release_and_wake(a);
  }
  return NULL;
}

static int start_thread(gs_arbiter *a, struct gs_err *err) {
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

/* ---- API ---- */

void gs_arbiter_defaults(struct gs_arbiter_config *config) {
  *config = (struct gs_arbiter_config){
      .lease_ns = 20000000,
      .bound_ns = 2000000,
      .bound_alone_ns = 50000000,
      .revoke_overlap_ns = 1000000,
      .early_idle_ns = 200000,
      .bucket_ns = 200000000,
      .credit_floor_ns = 1000000,
      .reserve_milli = 20,
      .realtime = 1,
  };
}

static int check_config(const struct gs_arbiter_config *c, struct gs_err *err) {
  if (c->lease_ns < 1000000 || c->lease_ns > 10000000000u)
    return gs_fail(err, -EINVAL, "a lease lasts 1 ms to 10 s, not %llu ns", (unsigned long long)c->lease_ns);
  if (c->bound_ns == 0 || c->bound_alone_ns < c->bound_ns || c->revoke_overlap_ns == 0 || c->early_idle_ns == 0)
    return gs_fail(err, -EINVAL, "bounds, overlap and idle time are above 0, the bound alone is not below the other");
  if (c->credit_floor_ns == 0 || c->bucket_ns > 10000000000u || c->reserve_milli >= 1000)
    return gs_fail(err, -EINVAL, "the credit floor is above 0, a bucket is at most 10 s, the reserve below 1000 milli");
  return 0;
}

static int watch(gs_arbiter *a, int fd, uint64_t data, uint32_t flags) {
  struct epoll_event event = {.events = EPOLLIN | flags, .data.u64 = data};
  return epoll_ctl(a->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void release(gs_arbiter *a) {
  for (int i = 0; i < GS_ARBITER_MAX_GRANTS; i++)
    if (a->grant[i].present)
      close(a->grant[i].bell);
  for (int i = 0; i < GS_ARBITER_MAX_DEVICES; i++)
    gs_core_destroy(a->core[i]);
  if (a->epoll >= 0)
    close(a->epoll);
  if (a->timer >= 0)
    close(a->timer);
  if (a->stopper >= 0)
    close(a->stopper);
  pthread_mutex_destroy(&a->lock);
  free(a);
}

int gs_arbiter_create(gs_arbiter **out, const struct gs_arbiter_config *config, struct gs_err *err) {
  int rc = check_config(config, err);
  if (rc < 0)
    return rc;
  gs_arbiter *a = calloc(1, sizeof *a);
  if (!a)
    return gs_fail(err, -ENOMEM, "no memory for the arbiter");
  a->config = *config;
  a->armed_ns = a->tick_ns = NEVER;
  pthread_mutexattr_t inherit;
  pthread_mutexattr_init(&inherit);
  pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT);
  pthread_mutex_init(&a->lock, &inherit);
  pthread_mutexattr_destroy(&inherit);
  a->epoll = epoll_create1(EPOLL_CLOEXEC);
  a->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  a->stopper = eventfd(0, EFD_CLOEXEC);
  if (a->epoll < 0 || a->timer < 0 || a->stopper < 0 || watch(a, a->timer, TIMER, 0) < 0 ||
      watch(a, a->stopper, STOPPER, 0) < 0)
    rc = gs_fail(err, -errno, "cannot set the arbiter up: %s", strerror(errno));
  if (rc == 0)
    rc = start_thread(a, err);
  if (rc < 0) {
    release(a);
    return rc;
  }
  *out = a;
  return 0;
}

void gs_arbiter_destroy(gs_arbiter *a) {
  if (!a)
    return;
  pthread_mutex_lock(&a->lock);
  a->stopping = true;
  pthread_mutex_unlock(&a->lock);
  uint64_t one = 1;
  while (write(a->stopper, &one, sizeof one) < 0 && errno == EINTR) {
  }
  pthread_join(a->thread, NULL);
  release(a);
}

static int check_share(const struct gs_share *share, uint32_t n, struct gs_err *err) {
  for (uint32_t i = 0; i < n; i++) {
    if (share[i].limit_milli == 0 || share[i].limit_milli > 1000)
      return gs_fail(err, -EINVAL, "a time limit is 1 to 1000 milli, not %u", share[i].limit_milli);
    if (share[i].guarantee_milli > share[i].limit_milli)
      return gs_fail(err, -EINVAL, "a guarantee of %u milli is above its limit of %u", share[i].guarantee_milli,
                     share[i].limit_milli);
  }
  return 0;
}

/* -> the entry, or NULL with err filled. */
static struct entry *entry_of(gs_arbiter *a, int32_t grant, struct gs_err *err) {
  if (grant >= 0 && grant < GS_ARBITER_MAX_GRANTS && a->grant[grant].present)
    return &a->grant[grant];
  gs_fail(err, -ENOENT, "the arbiter has no grant %d", grant);
  return NULL;
}

static int free_handle(gs_arbiter *a, struct gs_err *err) {
  /* Round and round, so that a handle in an old event is not soon somebody else's. */
  for (int i = 0; i < GS_ARBITER_MAX_GRANTS; i++) {
    int32_t g = (a->next_handle + i) % GS_ARBITER_MAX_GRANTS;
    if (!a->grant[g].present) {
      a->next_handle = (g + 1) % GS_ARBITER_MAX_GRANTS;
      return g;
    }
  }
  return gs_fail(err, -ENOSPC, "the arbiter serves at most %d grants", GS_ARBITER_MAX_GRANTS);
}

static int make_cores(gs_arbiter *a, const uint32_t *devices, uint32_t n, uint64_t now, struct gs_err *err) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t d = devices[i];
    if (d >= GS_ARBITER_MAX_DEVICES)
      return gs_fail(err, -EINVAL, "the arbiter serves devices 0 to %d, not %u", GS_ARBITER_MAX_DEVICES - 1, d);
    for (uint32_t j = 0; j < i; j++)
      if (devices[j] == d)
        return gs_fail(err, -EINVAL, "device %u is named twice", d);
    if (!a->core[d] && gs_core_create(&a->core[d], &a->config, now) < 0)
      return gs_fail(err, -ENOMEM, "no memory for device %u", d);
  }
  return 0;
}

static int add_locked(gs_arbiter *a, struct gs_limits *limits, struct gs_usage *usage, const uint32_t *devices,
                      uint32_t ndevices, const struct gs_share *share, int bell, int32_t *grant, struct gs_err *err) {
  uint64_t now = now_ns();
  int rc = make_cores(a, devices, ndevices, now, err);
  if (rc < 0)
    return rc;
  int32_t g = free_handle(a, err);
  if (g < 0)
    return g;
  struct entry *e = &a->grant[g];
  *e = (struct entry){.generation = e->generation + 1, .limits = limits, .usage = usage, .ndevices = ndevices};
  memset(e->ordinal, NO_ORDINAL, sizeof e->ordinal);
  e->bell = fcntl(bell, F_DUPFD_CLOEXEC, 0);
  if (e->bell < 0)
    return gs_fail(err, -errno, "cannot take the bell: %s", strerror(errno));
  if (watch(a, e->bell, (uint64_t)e->generation << 32 | (uint32_t)g, EPOLLET) < 0) {
    rc = gs_fail(err, -errno, "cannot listen to the bell: %s", strerror(errno));
    close(e->bell);
    return rc;
  }
  e->present = true;
  for (uint32_t o = 0; o < ndevices; o++) {
    e->device[o] = devices[o];
    e->ordinal[devices[o]] = (uint8_t)o;
    bool held = load32(&limits->device[o].lease) & GS_LEASE_HELD;
    if (!gs_core_add(a->core[devices[o]], g, &share[o], held, now))
      set_lease(a, e, o, false);
    set_bound(a, e, o, true); /* until the first step knows better */
  }
  changed(a, g, now);
  run(a, now);
  *grant = g;
  return 0;
}

int gs_arbiter_grant_add(gs_arbiter *a, struct gs_limits *limits, struct gs_usage *usage, const uint32_t *devices,
                         uint32_t ndevices, const struct gs_share *share, int bell, int32_t *grant, struct gs_err *err) {
  if (ndevices == 0 || ndevices > GS_MAX_DEVICES)
    return gs_fail(err, -EINVAL, "a grant has 1 to %d devices, not %u", GS_MAX_DEVICES, ndevices);
  int rc = check_share(share, ndevices, err);
  if (rc < 0)
    return rc;
  pthread_mutex_lock(&a->lock);
  rc = add_locked(a, limits, usage, devices, ndevices, share, bell, grant, err);
  release_and_wake(a);
  return rc;
}

int gs_arbiter_grant_share(gs_arbiter *a, int32_t grant, const struct gs_share *share, struct gs_err *err) {
  pthread_mutex_lock(&a->lock);
  struct entry *e = entry_of(a, grant, err);
  int rc = e ? check_share(share, e->ndevices, err) : -ENOENT;
  if (rc == 0) {
    uint64_t now = now_ns();
    for (uint32_t o = 0; o < e->ndevices; o++)
      gs_core_share(a->core[e->device[o]], grant, &share[o], now);
    changed(a, grant, now);
    run(a, now);
  }
  release_and_wake(a);
  return rc;
}

int gs_arbiter_grant_remove(gs_arbiter *a, int32_t grant, struct gs_err *err) {
  pthread_mutex_lock(&a->lock);
  struct entry *e = entry_of(a, grant, err);
  int rc = e ? 0 : -ENOENT;
  if (rc == 0) {
    uint64_t now = now_ns();
    for (uint32_t o = 0; o < e->ndevices; o++) {
      gs_core_remove(a->core[e->device[o]], grant, now);
      set_lease(a, e, o, false);
      a->due_ns[e->device[o]] = now;
    }
    e->present = false;
    epoll_ctl(a->epoll, EPOLL_CTL_DEL, e->bell, NULL);
    close(e->bell);
    run(a, now);
  }
  release_and_wake(a);
  return rc;
}

int gs_arbiter_slot_clear(gs_arbiter *a, int32_t grant, uint32_t slot, struct gs_err *err) {
  if (slot >= GS_MAX_SLOTS)
    return gs_fail(err, -EINVAL, "a grant has slots 0 to %d, not %u", GS_MAX_SLOTS - 1, slot);
  pthread_mutex_lock(&a->lock);
  struct entry *e = entry_of(a, grant, err);
  int rc = e ? 0 : -ENOENT;
  if (rc == 0) {
    struct gs_slot *s = &e->usage->slot[slot];
    for (uint32_t o = 0; o < GS_MAX_DEVICES; o++) {
      struct gs_slot_device *d = &s->device[o];
      e->dead_busy_ns[o] += load64(&d->busy_ns);
      /* Word by word: siblings sum these while we clear, and must see each either held or given back. */
      __atomic_store_n(&d->memory_pending, 0, __ATOMIC_SEQ_CST);
      __atomic_store_n(&d->memory_bytes, 0, __ATOMIC_SEQ_CST);
      __atomic_store_n(&d->busy_ns, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&d->queue_end_ns, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&d->launches, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&d->wait_ns, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&d->waiting, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&d->inflight, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&d->drained, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&d->flags, 0, __ATOMIC_RELAXED);
    }
    s->pid = 0;
    __atomic_store_n(&s->state, GS_SLOT_FREE, __ATOMIC_RELEASE);
    uint64_t now = now_ns();
    changed(a, grant, now);
    run(a, now);
  }
  release_and_wake(a);
  return rc;
}

int gs_arbiter_grant_stats(gs_arbiter *a, int32_t grant, uint32_t device, struct gs_grant_stats *out, struct gs_err *err) {
  pthread_mutex_lock(&a->lock);
  struct entry *e = entry_of(a, grant, err);
  int rc = e ? 0 : -ENOENT;
  if (rc == 0 && (device >= GS_ARBITER_MAX_DEVICES || e->ordinal[device] == NO_ORDINAL))
    rc = gs_fail(err, -ENOENT, "grant %d is not on device %u", grant, device);
  if (rc == 0) {
    uint64_t now = now_ns();
    uint32_t ordinal = e->ordinal[device], high = slots_of(e);
    struct gs_core_stats core;
    changed(a, grant, now);
    run(a, now); /* brings the books to now */
    gs_core_grant_stats(a->core[device], grant, &core);
    *out = (struct gs_grant_stats){
        .leased_ns = core.leased_ns,
        .borrowed_ns = core.borrowed_ns,
        .busy_ns = e->dead_busy_ns[ordinal],
        .wait_ns = core.wait_ns,
        .leases = core.leases,
        .revokes = core.revokes,
        .waits = core.waits,
        .wake_to_lease_max_ns = core.wake_to_lease_max_ns,
        .memory_bytes = e->memory_bytes[ordinal],
        .memory_peak_bytes = e->memory_peak_bytes[ordinal],
        .waiting = core.waiting,
        .held = core.held,
        .processes = e->live,
    };
    /* A holder keeps its lease while nobody else wants it: it is runnable only while it has work. */
    struct gs_core_view view;
    look_at(e, ordinal, now, &view);
    out->runnable = core.waiting || (core.held && (view.waiting || view.busy_until_ns + a->config.early_idle_ns > now));
    memcpy(out->wake_to_lease, core.wake_to_lease, sizeof out->wake_to_lease);
    for (uint32_t i = 0; i < high; i++)
      if (load32(&e->usage->slot[i].state) == GS_SLOT_LIVE)
        out->busy_ns += load64(&e->usage->slot[i].device[ordinal].busy_ns);
  }
  release_and_wake(a);
  return rc;
}

int gs_arbiter_device_stats(gs_arbiter *a, uint32_t device, struct gs_device_stats *out, struct gs_err *err) {
  int rc = 0;
  pthread_mutex_lock(&a->lock);
  if (device >= GS_ARBITER_MAX_DEVICES) {
    rc = gs_fail(err, -EINVAL, "the arbiter serves devices 0 to %d, not %u", GS_ARBITER_MAX_DEVICES - 1, device);
  } else if (!a->core[device]) {
    memset(out, 0, sizeof *out); /* no grant has ever been on it */
  } else {
    uint64_t now = now_ns();
    a->due_ns[device] = now;
    run(a, now);
    gs_core_device_stats(a->core[device], out);
  }
  release_and_wake(a);
  return rc;
}

int gs_arbiter_events(gs_arbiter *a, uint64_t *after, struct gs_event *out, uint32_t n) {
  pthread_mutex_lock(&a->lock);
  uint64_t from = *after, oldest = a->nevents > EVENTS ? a->nevents - EVENTS : 0;
  if (from < oldest)
    from = oldest;
  uint32_t copied = 0;
  while (copied < n && from < a->nevents)
    out[copied++] = a->event[from++ % EVENTS];
  *after = from;
  pthread_mutex_unlock(&a->lock);
  return (int)copied;
}
