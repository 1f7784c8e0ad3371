#include "interposer/memory/books/making.h"

#include "interposer/os/guest.h"

/* Upper bound of a wait: a thread that was cancelled in the driver's call never ends the call. */
#define PATIENCE_NS 10000000000u

void gs_making_wake(struct gs_making *making) {
  __atomic_fetch_add(&making->ended, 1, __ATOMIC_SEQ_CST);
  gs_futex_wake(&making->ended, INT32_MAX, false);
}

/* Whether all calls that had begun in generation `began` or before have ended. */
static bool passed(struct gs_making *making, uint32_t began) {
  uint32_t turn = __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST);
  /* the previous generation, whose counter the next one reuses */
  while (turn - began < 2 && __atomic_load_n(&making->calls[(turn + 1) & 1], __ATOMIC_SEQ_CST) == 0)
    if (__atomic_compare_exchange_n(&making->turn, &turn, turn + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      turn++;
  return turn - began >= 2;
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

struct end_of_calls {
  struct gs_making *making;
  uint32_t began;
  bool (*known)(void *with);
  void *with;
};

static bool known_or_ended(void *with) {
  const struct end_of_calls *end = with;
  bool ended = passed(end->making, end->began); /* read before `known`: what ended calls made is in the books */
  return end->known(end->with) || ended;
}

void gs_making_wait(struct gs_making *making, bool (*known)(void *with), void *with) {
  if (known(with))
    return;
  struct end_of_calls end = {making, __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST), known, with};
  gs_making_await(making, known_or_ended, &end);
}
