/* Calls in progress that make objects of one kind: the driver may have made an object that is not in the books yet. A
 * call that ends or uses such an object (a handle or an address is easily guessed, since drivers hand them out again)
 * waits for them. */
#ifndef GPUSHARE_MEMORY_MAKING_H
#define GPUSHARE_MEMORY_MAKING_H

#include <stdbool.h>
#include <stdint.h>

/* Two generations of calls, so that a wait ends although new calls keep beginning. All zero is valid. */
struct gs_making {
  uint32_t calls[2]; /* in progress, by generation */
  uint32_t turn;     /* the generation that new calls belong to */
  uint32_t ended;    /* incremented to wake waiters; a futex */
  uint32_t waiters;
};

/* To be called around the driver's call and the recording of its effect. Returns the argument for gs_making_end. */
static inline uint32_t gs_making_begin(struct gs_making *making) {
  uint32_t turn = __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST);
  for (;;) {
    __atomic_fetch_add(&making->calls[turn & 1], 1, __ATOMIC_SEQ_CST);
    uint32_t now = __atomic_load_n(&making->turn, __ATOMIC_SEQ_CST);
    if (__builtin_expect(now == turn, 1))
      return turn & 1;
    __atomic_fetch_sub(&making->calls[turn & 1], 1, __ATOMIC_SEQ_CST);
    turn = now;
  }
}
void gs_making_wake(struct gs_making *making);
static inline void gs_making_end(struct gs_making *making, uint32_t begun) {
  __atomic_fetch_sub(&making->calls[begun], 1, __ATOMIC_SEQ_CST);
  if (__builtin_expect(__atomic_load_n(&making->waiters, __ATOMIC_SEQ_CST) != 0, 0))
    gs_making_wake(making);
}

/* Waits until `known` returns true, or until no call that had begun before can change its answer any more. To be called
 * with no lock held, and not by such a call. */
void gs_making_wait(struct gs_making *making, bool (*known)(void *with), void *with);

/* Waits until `ready` returns true; gs_making_wake makes it look again. False: timed out. With no lock held. */
bool gs_making_await(struct gs_making *making, bool (*ready)(void *with), void *with);

#endif
