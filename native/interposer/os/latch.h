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
 * waits until the owner has left. A thread that took the latch often enough in a row becomes the owner.
 *
 * Each thread that was an owner keeps a word of its own here for as long as its gs_self exists: a thread that was
 * preempted just before it stores "inside" makes that store, and undoes it, when it continues, at which time another
 * thread may be the owner and inside. Threads that find no free word take the latch. */
enum { GS_BIASED_OWNERS = 64 };

struct gs_biased {
  /* the owner's gs_self with the number of its word in the lower bits; 0: all threads take the latch */
  uintptr_t owner;
  uint32_t word; /* of the last owner; written under the latch, while no owner is inside */
  bool latched;  /* the thread inside holds the inner latch; written by that thread */
  struct gs_latch latch;
  /* Below: protected by the latch. */
  const void *last;
  uint32_t run;                         /* number of times in a row that `last` took it */
  uint32_t after;                       /* number of times after which it becomes the owner; 0: the minimum */
  uint64_t since;                       /* when the owner became the owner */
  const void *owners[GS_BIASED_OWNERS]; /* the thread that has the word: its gs_self */
  /* The thread is inside as the owner, or is about to check whether it still is; written by that thread only. */
  uint32_t inside[GS_BIASED_OWNERS];
};
void gs_biased_slow(struct gs_biased *biased);
void gs_biased_leave_latch(struct gs_biased *biased);
/* Checks whether this system can revoke an ownership; if not, there are no owners. To be called once per process. */
void gs_biased_start(void);
/* Makes every thread's plain stores from before now visible to this one, and this one's to them (membarrier). Needs
 * gs_biased_start. False: this system cannot; then it waits for as long as that takes at most. */
bool gs_stores_seen(void);

extern __thread char gs_self
    __attribute__((aligned(GS_BIASED_OWNERS), tls_model("initial-exec"), visibility("hidden")));

static inline void gs_biased_take(struct gs_biased *biased) {
  uintptr_t owner = __atomic_load_n(&biased->owner, __ATOMIC_RELAXED);
  if (__builtin_expect((owner & -(uintptr_t)GS_BIASED_OWNERS) == (uintptr_t)&gs_self, 1)) {
    uint32_t *inside = &biased->inside[owner % GS_BIASED_OWNERS];
    __atomic_store_n(inside, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* for other processors, membarrier orders these */
    if (__builtin_expect(__atomic_load_n(&biased->owner, __ATOMIC_ACQUIRE) == owner, 1))
      return;
    __atomic_store_n(inside, 0, __ATOMIC_RELEASE);
  }
  gs_biased_slow(biased);
}
static inline void gs_biased_drop(struct gs_biased *biased) {
  if (__builtin_expect(!biased->latched, 1))
    __atomic_store_n(&biased->inside[biased->word], 0, __ATOMIC_RELEASE);
  else
    gs_biased_leave_latch(biased);
}

#endif
