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
  uint64_t calls = __atomic_load_n(&making->calls[generation & 1], __ATOMIC_SEQ_CST);
  return calls % GS_ONE_WAITS <= calls / GS_ONE_WAITS;
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
  return __atomic_load_n(&making->calls[0], __ATOMIC_SEQ_CST) >= GS_ONE_WAITS ||
         __atomic_load_n(&making->calls[1], __ATOMIC_SEQ_CST) >= GS_ONE_WAITS;
}

bool gs_making_await(struct gs_making *making, bool (*ready)(void *with), void *with) {
  if (__builtin_expect(ready(with), 1))
    return true;
  uint64_t patience = gs_now() + PATIENCE_NS;
  bool is = false;
  __atomic_fetch_add(&making->waiters, 1, __ATOMIC_SEQ_CST);
  for (uint32_t ended; !is && gs_now() < patience;) {
    ended = __atomic_load_n(&making->ended, __ATOMIC_SEQ_CST);
    is = ready(with);
    if (!is)
      gs_futex_wait(&making->ended, ended, PATIENCE_NS, false);
  }
  __atomic_fetch_sub(&making->waiters, 1, __ATOMIC_SEQ_CST);
  return is;
}

void gs_making_wait(struct gs_making *making, uint32_t begun, bool (*known)(void *with), void *with) {
  if (known(with))
    return;
  uint64_t patience = gs_now() + PATIENCE_NS;
  uint32_t waits = __atomic_load_n(&making->waits, __ATOMIC_SEQ_CST);
  bool waited = anyone_waits(making);
  uint32_t began = __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&making->waiters, 1, __ATOMIC_SEQ_CST);
  if (begun != GS_NOT_MAKING) {
    __atomic_fetch_add(&making->waits, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&making->calls[begun], GS_ONE_WAITS, __ATOMIC_SEQ_CST);
    gs_making_wake(making);
  }
  for (bool over = false; !over;) {
    uint32_t ended = __atomic_load_n(&making->ended, __ATOMIC_SEQ_CST);
    over = passed(making, began) || gs_now() > patience; /* looked at before the answer: what ended is in the books */
    if (known(with))
      break;
    /* they wait for each other, and we for all of them: one that waited since `began` may have been passed without having
     * ended */
    bool others = begun == GS_NOT_MAKING && (waited || waits != __atomic_load_n(&making->waits, __ATOMIC_SEQ_CST));
    if (others) {
      waits = __atomic_load_n(&making->waits, __ATOMIC_SEQ_CST);
      waited = anyone_waits(making);
      began = __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST);
    }
    over = over && (!others || gs_now() > patience);
    if (over)
      break;
    if (!others || anyone_waits(making))
      gs_futex_wait(&making->ended, ended, PATIENCE_NS, false);
  }
  if (begun != GS_NOT_MAKING) {
    __atomic_fetch_sub(&making->calls[begun], GS_ONE_WAITS, __ATOMIC_SEQ_CST);
    gs_making_wake(making);
  }
  __atomic_fetch_sub(&making->waiters, 1, __ATOMIC_SEQ_CST);
}
