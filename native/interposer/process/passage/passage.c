#include "interposer/process/passage/passage.h"

#include "interposer/os/latch.h"

/* How many of the calls that the thread is in have gone inside: only the first is counted. */
GS_TLS uint32_t depth;

bool gs_passage_start(void) {
  struct gs_process *state = gs_process;
  /* one device for now: memory that moves with its neighbours on other devices has an order of its own */
  if (state->limits->idle_memory != GS_IDLE_LEND || state->ndevices != 1)
    return true;
  struct gs_passage *passage = gs_private_map(sizeof *passage);
  if (!passage)
    return false;
  /* a process that joins a grant whose memory is away has none there: it waits for room only (room.h) */
  passage->word = __atomic_load_n(&state->limits->device[0].residency, __ATOMIC_ACQUIRE);
  state->passage = passage;
  return true;
}

void gs_mover_call(struct gs_passage *passage) {
  __atomic_add_fetch(&passage->calls, 1, __ATOMIC_SEQ_CST);
  gs_futex_wake(&passage->calls, 1, false);
}

static void go_in(struct gs_passage *passage) { __atomic_add_fetch(&passage->inside, 1, __ATOMIC_SEQ_CST); }

static void go_out(struct gs_passage *passage) { __atomic_sub_fetch(&passage->inside, 1, __ATOMIC_SEQ_CST); }

/* What was copied ahead is void from now on. */
static void end_watch(struct gs_passage *passage) {
  uint32_t watched = GS_WATCHED;
  if (__atomic_compare_exchange_n(&passage->state, &watched, GS_OPEN, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    __atomic_store_n(&gs_process->slot->device[0].clean_bytes, 0, __ATOMIC_RELEASE);
}

void gs_memory_wanted(struct gs_passage *passage) {
  uint32_t *flags = &gs_process->slot->device[0].flags;
  if (__atomic_load_n(&passage->last, __ATOMIC_ACQUIRE) == &gs_self)
    __atomic_store_n(&passage->last_wants, 1, __ATOMIC_RELEASE);
  if (!(__atomic_fetch_or(flags, GS_SLOT_WANTS, __ATOMIC_SEQ_CST) & GS_SLOT_WANTS))
    gs_mover_call(passage);
}

uint64_t gs_patience_left(struct gs_patience *patience) {
  uint64_t now = gs_now();
  if (patience->until == 0)
    patience->until =
        now + (uint64_t)__atomic_load_n(&gs_process->limits->allocation_wait_ms, __ATOMIC_RELAXED) * 1000000;
  return patience->until > now ? patience->until - now : 0;
}

/* patience: NULL if it has no end. False: it is over. */
static bool await(struct gs_passage *passage, uint32_t seen, struct gs_patience *patience) {
  uint64_t left = patience ? gs_patience_left(patience) : 0;
  if (patience && left == 0)
    return false;
  __atomic_add_fetch(&passage->wants, 1, __ATOMIC_SEQ_CST);
  if (seen == GS_AWAY)
    gs_memory_wanted(passage);
  gs_futex_wait(&passage->state, seen, left, false);
  __atomic_sub_fetch(&passage->wants, 1, __ATOMIC_SEQ_CST);
  return true;
}

static bool passes(uint32_t state, uint32_t most) { return state == GS_OPEN || state == most; }

/* most: GS_AWAY if the call does not need the memory, else GS_OPEN. */
static bool pass(struct gs_passage *passage, uint32_t most, struct gs_patience *patience) {
  for (;;) {
    go_in(passage);
    uint32_t state = __atomic_load_n(&passage->state, __ATOMIC_SEQ_CST);
    if (passes(state, most))
      return true;
    go_out(passage);
    if (state == GS_WATCHED)
      end_watch(passage);
    else if (!await(passage, state, patience))
      return false;
  }
}

/* For the daemon, which sees by it that the program is not idle. */
static void touched(void) {
  if (depth == 0)
    __atomic_add_fetch(&gs_process->slot->touched, 1, __ATOMIC_RELAXED);
}

void gs_touch_enter(struct gs_passage *passage) {
  touched();
  if (depth++ == 0)
    pass(passage, GS_OPEN, NULL);
}

bool gs_touch_begin_for(struct gs_patience *patience) {
  struct gs_passage *passage = gs_passage();
  if (passage)
    touched();
  if (passage && depth == 0 && !pass(passage, GS_OPEN, patience))
    return false;
  depth += passage != NULL;
  return true;
}

void gs_settled_enter(struct gs_passage *passage) {
  if (depth++ > 0)
    return;
  pass(passage, GS_AWAY, NULL);
  /* waits for a piece that is being copied ahead, whose memory the call may end */
  gs_lock(&passage->piece);
  gs_unlock(&passage->piece);
}

void gs_passage_leave(struct gs_passage *passage) {
  if (depth > 0 && --depth == 0)
    go_out(passage);
}

bool gs_passage_step_out(void) {
  if (depth > 0)
    go_out(gs_passage());
  return depth > 0;
}

void gs_passage_step_in(bool inside, bool waits) {
  if (inside && waits)
    pass(gs_passage(), GS_OPEN, NULL);
  else if (inside)
    go_in(gs_passage());
}

bool gs_none_inside(void) { return __atomic_load_n(&gs_passage()->inside, __ATOMIC_SEQ_CST) == 0; }

bool gs_submission_passes(struct gs_passage *passage) {
  if (__atomic_load_n(&passage->state, __ATOMIC_SEQ_CST) == GS_WATCHED)
    end_watch(passage);
  uint32_t state = __atomic_load_n(&passage->state, __ATOMIC_SEQ_CST);
  if (state == GS_AWAY)
    gs_memory_wanted(passage);
  return state == GS_OPEN;
}

uint32_t *gs_launch_word(void) {
  struct gs_passage *passage = gs_passage();
  struct gs_launch_word *free = NULL;
  uint32_t *word = NULL;
  gs_lock(&passage->launch_lock);
  for (uint32_t i = 0; i < GS_LAUNCH_WORDS && !word; i++) {
    if (passage->launch[i].thread == &gs_self)
      word = &passage->launch[i].inside;
    else if (!passage->launch[i].thread && !free)
      free = &passage->launch[i];
  }
  if (!word && free) {
    free->thread = &gs_self;
    word = &free->inside;
  }
  gs_unlock(&passage->launch_lock);
  return word;
}
