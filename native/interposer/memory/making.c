#include "interposer/memory/making.h"

#include "interposer/os/guest.h"

/* A thread that was cancelled in the driver's call never ends it. */
#define PATIENCE_NS 10000000000u

void gs_making_wake(struct gs_making *making) {
  __atomic_fetch_add(&making->ended, 1, __ATOMIC_SEQ_CST);
  gs_futex_wake(&making->ended, INT32_MAX, false);
}

/* All calls of the generation have ended, or only wait. */
static bool drained(struct gs_making *making, uint32_t generation) {
  uint32_t waiting = __atomic_load_n(&making->waiting[generation & 1], __ATOMIC_SEQ_CST);
  return __atomic_load_n(&making->calls[generation & 1], __ATOMIC_SEQ_CST) <= waiting;
}

/* Whether all calls that had begun in generation `began` or before have ended. */
static bool passed(struct gs_making *making, uint32_t began) {
  uint32_t turn = __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST);
  while (turn - began < 2 && drained(making, turn + 1)) /* the one before: it becomes the next */
    if (__atomic_compare_exchange_n(&making->turn, &turn, turn + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      turn++;
  return turn - began >= 2;
}

static bool anyone_waits(struct gs_making *making) {
  return __atomic_load_n(&making->waiting[0], __ATOMIC_SEQ_CST) +
             __atomic_load_n(&making->waiting[1], __ATOMIC_SEQ_CST) >
         0;
}

void gs_making_wait(struct gs_making *making, uint32_t begun, bool (*known)(void *with), void *with) {
  if (known(with))
    return;
  uint64_t patience = gs_now() + PATIENCE_NS;
  uint32_t began = __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&making->waiters, 1, __ATOMIC_SEQ_CST);
  if (begun != GS_NOT_MAKING) {
    __atomic_fetch_add(&making->waiting[begun], 1, __ATOMIC_SEQ_CST);
    gs_making_wake(making);
  }
  for (bool over = false; !over;) {
    uint32_t ended = __atomic_load_n(&making->ended, __ATOMIC_SEQ_CST);
    if (begun == GS_NOT_MAKING && anyone_waits(making))
      began = __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST); /* they wait for each other, and we for all of them */
    over = passed(making, began) || gs_now() > patience; /* looked at before the answer: what ended is in the books */
    if (known(with))
      break;
    over = over && !(begun == GS_NOT_MAKING && anyone_waits(making));
    if (over)
      break;
    gs_futex_wait(&making->ended, ended, PATIENCE_NS, false);
  }
  if (begun != GS_NOT_MAKING) {
    __atomic_fetch_sub(&making->waiting[begun], 1, __ATOMIC_SEQ_CST);
    gs_making_wake(making);
  }
  __atomic_fetch_sub(&making->waiters, 1, __ATOMIC_SEQ_CST);
}
