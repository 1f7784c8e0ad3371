/* What the tenants, the monitor and the controller of one measurement share: a file of one struct bench_page. A tenant
 * writes its own entry, but for `lease`, which is the controller's; Python writes `go` and `stop`. Times are
 * CLOCK_MONOTONIC ns. */
#ifndef BENCH_PAGE_H
#define BENCH_PAGE_H

#include <stdint.h>

enum { BENCH_TENANTS = 256, BENCH_ENTRY_BYTES = 128, BENCH_HEAD_BYTES = 64 };

enum { BENCH_CALL_NS = 50000 }; /* what a driver call may take by itself */

struct bench_tenant {
  uint32_t lease;    /* futex; odd: may submit. Used by the lock and the rotation */
  uint32_t released; /* the even lease after which nothing of ours is on the device any more */
  uint32_t give_up;  /* an odd lease that we do not need any longer */
  uint32_t waiting;  /* in the gate */
  uint32_t share_milli;
  int32_t pid;
  uint64_t asked_ns; /* since when it waits */
  uint64_t kernels;  /* submitted */
  /* Inside driver calls or the gate, so with something for the device: since when (0: not now), and how long before
   * that, without the first BENCH_CALL_NS of each time. */
  uint64_t wanting_since_ns, wanted_ns;
  uint64_t reserved[9];
};

struct bench_page {
  uint32_t go, stop;
  uint32_t bell; /* futex of the controller */
  uint32_t ntenants;
  uint32_t reserved[12];
  struct bench_tenant tenant[BENCH_TENANTS];
};

_Static_assert(sizeof(struct bench_tenant) == BENCH_ENTRY_BYTES, "layout, read by measure.py");
_Static_assert(__builtin_offsetof(struct bench_page, tenant) == BENCH_HEAD_BYTES, "layout, read by measure.py");

/* Ends the program when it cannot. */
struct bench_page *page_map(const char *path);
/* Sleeps until *word != seen, at most ns. */
void futex_wait(uint32_t *word, uint32_t seen, uint64_t ns);
void futex_wake(uint32_t *word);
/* Wakes the controller after a change. */
void ring(struct bench_page *page);
uint64_t clock_ns(void);

static inline uint32_t load32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
static inline void store32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }
static inline uint64_t load64(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
static inline void store64(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

#endif
