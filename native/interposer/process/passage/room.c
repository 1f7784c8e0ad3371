#include "interposer/process/passage/room.h"

#include "interposer/os/latch.h"
#include "interposer/os/waits.h"
#include "interposer/process/trace.h"

enum {
  POLL_NS = 5000000,   /* where the kernel cannot wait for two words */
  STEP_NS = 1000000000 /* then it is said again that memory is wanted */
};

GS_TLS bool endless;

static const uint32_t *word_of(void) { return &gs_process->limits->device[0].residency; }

static bool is_away(uint32_t word) {
  return (word & ((1u << GS_RESIDENCY_SHIFT) - 1)) == GS_HOSTED &&
         __atomic_load_n(&gs_passage()->returned, __ATOMIC_SEQ_CST) != word;
}

bool gs_room_away(void) { return gs_passage() && is_away(__atomic_load_n(word_of(), __ATOMIC_SEQ_CST)); }

bool gs_room_endless_begin(void) {
  bool before = endless;
  endless = true;
  return before;
}

void gs_room_endless_end(bool before) { endless = before; }

/* Waits for the word or the state to change. The mover forgets a wish when it closes or opens the passage, so it is said
 * again after each wait. */
static void await_change(struct gs_passage *passage, uint64_t most_ns) {
  __atomic_add_fetch(&passage->wants, 1, __ATOMIC_SEQ_CST);
  uint32_t state = __atomic_load_n(&passage->state, __ATOMIC_SEQ_CST);
  uint32_t word = __atomic_load_n(word_of(), __ATOMIC_SEQ_CST);
  if (is_away(word)) {
    if (state != GS_MOVING)
      gs_memory_wanted(passage);
    struct gs_futex_waiter either[] = {gs_waits_for(word_of(), word, true),
                                       gs_waits_for(&passage->state, state, false)};
    if (!gs_futex_wait_any(either, 2, most_ns))
      gs_futex_wait(&passage->state, state, most_ns < POLL_NS ? most_ns : POLL_NS, false);
  }
  __atomic_sub_fetch(&passage->wants, 1, __ATOMIC_SEQ_CST);
}

/* A thread that runs exit handlers lets the mover call the driver while it waits. When it goes on the driver may end, so
 * first the mover leaves it: it looks at `last_wants` after it has closed the passage. */
static void end_last_wish(struct gs_passage *passage) {
  if (__atomic_load_n(&passage->last, __ATOMIC_ACQUIRE) != &gs_self)
    return;
  __atomic_store_n(&passage->last_wants, 0, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&passage->state, __ATOMIC_SEQ_CST) == GS_MOVING)
    gs_futex_wait(&passage->state, GS_MOVING, STEP_NS, false);
}

void gs_room_refused(void) {
  static uint32_t said;
  uint32_t most = __atomic_load_n(&gs_process->limits->allocation_wait_ms, __ATOMIC_RELAXED);
  end_last_wish(gs_passage());
  gs_trace(GS_TRACE_STAYED_AWAY, 0, most, __atomic_load_n(&gs_process->slot->device[0].hosted_bytes, __ATOMIC_RELAXED));
  if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) == 0)
    gs_say("out of memory: this grant's memory is in host memory, and its room on the device was not free again within"
           " %u.%03u s (allocation_wait_seconds)",
           most / 1000, most % 1000);
}

bool gs_room_await(struct gs_patience *patience) {
  struct gs_passage *passage = gs_passage();
  bool inside = gs_passage_step_out(), waits = true;
  while (waits && gs_room_away()) {
    uint64_t left = endless || !patience ? STEP_NS : gs_patience_left(patience);
    waits = left > 0;
    if (waits)
      await_change(passage, left < STEP_NS ? left : STEP_NS);
  }
  end_last_wish(passage);
  gs_passage_step_in(inside, waits);
  if (!waits)
    gs_room_refused();
  return waits;
}
