#include "interposer/os/latch.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/os/system.h"

enum {
  SPINS = 100,
  BIAS_AFTER = 256, /* times in a row; revoking an ownership costs some microseconds, */
  BIAS_AFTER_MOST = 1 << 16,
  BIAS_WORTH_NS = 20000000, /* so if one did not last this long, the next one takes twice as many */
  LOOK_NS = 20000,
  STORES_SEEN_NS = 1000000, /* within this time a processor's stores are seen by all: a thousand times what is usual */
  MEMBARRIER_PRIVATE = 1 << 3, /* linux/membarrier.h, which old headers lack */
  MEMBARRIER_REGISTER_PRIVATE = 1 << 4
};

__thread char gs_self;
static bool can_revoke;

void gs_latch_slow(struct gs_latch *latch) {
  for (int i = 0; i < SPINS; i++)
    if (__atomic_load_n(&latch->word, __ATOMIC_RELAXED) == 0 && gs_latch_try(latch))
      return;
  while (__atomic_exchange_n(&latch->word, 2, __ATOMIC_ACQUIRE) != 0)
    gs_futex_wait(&latch->word, 2, 0, false);
}

void gs_latch_wake(struct gs_latch *latch) { gs_futex_wake(&latch->word, 1, false); }

void gs_biased_start(void) {
  int saved = errno;
#ifdef SYS_membarrier
  __atomic_store_n(&can_revoke, syscall(SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE, 0) == 0, __ATOMIC_RELEASE);
#endif
  errno = saved;
}

bool gs_stores_seen(void) {
#ifdef SYS_membarrier
  if (syscall(SYS_membarrier, MEMBARRIER_PRIVATE, 0) == 0)
    return true;
#endif
  gs_nap(STORES_SEEN_NS);
  return false;
}

/* Under the latch. */
static void take_away(struct gs_biased *biased) {
  int saved = errno;
  if (gs_now() - biased->since > BIAS_WORTH_NS)
    biased->after = BIAS_AFTER;
  else if (biased->after < BIAS_AFTER_MOST)
    biased->after = 2 * (biased->after ? biased->after : BIAS_AFTER);
  uint32_t *inside = &biased->inside[biased->owner % GS_BIASED_OWNERS];
  __atomic_store_n(&biased->owner, 0, __ATOMIC_RELEASE);
  if (!gs_stores_seen()) /* a seccomp filter installed since gs_biased_start */
    __atomic_store_n(&can_revoke, false, __ATOMIC_RELEASE);
  for (int i = 0; __atomic_load_n(inside, __ATOMIC_ACQUIRE); i++)
    if (i >= SPINS)
      gs_nap(LOOK_NS); /* the owner lost its processor inside */
  errno = saved;
}

/* Returns this thread's word or takes a free one; GS_BIASED_OWNERS: there is none. A thread whose gs_self has the
 * address of an ended thread's takes over that thread's word, which nobody else will write. Under the latch. */
static uint32_t own_word(struct gs_biased *biased) {
  uint32_t word = 0;
  while (word < GS_BIASED_OWNERS && biased->owners[word] && biased->owners[word] != &gs_self)
    word++;
  if (word < GS_BIASED_OWNERS)
    biased->owners[word] = &gs_self;
  return word;
}

void gs_biased_slow(struct gs_biased *biased) {
  gs_latch_take(&biased->latch);
  if (biased->owner)
    take_away(biased);
  biased->latched = true;
  if (biased->last != &gs_self) {
    biased->last = &gs_self;
    biased->run = 0;
  } else if (++biased->run >= (biased->after ? biased->after : BIAS_AFTER) &&
             __atomic_load_n(&can_revoke, __ATOMIC_ACQUIRE)) {
    uint32_t word = own_word(biased);
    biased->run = 0;
    if (word == GS_BIASED_OWNERS)
      return;
    biased->since = gs_now();
    biased->word = word;
    __atomic_store_n(&biased->owner, (uintptr_t)&gs_self | word, __ATOMIC_RELEASE);
  }
}

void gs_biased_leave_latch(struct gs_biased *biased) {
  biased->latched = false;
  gs_latch_drop(&biased->latch);
}
