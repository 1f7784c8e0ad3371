/* Process-private locks that take one atomic operation when they are free. */
#ifndef GPUSHARE_LATCH_H
#define GPUSHARE_LATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "interposer/os/guest.h"

/* A futex-based lock. */
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

/* A latch that one thread, its owner, takes and releases with two plain stores, since most programs launch from one
 * thread. Another thread takes the inner latch, revokes the ownership, makes all processors see that (membarrier) and
 * waits until the owner has left. A thread that took the latch often enough in a row becomes the owner. */
struct gs_biased {
  const void *owner; /* a thread's gs_self; NULL: all threads take the latch */
  /* the owner is inside, or is about to check whether it still owns the latch; written by the owner only */
  uint32_t inside;
  bool latched; /* the thread inside holds the inner latch; written by that thread */
  struct gs_latch latch;
  /* Below: protected by the latch. */
  const void *last;
  uint32_t run;   /* number of times in a row that `last` took it */
  uint32_t after; /* number of times after which it becomes the owner; 0: the minimum */
  uint64_t since; /* when the owner became the owner */
};
void gs_biased_slow(struct gs_biased *biased);
void gs_biased_leave_latch(struct gs_biased *biased);
/* Checks whether this system can revoke an ownership; if not, there are no owners. To be called once per process. */
void gs_biased_start(void);

extern __thread char gs_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline void gs_biased_take(struct gs_biased *biased) {
  if (__builtin_expect(__atomic_load_n(&biased->owner, __ATOMIC_RELAXED) == &gs_self, 1)) {
    __atomic_store_n(&biased->inside, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* for other processors, membarrier orders these */
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
