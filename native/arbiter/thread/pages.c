/* The pages of a grant: reads what its processes wrote into a view for the cores, and writes the arbiter's words. */
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arbiter/thread/state.h"

/* ---- what tenants wrote ---- */

uint32_t arbiter_slots_of(const struct entry *e) {
  uint32_t high = load32(&e->limits->slots_high);
  return high < GS_MAX_SLOTS ? high : GS_MAX_SLOTS;
}

void arbiter_read_view(struct entry *e, uint32_t ordinal, uint64_t now, struct gs_core_view *view) {
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
    /* while ranks are uneven, one may have submitted work after it reported that it has drained */
    bool said = load32(&d->drained) == lease && !(e->cuts && e->cuts->uneven);
    if (!said && !empty)
      view->drained = 0;
    view->running += !empty;
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
  if (e->observed_in == a->section)
    return;
  e->observed_in = a->section;
  for (uint32_t o = 0; o < e->ndevices; o++) {
    arbiter_read_view(e, o, now, &view[o]);
    wanted += view[o].waiting;
  }
  for (uint32_t o = 0; o < e->ndevices; o++) {
    view[o].wanted = wanted;
    view[o].spins = e->cuts && e->cuts->uneven;
    gs_core_observe(a->core[e->device[o]], grant, &view[o]);
  }
}

/* ---- what the arbiter writes ---- */

static void wake_later(gs_arbiter *a, uint32_t *word) {
  if (a->nwakes < WAKES_MAX)
    a->wake[a->nwakes++] = word;
}

void arbiter_release_and_wake(gs_arbiter *a) {
  uint32_t *wake[WAKES_MAX];
  int n = a->nwakes;
  memcpy(wake, a->wake, (size_t)n * sizeof wake[0]);
  a->nwakes = 0;
  a->section++;
  pthread_mutex_unlock(&a->lock);
  /* The page may be unmapped by now: a wake at an address without memory fails with EFAULT and hurts nobody. */
  for (int i = 0; i < n; i++)
    syscall(SYS_futex, wake[i], FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void arbiter_wake_cut(gs_arbiter *a, struct entry *e, uint32_t ordinals) {
  for (uint32_t o = 0; o < e->ndevices; o++)
    if (ordinals & UINT32_C(1) << o)
      wake_later(a, &e->limits->device[o].lease);
}

void arbiter_set_lease(gs_arbiter *a, struct entry *e, uint32_t ordinal, bool held) {
  uint32_t *word = &e->limits->device[ordinal].lease;
  uint32_t value = load32(word);
  if (((value & GS_LEASE_HELD) != 0) == held)
    return;
  /* A rank counts its collective and then reads this word; the arbiter writes this word and then reads the count. So at
   * least one of the two sees the other's write. */
  __atomic_store_n(word, value + 1, __ATOMIC_SEQ_CST);
  e->observed_in = 0; /* `drained` refers to the lease word */
  wake_later(a, word);
}

void arbiter_set_bound(const gs_arbiter *a, struct entry *e, uint32_t ordinal, enum gs_core_company company) {
  struct gs_device_limits *d = &e->limits->device[ordinal];
  /* An interactive grant that wakes up mostly waits for the work that is then in flight. */
  uint64_t bound = company == GS_CORE_ALONE        ? a->config.bound_alone_ns
                   : company == GS_CORE_IN_COMPANY ? a->config.bound_ns
                                                   : a->config.bound_ns / 4;
  __atomic_store_n(&d->inflight_bound_ns, bound, __ATOMIC_RELEASE);
  __atomic_store_n(&d->contended, company != GS_CORE_ALONE, __ATOMIC_RELEASE);
}

void arbiter_publish_foreign_work(struct entry *e, uint32_t ordinal, bool foreign, uint64_t now) {
  struct gs_device_limits *limits = &e->limits->device[ordinal];
  uint32_t before = load32(&limits->foreign_work);
  if ((before & 1) == foreign)
    return;
  __atomic_store_n(&limits->foreign_work_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&limits->foreign_work, ((before >> 1) + 1) << 1 | foreign, __ATOMIC_RELEASE);
}
