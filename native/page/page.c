#include "page/page.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "page/gs_clock.h"

/* Another process decides its announcement within nanoseconds, and a call in progress takes microseconds, unless it was
 * descheduled: yield first, then sleep, and give up after PATIENCE_NS. */
enum { YIELD_NS = 1000000, NAP_NS = 1000000, PATIENCE_NS = 200000000 };

static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

static uint32_t slots_high(const struct gs_limits *limits) {
  uint32_t high = __atomic_load_n(&limits->slots_high, __ATOMIC_SEQ_CST);
  return high > GS_MAX_SLOTS ? GS_MAX_SLOTS : high;
}

struct sums {
  uint64_t held;   /* reserved by all slots, except for calls in progress */
  uint64_t all;    /* held, and what is reserved for calls in progress or announced */
  bool growing;    /* calls are in progress */
  uint32_t lowest; /* lowest other slot with an undecided announcement; UINT32_MAX: none */
};

/* Bytes move from the announcement to the call in progress and on to what is held. The words of a slot are read in that
 * order, and the owner adds to the next word before it takes from the one before, so in every interleaving the bytes are
 * counted at least once. */
static struct sums sum(const struct gs_pages *pages, uint32_t slot, uint32_t device) {
  struct sums sums = {0, 0, false, UINT32_MAX};
  uint32_t high = slots_high(pages->limits);
  if (high <= slot)
    high = slot + 1; /* include our own slot even if the daemon's slots_high does not cover it yet */
  for (uint32_t i = 0; i < high; i++) {
    const struct gs_slot_device *words = &pages->usage->slot[i].device[device];
    uint64_t pending = __atomic_load_n(&words->memory_pending, __ATOMIC_SEQ_CST);
    uint64_t growing = __atomic_load_n(&words->memory_growing, __ATOMIC_SEQ_CST);
    uint64_t held = __atomic_load_n(&words->memory_bytes, __ATOMIC_SEQ_CST);
    sums.held = add(sums.held, held);
    sums.all = add(sums.all, add(held, add(growing, pending)));
    sums.growing = sums.growing || growing;
    if (pending && i != slot && sums.lowest == UINT32_MAX)
      sums.lowest = i;
  }
  return sums;
}

/* Bytes that the processes of the grant may hold: the limit less what is uncharged. */
static uint64_t room(const struct gs_pages *pages, uint32_t device) {
  const struct gs_device_limits *limits = &pages->limits->device[device];
  uint64_t bytes = __atomic_load_n(&limits->memory_bytes, __ATOMIC_ACQUIRE);
  uint64_t uncharged = __atomic_load_n(&limits->uncharged_bytes, __ATOMIC_ACQUIRE);
  return bytes > uncharged ? bytes - uncharged : 0;
}

/* A direct system call, because libc's nanosleep is a cancellation point: a thread cancelled here would leave its
 * announcement behind. */
static void nap(uint64_t ns) {
  struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  syscall(SYS_nanosleep, &time, NULL);
}

/* Yields or sleeps briefly. False if PATIENCE_NS have passed since `began`. */
static bool wait_a_moment(uint64_t began) {
  uint64_t waited = gs_clock_own() - began;
  if (waited > PATIENCE_NS)
    return false;
  if (waited < YIELD_NS) {
    sched_yield();
  } else {
    nap(NAP_NS);
  }
  return true;
}

static bool undecided(const struct gs_pages *pages, uint32_t slot, uint32_t device) {
  return __atomic_load_n(&pages->usage->slot[slot].device[device].memory_pending, __ATOMIC_SEQ_CST) != 0;
}

/* Announce, then check. If two processes announce at the same time, at least one sees the other. If both do, the lower
 * slot proceeds and the higher one withdraws until the lower one is decided. A process that waits for a call in
 * progress keeps its announcement, so that the next such call does not get ahead of it. */
static int claim(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes, uint64_t *word,
                 bool patient) {
  struct gs_slot_device *own = &pages->usage->slot[slot].device[device];
  uint64_t limit = room(pages, device);
  if (bytes == 0)
    return 0;
  if (bytes > limit)
    return -ENOMEM;
  int saved = errno, rc = -EAGAIN;
  uint64_t began = 0;
  bool again = true;
  while (rc == -EAGAIN && again) {
    __atomic_store_n(&own->memory_pending, bytes, __ATOMIC_SEQ_CST);
    struct sums sums = sum(pages, slot, device);
    if (sums.all <= limit) {
      __atomic_fetch_add(word, bytes, __ATOMIC_SEQ_CST);
      rc = 0;
    } else if (add(sums.held, bytes) > limit) {
      rc = -ENOMEM;
    } else if (!patient) {
      again = false;
    } else if (sums.lowest < slot) {
      __atomic_store_n(&own->memory_pending, 0, __ATOMIC_SEQ_CST);
      began = began ? began : gs_clock_own();
      while (undecided(pages, sums.lowest, device) && rc == -EAGAIN)
        if (!wait_a_moment(began))
          rc = -ENOMEM;
    } else if (sums.growing || sums.lowest != UINT32_MAX) { /* else the sum is out of date */
      began = began ? began : gs_clock_own();
      if (!wait_a_moment(began))
        rc = -ENOMEM;
    }
  }
  __atomic_store_n(&own->memory_pending, 0, __ATOMIC_RELEASE); /* after the bytes were added */
  errno = saved;
  return rc;
}

int gs_page_reserve(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes, bool patient) {
  return claim(pages, slot, device, bytes, &pages->usage->slot[slot].device[device].memory_bytes, patient);
}

void gs_page_give_back(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes) {
  __atomic_fetch_sub(&pages->usage->slot[slot].device[device].memory_bytes, bytes, __ATOMIC_SEQ_CST);
}

int gs_page_grow(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes, bool patient) {
  return claim(pages, slot, device, bytes, &pages->usage->slot[slot].device[device].memory_growing, patient);
}

void gs_page_grown(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes, uint64_t taken) {
  struct gs_slot_device *own = &pages->usage->slot[slot].device[device];
  if (taken > 0)
    __atomic_fetch_add(&own->memory_bytes, taken, __ATOMIC_SEQ_CST);
  __atomic_fetch_sub(&own->memory_growing, bytes, __ATOMIC_SEQ_CST);
}

void gs_page_span(const struct gs_pages *pages, uint32_t device, uint64_t *least, uint64_t *most) {
  struct sums sums = sum(pages, 0, device);
  *least = sums.held;
  *most = sums.all;
}

uint64_t gs_page_used(const struct gs_pages *pages, uint32_t device) {
  uint64_t used = __atomic_load_n(&pages->limits->device[device].uncharged_bytes, __ATOMIC_ACQUIRE);
  uint32_t high = slots_high(pages->limits);
  for (uint32_t i = 0; i < high; i++)
    used = add(used, __atomic_load_n(&pages->usage->slot[i].device[device].memory_bytes, __ATOMIC_ACQUIRE));
  return used;
}

struct gs_memory gs_page_memory(const struct gs_pages *pages, uint32_t device, uint64_t total) {
  uint64_t limit = __atomic_load_n(&pages->limits->device[device].memory_bytes, __ATOMIC_ACQUIRE);
  uint64_t used = pages->usage ? gs_page_used(pages, device) : 0;
  if (limit > total)
    limit = total;
  if (used > limit)
    used = limit;
  return (struct gs_memory){.total = total, .withdrawn = total - limit, .used = used, .free = limit - used};
}
