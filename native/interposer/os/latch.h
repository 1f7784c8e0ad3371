/* Process-private locks. */
#ifndef GPUSHARE_LATCH_H
#define GPUSHARE_LATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "interposer/os/guest.h"

/* One atomic exchange when it is free. */
struct gs_latch {
  uint32_t word; /* 0 free, 1 held, 2 held and waited for */
};
void gs_latch_slow(struct gs_latch *latch);
void gs_latch_wake(struct gs_latch *latch);

static inline bool gs_latch_try(struct gs_latch *latch) {
  uint32_t free_word = 0;
  return __atomic_compare_exchange_n(&latch->word, &free_word, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
static inline void gs_latch_take(struct gs_latch *latch) {
  if (__builtin_expect(!gs_latch_try(latch), 0))
    gs_latch_slow(latch);
}
static inline void gs_latch_drop(struct gs_latch *latch) {
  if (__builtin_expect(__atomic_exchange_n(&latch->word, 0, __ATOMIC_RELEASE) == 2, 0))
    gs_latch_wake(latch);
}

/* A latch that one thread, its owner, passes with two plain stores: most programs launch from one thread. Another
 * thread takes the latch, takes the ownership away, makes every processor see that (membarrier) and waits until the
 * owner is out. A thread that took the latch often enough in a row becomes the owner. */
struct gs_biased {
  const void *owner; /* a thread's gs_self; NULL: everybody takes the latch */
  uint32_t inside;   /* the owner is, or is about to look whether it still owns; written by it alone */
  bool latched;      /* the thread inside holds the latch; written by that thread */
  struct gs_latch latch;
  /* Below: under the latch. */
  const void *last;
  uint32_t run;   /* times in a row that `last` took it */
  uint32_t after; /* so many make it the owner; 0: the least */
  uint64_t since; /* when the owner became it */
};
void gs_biased_slow(struct gs_biased *biased);
void gs_biased_leave_latch(struct gs_biased *biased);
/* Whether this system can take an ownership away; without it there is none. Once per process. */
void gs_biased_start(void);

extern __thread char gs_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline void gs_biased_take(struct gs_biased *biased) {
  if (__builtin_expect(__atomic_load_n(&biased->owner, __ATOMIC_RELAXED) == &gs_self, 1)) {
    __atomic_store_n(&biased->inside, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* between processors membarrier does it */
    if (__builtin_expect(__atomic_load_n(&biased->owner, __ATOMIC_ACQUIRE) == &gs_self, 1))
      return;
    __atomic_store_n(&biased->inside, 0, __ATOMIC_RELEASE);
  }
  gs_biased_slow(biased);
}
static inline void gs_biased_drop(struct gs_biased *biased) {
  if (__builtin_expect(!biased->latched, 1))
    __atomic_store_n(&biased->inside, 0, __ATOMIC_RELEASE);
  else
    gs_biased_leave_latch(biased);
}

#endif
