/* Limits how far the ranks of a gang may continue after a revoke.
 *
 * Ranks that run collectives have to stop at the same one, or the first one spins for the second. When a gang is
 * revoked, each rank may continue without a lease until it has submitted as many collectives as the rank that is
 * furthest ahead: its cut. Collectives are counted from the last time at which all ranks were even. */
#include "arbiter/thread/state.h"

enum {
  CUT_AHEAD_MAX = 64, /* ranks count themselves: a false count lets the others go on by no more than this at a time */
  /* shortest interval of the checks of ranks on their way to a cut; it grows to an eighth of the time since the
   * revoke */
  CUT_LOOK_MIN_NS = 250000
};

/* A process on a device on which it has submitted collectives. */
struct rank {
  struct gs_slot_device *words;
  uint64_t *base; /* its count when all ranks were last even */
  uint64_t counted;
};

/* Sums of two counts do not overflow; a count this high is found to be a lie elsewhere. */
static uint64_t collectives(const struct gs_slot_device *words) {
  uint64_t count = load64(&words->collectives);
  return count < INT64_MAX ? count : INT64_MAX;
}

static bool is_rank(struct entry *e, uint32_t slot, uint32_t ordinal, struct rank *rank) {
  struct gs_slot_device *words = &e->usage->slot[slot].device[ordinal];
  if (!arbiter_seat(e, slot))
    return false;
  *rank = (struct rank){words, &e->cuts->base[slot][ordinal], collectives(words)};
  return rank->counted > 0;
}

/* A process counts from its join: it may have submitted collectives before it is first seen here, for which the others
 * wait. How far processes from before this arbiter have got is not known: they are taken to be even. */
static void note_slots(struct entry *e, uint32_t slots) {
  for (uint32_t s = 0; s < slots; s++) {
    const struct gs_seat *seat = arbiter_seat(e, s);
    uint32_t generation = seat ? seat->generation : 0;
    if (generation == e->cuts->generation[s])
      continue;
    e->cuts->generation[s] = generation;
    for (uint32_t o = 0; o < e->ndevices; o++)
      e->cuts->base[s][o] = e->cuts->begun ? 0 : collectives(&e->usage->slot[s].device[o]);
  }
}

void arbiter_begin_cuts(struct entry *e) {
  note_slots(e, arbiter_slots_of(e));
  e->cuts->begun = true;
}

struct spread {
  uint64_t least, most; /* collectives since all ranks were even */
  bool empty;           /* no rank has work on a device */
};

static struct spread look(struct entry *e, uint32_t slots, uint64_t now) {
  struct spread spread = {UINT64_MAX, 0, true};
  struct rank rank;
  for (uint32_t s = 0; s < slots; s++)
    for (uint32_t o = 0; o < e->ndevices; o++) {
      if (!is_rank(e, s, o, &rank))
        continue;
      /* a count that goes backwards is ignored */
      uint64_t done = rank.counted > *rank.base ? rank.counted - *rank.base : 0;
      spread.least = done < spread.least ? done : spread.least;
      spread.most = done > spread.most ? done : spread.most;
      if (load32(&rank.words->inflight) || load64(&rank.words->queue_end_ns) > now)
        spread.empty = false;
    }
  return spread;
}

/* Returns the ordinals, one bit each, whose waiting threads have to be woken. */
static uint32_t raise_cuts(struct entry *e, uint32_t slots, uint64_t most) {
  uint32_t raised = 0;
  struct rank rank;
  for (uint32_t s = 0; s < slots; s++)
    for (uint32_t o = 0; o < e->ndevices; o++) {
      if (!is_rank(e, s, o, &rank))
        continue;
      uint64_t ahead = *rank.base + most > rank.counted ? *rank.base + most - rank.counted : 0;
      uint64_t cut = ahead ? rank.counted + (ahead < CUT_AHEAD_MAX ? ahead : CUT_AHEAD_MAX) : 0;
      if (!cut || load64(&rank.words->cut) == cut)
        continue;
      __atomic_store_n(&rank.words->cut, cut, __ATOMIC_RELEASE);
      raised |= UINT32_C(1) << o;
    }
  return raised;
}

static void close_cuts(struct entry *e, uint32_t slots) {
  e->cuts->open = e->cuts->uneven = false;
  for (uint32_t s = 0; s < slots; s++)
    for (uint32_t o = 0; o < e->ndevices; o++)
      if (load64(&e->usage->slot[s].device[o].cut))
        __atomic_store_n(&e->usage->slot[s].device[o].cut, 0, __ATOMIC_RELEASE);
}

static void rebase(struct entry *e, uint32_t slots) {
  struct rank rank;
  for (uint32_t s = 0; s < slots; s++)
    for (uint32_t o = 0; o < e->ndevices; o++)
      if (is_rank(e, s, o, &rank))
        *rank.base = rank.counted;
}

uint32_t arbiter_set_cuts(struct entry *e, uint64_t now) {
  uint32_t slots = arbiter_slots_of(e);
  if (!e->cuts->open)
    e->cuts->since_ns = now;
  e->cuts->open = true;
  note_slots(e, slots);
  struct spread spread = look(e, slots, now);
  e->cuts->uneven = spread.least < spread.most;
  return raise_cuts(e, slots, spread.most);
}

uint32_t arbiter_follow_ranks(struct entry *e, bool held, bool *drained, uint64_t now, uint64_t *next_ns) {
  uint32_t slots = arbiter_slots_of(e);
  note_slots(e, slots);
  struct spread spread = look(e, slots, now);
  bool even = spread.least >= spread.most;
  /* A rank that saw the revoke late may have submitted work after all had drained. Uneven ranks that have nothing left
   * to run do not wait for each other; they only count differently. */
  *drained = *drained && (even || spread.empty);
  if (!held && !*drained) {
    uint32_t raised = arbiter_set_cuts(e, now);
    uint64_t pause = (now - e->cuts->since_ns) / 8;
    *next_ns = now + (pause > CUT_LOOK_MIN_NS ? pause : CUT_LOOK_MIN_NS);
    return raised;
  }
  *next_ns = NEVER;
  if (e->cuts->open)
    close_cuts(e, slots);
  if (!held)
    rebase(e, slots);
  return 0;
}
