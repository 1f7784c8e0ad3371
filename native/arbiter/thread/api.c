/* The functions of gs_arbiter.h. Each is one critical section, which changes the table and lets the cores decide. */
#define _GNU_SOURCE /* F_DUPFD_CLOEXEC */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "arbiter/thread/state.h"

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

static int watch(gs_arbiter *a, int fd, uint64_t data) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = data};
  return epoll_ctl(a->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void release(gs_arbiter *a) {
  for (int i = 0; i < GS_ARBITER_MAX_GRANTS; i++)
    if (a->grant[i].present) {
      close(a->grant[i].bell);
      free(a->grant[i].cuts);
      free(a->grant[i].claims);
    }
  for (int i = 0; i < GS_ARBITER_MAX_DEVICES; i++)
    gs_core_destroy(a->core[i]);
  gs_gangs_destroy(a->gangs);
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
  a->began_ns = now_ns();
  a->section = 1;
  a->armed_ns = a->tick_ns = a->gangs_due_ns = NEVER;
  pthread_mutexattr_t inherit;
  pthread_mutexattr_init(&inherit);
  pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT);
  pthread_mutex_init(&a->lock, &inherit);
  pthread_mutexattr_destroy(&inherit);
  a->epoll = epoll_create1(EPOLL_CLOEXEC);
  a->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  a->stopper = eventfd(0, EFD_CLOEXEC);
  if (a->epoll < 0 || a->timer < 0 || a->stopper < 0 || watch(a, a->timer, TIMER) < 0 ||
      watch(a, a->stopper, STOPPER) < 0)
    rc = gs_fail(err, -errno, "cannot set the arbiter up: %s", strerror(errno));
  if (rc == 0 && gs_gangs_create(&a->gangs, config) < 0)
    rc = gs_fail(err, -ENOMEM, "no memory for gangs");
  if (rc == 0)
    rc = arbiter_start_thread(a, err);
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
    if (share[i].flags != share[0].flags)
      return gs_fail(err, -EINVAL, "the leases of a grant are given alike on all its devices");
  }
  return 0;
}

/* Returns NULL with err filled when there is no such grant. */
static struct entry *entry_of(gs_arbiter *a, int32_t grant, struct gs_err *err) {
  if (grant >= 0 && a->grant[place_of(grant)].present && handle_of(a, place_of(grant)) == grant)
    return &a->grant[place_of(grant)];
  gs_fail(err, -ENOENT, "the arbiter has no grant %d", grant);
  return NULL;
}

static int free_place(gs_arbiter *a, struct gs_err *err) {
  /* Places are used in turn, because the thread may still handle a bell that rang before its grant was removed. */
  for (int i = 0; i < GS_ARBITER_MAX_GRANTS; i++) {
    int32_t g = (a->next_place + i) % GS_ARBITER_MAX_GRANTS;
    if (!a->grant[g].present) {
      a->next_place = (g + 1) % GS_ARBITER_MAX_GRANTS;
      return g;
    }
  }
  return gs_fail(err, -ENOSPC, "the arbiter serves at most %d grants", GS_ARBITER_MAX_GRANTS);
}

/* A device is idle from the arbiter's beginning until its first grant. */
static int make_cores(gs_arbiter *a, const uint32_t *devices, uint32_t n, struct gs_err *err) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t d = devices[i];
    if (d >= GS_ARBITER_MAX_DEVICES)
      return gs_fail(err, -EINVAL, "the arbiter serves devices 0 to %d, not %u", GS_ARBITER_MAX_DEVICES - 1, d);
    for (uint32_t j = 0; j < i; j++)
      if (devices[j] == d)
        return gs_fail(err, -EINVAL, "device %u is named twice", d);
    if (!a->core[d] && gs_core_create(&a->core[d], &a->config, a->began_ns) < 0)
      return gs_fail(err, -ENOMEM, "no memory for device %u", d);
  }
  return 0;
}

static bool is_gang(const struct gs_share *share) {
  return (share->flags & GS_SHARE_GANG) && !(share->flags & GS_SHARE_BESIDE);
}

static bool lease_held(const struct entry *e, uint32_t ordinal) {
  return load32(&e->limits->device[ordinal].lease) & GS_LEASE_HELD;
}

/* A gang that had leases from an earlier arbiter keeps all of them or none. */
static void take_over_gang(gs_arbiter *a, int32_t grant, const struct gs_share *share, uint64_t now) {
  struct entry *e = &a->grant[grant];
  bool held = true;
  for (uint32_t o = 0; o < e->ndevices; o++)
    held = held && lease_held(e, o);
  a->ngangs++;
  arbiter_begin_cuts(e);
  held = gs_gangs_add(a->gangs, a->core, grant, e->device, e->ndevices, share, held, now);
  for (uint32_t o = 0; o < e->ndevices && !held; o++)
    arbiter_set_lease(a, e, o, false);
}

static int add_locked(gs_arbiter *a, struct gs_limits *limits, struct gs_usage *usage, struct gs_seats *seats,
                      const uint32_t *devices, uint32_t ndevices, const struct gs_share *share, int bell,
                      int32_t *grant, struct gs_err *err) {
  uint64_t now = now_ns();
  int rc = make_cores(a, devices, ndevices, err);
  if (rc < 0)
    return rc;
  int32_t g = free_place(a, err);
  if (g < 0)
    return g;
  struct entry *e = &a->grant[g];
  *e = (struct entry){
      .generation = e->generation + 1, .limits = limits, .usage = usage, .seats = seats, .ndevices = ndevices};
  memset(e->ordinal, NO_ORDINAL, sizeof e->ordinal);
  e->bell = fcntl(bell, F_DUPFD_CLOEXEC, 0);
  if (e->bell < 0)
    return gs_fail(err, -errno, "cannot take the bell: %s", strerror(errno));
  e->claims = calloc((size_t)ndevices * GS_MAX_SLOTS, sizeof *e->claims);
  if (!e->claims || (is_gang(share) && !(e->cuts = calloc(1, sizeof *e->cuts))))
    rc = gs_fail(err, -ENOMEM, "no memory for a grant");
  else if (watch(a, e->bell, (uint64_t)e->generation << 32 | (uint32_t)g) < 0)
    rc = gs_fail(err, -errno, "cannot listen to the bell: %s", strerror(errno));
  if (rc < 0) {
    free(e->cuts);
    free(e->claims);
    close(e->bell);
    return rc;
  }
  e->present = true;
  for (uint32_t o = 0; o < ndevices; o++) {
    e->device[o] = devices[o];
    e->ordinal[devices[o]] = (uint8_t)o;
    arbiter_set_bound(a, e, o, GS_CORE_IN_COMPANY); /* until the first step */
  }
  if (is_gang(share))
    take_over_gang(a, g, share, now);
  else
    for (uint32_t o = 0; o < ndevices; o++)
      if (!gs_core_add(a->core[devices[o]], g, &share[o], lease_held(e, o), now))
        arbiter_set_lease(a, e, o, false);
  arbiter_changed(a, g, now);
  arbiter_run(a, now);
  *grant = handle_of(a, g);
  return 0;
}

int gs_arbiter_grant_add(gs_arbiter *a, struct gs_limits *limits, struct gs_usage *usage, struct gs_seats *seats,
                         const uint32_t *devices, uint32_t ndevices, const struct gs_share *share, int bell,
                         int32_t *grant, struct gs_err *err) {
  if (ndevices == 0 || ndevices > GS_MAX_DEVICES)
    return gs_fail(err, -EINVAL, "a grant has 1 to %d devices, not %u", GS_MAX_DEVICES, ndevices);
  int rc = check_share(share, ndevices, err);
  if (rc < 0)
    return rc;
  pthread_mutex_lock(&a->lock);
  rc = add_locked(a, limits, usage, seats, devices, ndevices, share, bell, grant, err);
  arbiter_release_and_wake(a);
  return rc;
}

int gs_arbiter_grant_share(gs_arbiter *a, int32_t grant, const struct gs_share *share, struct gs_err *err) {
  pthread_mutex_lock(&a->lock);
  struct entry *e = entry_of(a, grant, err);
  int rc = e ? check_share(share, e->ndevices, err) : -ENOENT;
  if (rc == 0) {
    uint64_t now = now_ns();
    for (uint32_t o = 0; o < e->ndevices; o++)
      gs_core_share(a->core[e->device[o]], place_of(grant), &share[o], now);
    arbiter_changed(a, place_of(grant), now);
    arbiter_run(a, now);
  }
  arbiter_release_and_wake(a);
  return rc;
}

static void close_cores(gs_arbiter *a, int32_t place, uint64_t now) {
  struct entry *e = &a->grant[place];
  struct gs_core_decision words[3];
  for (uint32_t o = 0; o < e->ndevices; o++) {
    int n = gs_core_close(a->core[e->device[o]], place, now, words);
    for (int i = 0; i < n; i++)
      arbiter_record(a, e->device[o], &words[i], now);
  }
}

int gs_arbiter_grant_remove(gs_arbiter *a, int32_t grant, struct gs_err *err) {
  pthread_mutex_lock(&a->lock);
  struct entry *e = entry_of(a, grant, err);
  int rc = e ? 0 : -ENOENT;
  if (rc == 0) {
    uint64_t now = now_ns();
    int32_t place = place_of(grant);
    close_cores(a, place, now);
    if (e->cuts)
      gs_gangs_remove(a->gangs, a->core, place, now);
    for (uint32_t o = 0; o < e->ndevices; o++) {
      if (!e->cuts)
        gs_core_remove(a->core[e->device[o]], place, now);
      arbiter_set_lease(a, e, o, false);
      a->due_ns[e->device[o]] = now;
    }
    a->ngangs -= e->cuts != NULL;
    free(e->cuts);
    e->cuts = NULL;
    free(e->claims);
    e->claims = NULL;
    e->present = false;
    epoll_ctl(a->epoll, EPOLL_CTL_DEL, e->bell, NULL);
    close(e->bell);
    arbiter_run(a, now);
  }
  arbiter_release_and_wake(a);
  return rc;
}

int gs_arbiter_slot_clear(gs_arbiter *a, int32_t grant, uint32_t slot, struct gs_err *err) {
  if (slot >= GS_MAX_SLOTS)
    return gs_fail(err, -EINVAL, "a grant has slots 0 to %d, not %u", GS_MAX_SLOTS - 1, slot);
  pthread_mutex_lock(&a->lock);
  struct entry *e = entry_of(a, grant, err);
  int rc = e ? 0 : -ENOENT;
  if (rc == 0) {
    uint64_t now = now_ns();
    arbiter_observe(a, place_of(grant), now); /* what the process did last, which its grant pays */
    for (uint32_t o = 0; o < e->ndevices; o++)
      gs_core_charge(a->core[e->device[o]], now);
    arbiter_clear_slot(e, slot);
    e->observed_in = 0;
    arbiter_changed(a, place_of(grant), now);
    arbiter_run(a, now);
  }
  arbiter_release_and_wake(a);
  return rc;
}

int gs_arbiter_grant_stats(gs_arbiter *a, int32_t grant, uint32_t device, struct gs_grant_stats *out,
                           struct gs_err *err) {
  pthread_mutex_lock(&a->lock);
  struct entry *e = entry_of(a, grant, err);
  int rc = e ? 0 : -ENOENT;
  if (rc == 0 && (device >= GS_ARBITER_MAX_DEVICES || e->ordinal[device] == NO_ORDINAL))
    rc = gs_fail(err, -ENOENT, "grant %d is not on device %u", grant, device);
  if (rc == 0) {
    uint64_t now = now_ns();
    uint32_t ordinal = e->ordinal[device];
    struct gs_core_stats core;
    arbiter_changed(a, place_of(grant), now);
    arbiter_run(a, now); /* brings the books to now */
    gs_core_grant_stats(a->core[device], place_of(grant), &core);
    struct gs_core_view view;
    arbiter_read_view(e, ordinal, now, &view);
    *out = (struct gs_grant_stats){
        .leased_ns = core.leased_ns,
        .borrowed_ns = core.borrowed_ns,
        .had_ns = core.had_ns,
        .busy_ns = e->metered[ordinal].busy_ns,
        .wait_ns = core.wait_ns,
        .wait_owed_ns = core.wait_owed_ns,
        .wait_limit_ns = core.wait_limit_ns,
        .launches = e->launches[ordinal],
        .leases = core.leases,
        .revokes = core.revokes,
        .waits = core.waits,
        .wake_to_lease_ns = core.wake_to_lease_ns,
        .wake_to_lease_max_ns = core.wake_to_lease_max_ns,
        .waited = core.waited,
        .reclaimed = core.reclaimed,
        .memory_bytes = e->memory_bytes[ordinal],
        .memory_peak_bytes = e->memory_peak_bytes[ordinal],
        .waiting = core.waiting,
        .held = core.held,
        .processes = e->live,
        .marked = e->marked,
    };
    /* A holder keeps its lease while nobody else wants the device, but is runnable only while it has work. */
    out->runnable = core.waiting ||
                    (core.held && (view.waiting || view.running || view.busy_until_ns + a->config.early_idle_ns > now));
    memcpy(out->wake_to_lease, core.wake_to_lease, sizeof out->wake_to_lease);
  }
  arbiter_release_and_wake(a);
  return rc;
}

int gs_arbiter_device_stats(gs_arbiter *a, uint32_t device, struct gs_device_stats *out, struct gs_err *err) {
  int rc = 0;
  pthread_mutex_lock(&a->lock);
  if (device >= GS_ARBITER_MAX_DEVICES) {
    rc = gs_fail(err, -EINVAL, "the arbiter serves devices 0 to %d, not %u", GS_ARBITER_MAX_DEVICES - 1, device);
  } else if (!a->core[device]) {
    memset(out, 0, sizeof *out); /* no grant has ever been on it */
    out->wall_ns = out->idle_ns = now_ns() - a->began_ns;
  } else {
    uint64_t now = now_ns();
    a->due_ns[device] = now;
    arbiter_run(a, now);
    gs_core_device_stats(a->core[device], out);
  }
  arbiter_release_and_wake(a);
  return rc;
}
