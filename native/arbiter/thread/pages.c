/* The pages of a grant: reads what its processes wrote into a view for the cores, and writes the arbiter's words. */
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

static void load_words(const struct gs_slot *slot, uint32_t ordinal, struct gs_claim_words *words) {
  const struct gs_slot_device *d = &slot->device[ordinal];
  *words = (struct gs_claim_words){
      .state = load32(&slot->state),
      .generation = load32(&slot->generation),
      .pid = __atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE),
      .waiting = load32(&d->waiting),
      .inflight = load32(&d->inflight),
      .memory_bytes = load64(&d->memory_bytes),
      .busy_ns = load64(&d->busy_ns),
      .queue_end_ns = load64(&d->queue_end_ns),
      .launches = load64(&d->launches),
      .collectives = load64(&d->collectives),
  };
}

static void note_lies(struct entry *e, uint32_t lies, struct report *report, const struct gs_claim_words *claimed) {
  for (uint32_t word = 0; word < GS_WORDS; word++) {
    if (!(lies & UINT32_C(1) << word) || e->nreports == REPORTS_MAX)
      continue;
    report->lie.word = word;
    report->lie.value = gs_claim_value(claimed, word);
    e->reports[e->nreports++] = *report;
  }
}

/* Returns whether the slot is marked. */
static bool believed_words(struct entry *e, const struct gs_seat *seat, uint32_t slot, uint32_t ordinal, uint64_t now,
                           struct gs_claim_words *words) {
  struct gs_claim *claim = arbiter_claim(e, ordinal, slot);
  struct gs_claim_words claimed;
  load_words(&e->usage->slot[slot], ordinal, &claimed);
  struct gs_claim_bounds bounds = {seat->generation, seat->pid, now, seat->since_ns, e->seats->capacity_bytes[ordinal]};
  if (!gs_claim_by(&bounds, &claimed)) /* the words may have been written after `now` was read */
    bounds.now_ns = now_ns();
  struct report report = {.ordinal = ordinal, .lie = {.slot = slot, .pid = seat->pid}};
  *words = claimed;
  uint32_t lies = gs_claim_believe(claim, &bounds, words);
  if (lies)
    note_lies(e, lies, &report, &claimed);
  return claim->lies != 0;
}

/* Whether some of the grant's memory is not on the device, or is about to leave it. A process that writes wrong words
 * harms its own grant only, which then gets no lease, or one without its memory. */
static bool is_away(const struct entry *e, uint32_t ordinal) {
  uint32_t word = load32(&e->limits->device[ordinal].residency), high = arbiter_slots_of(e);
  if ((word & ((1u << GS_RESIDENCY_SHIFT) - 1)) == GS_HOSTED)
    return true;
  for (uint32_t i = 0; i < high && word; i++) { /* 0: it has never been away */
    const struct gs_slot_device *d = &e->usage->slot[i].device[ordinal];
    if (arbiter_seat(e, i) && load64(&d->hosted_bytes) && load32(&d->residency) != word)
      return true;
  }
  return false;
}

void arbiter_read_view(struct entry *e, uint32_t ordinal, uint64_t now, struct gs_core_view *view) {
  uint32_t lease = load32(&e->limits->device[ordinal].lease), high = arbiter_slots_of(e), marked = 0;
  uint64_t memory = 0, busy = e->dead_busy_ns[ordinal], launches = e->dead_launches[ordinal];
  *view = (struct gs_core_view){.drained = 1};
  for (uint32_t i = 0; i < high; i++) {
    const struct gs_seat *seat = arbiter_seat(e, i);
    struct gs_claim_words words;
    if (!seat)
      continue;
    marked += believed_words(e, seat, i, ordinal, now, &words);
    uint64_t queue_end = words.queue_end_ns;
    if (queue_end > now + QUEUE_CLAIM_MAX_NS)
      queue_end = now + QUEUE_CLAIM_MAX_NS;
    view->live++;
    view->waiting += words.waiting != 0;
    view->launches += words.launches;
    busy = gs_claim_sum(busy, words.busy_ns);
    launches = gs_claim_sum(launches, arbiter_claim(e, ordinal, i)->launches);
    if (queue_end > view->busy_until_ns)
      view->busy_until_ns = queue_end;
    bool empty = words.inflight == 0 && queue_end <= now;
    /* while ranks are uneven, one may have submitted work after it reported that it has drained */
    bool drained = load32(&e->usage->slot[i].device[ordinal].drained) == lease && !(e->cuts && e->cuts->uneven);
    if (!drained && !empty)
      view->drained = 0;
    view->running += !empty;
    memory = gs_claim_sum(memory, words.memory_bytes);
  }
  gs_metered_add(&e->metered[ordinal], busy, marked, (lease & GS_LEASE_HELD) || view->running, now);
  view->busy_ns = e->metered[ordinal].busy_ns;
  e->launches[ordinal] = launches;
  view->away = is_away(e, ordinal);
  e->live = view->live;
  e->marked = marked;
  e->memory_bytes[ordinal] = gs_claim_memory(memory, marked, load64(&e->limits->device[ordinal].memory_bytes),
                                             e->seats->capacity_bytes[ordinal]);
  if (e->memory_bytes[ordinal] > e->memory_peak_bytes[ordinal])
    e->memory_peak_bytes[ordinal] = e->memory_bytes[ordinal];
}

static void record_lies(gs_arbiter *a, int32_t grant, uint64_t now) {
  struct entry *e = &a->grant[grant];
  if (e->nreports && now - e->lies_from_ns >= 1000000000u) {
    e->lies_from_ns = now;
    e->lies = 0;
  }
  for (uint32_t i = 0; i < e->nreports && e->lies < GS_LIES_PER_SECOND; i++, e->lies++)
    a->event[a->nevents++ % GS_ARBITER_EVENTS] = (struct gs_event){
        .t_ns = now,
        .kind = GS_EVENT_LIE,
        .device = e->device[e->reports[i].ordinal],
        .grant = handle_of(a, grant),
        .other = -1,
        .lie = e->reports[i].lie,
    };
  e->nreports = 0;
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
  record_lies(a, grant, now);
  for (uint32_t o = 0; o < e->ndevices; o++) {
    view[o].wanted = wanted;
    view[o].spins = e->cuts && e->cuts->uneven;
    gs_core_observe(a->core[e->device[o]], grant, &view[o]);
  }
}

/* ---- what the arbiter writes ---- */

void arbiter_clear_slot(struct entry *e, uint32_t slot) {
  struct gs_slot *s = &e->usage->slot[slot];
  for (uint32_t o = 0; o < GS_MAX_DEVICES; o++) {
    struct gs_slot_device *d = &s->device[o];
    /* Word by word: other processes of the grant sum these values meanwhile, and have to see each word whole. */
    __atomic_store_n(&d->memory_pending, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&d->memory_growing, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&d->memory_bytes, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&d->busy_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->queue_end_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->wait_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->waiting, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->inflight, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->drained, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->flags, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->collectives, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->cut, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->movable_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->hosted_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->clean_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->copied_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->residency, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&d->move, 0, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&s->touched, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&s->refusals, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&s->sync_calls, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&s->host_bytes_in, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&s->host_bytes_out, 0, __ATOMIC_RELAXED);
  for (uint32_t kind = 0; kind < GS_FIXED_KINDS; kind++)
    __atomic_store_n(&s->fixed_bytes[kind], 0, __ATOMIC_RELAXED);
  for (uint32_t o = 0; o < e->ndevices; o++) {
    struct gs_claim *claim = arbiter_claim(e, o, slot);
    e->dead_busy_ns[o] = gs_claim_sum(e->dead_busy_ns[o], claim->busy_ns);
    e->dead_launches[o] = gs_claim_sum(e->dead_launches[o], claim->launches);
    *claim = (struct gs_claim){0};
  }
  s->pid = 0;
  __atomic_store_n(&s->state, GS_SLOT_FREE, __ATOMIC_RELEASE);
  __atomic_store_n(&e->seats->seat[slot].taken, 0, __ATOMIC_RELEASE);
}

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
  /* The page may be unmapped by now: a wake at an unmapped address fails with EFAULT, which is harmless. */
  for (int i = 0; i < n; i++)
    syscall(SYS_futex, wake[i], FUTEX_WAKE, WOKEN_MAX, NULL, NULL, 0);
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

void arbiter_publish_foreign_work(struct entry *e, uint32_t ordinal, uint32_t others, uint64_t now) {
  struct gs_device_limits *limits = &e->limits->device[ordinal];
  uint32_t before = load32(&limits->foreign_work);
  if ((before & 1) == (others > 0) && load32(&limits->foreign_count) == others)
    return;
  __atomic_store_n(&limits->foreign_work_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&limits->foreign_count, others, __ATOMIC_RELAXED);
  __atomic_store_n(&limits->foreign_work, ((before >> 1) + 1) << 1 | (others > 0), __ATOMIC_RELEASE);
}
