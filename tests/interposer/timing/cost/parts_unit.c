/* Unit tests of the fast path's lock and clock. parts_unit SECONDS: sets the exit status. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

#include "interposer/os/latch.h"
#include "interposer/os/ticks.h"
#include "../../../support/check.h"

enum { THREADS = 4, SLICES = 64 };

static struct gs_biased lock;
static uint64_t counter, owned, until;
static uint32_t turn;

/* Two threads use it briefly all the time; one thread at a time uses it long enough to become the owner while the
 * others contend. */
static void *hammer(void *argument) {
  uint64_t index = (uint64_t)(uintptr_t)argument, done = 0;
  unsigned int seed = (unsigned int)index;
  while (gs_now() < until) {
    int times = __atomic_load_n(&turn, __ATOMIC_RELAXED) % THREADS == index ? 5000 : 1;
    lock.after = 0; /* makes the owner change as often as possible */
    for (int i = 0; i < times; i++) {
      uint64_t seen;
      gs_biased_take(&lock);
      seen = counter;
      if (!lock.latched)
        owned++;
      for (volatile int k = rand_r(&seed) % 8; k > 0; k--) {
      }
      if (rand_r(&seed) % 2048 == 0)
        usleep(30); /* a preemption inside the lock */
      counter = seen + 1;
      gs_biased_drop(&lock);
      done++;
    }
    if (times > 1)
      __atomic_add_fetch(&turn, 1, __ATOMIC_RELAXED);
    else
      for (volatile int k = rand_r(&seed) % 20000; k > 0; k--) {
      }
  }
  return (void *)(uintptr_t)done;
}

static void check_lock(uint64_t seconds) {
  pthread_t threads[THREADS];
  uint64_t sum = 0;
  gs_biased_start();
  until = gs_now() + seconds * 1000000000u;
  for (uintptr_t i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, hammer, (void *)i);
  for (int i = 0; i < THREADS; i++) {
    void *done;
    pthread_join(threads[i], &done);
    sum += (uint64_t)(uintptr_t)done;
  }
  printf("%llu entries, %llu without the latch\n", (unsigned long long)sum, (unsigned long long)owned);
  CHECK(counter == sum);
  CHECK(owned > 0 && owned < sum);
}

/* An owner is preempted at any instruction, until another thread has become the owner: it continues as if it still
 * were. */
static struct gs_biased left;
static uint64_t left_counter;
static uint32_t left_over, burst;
enum { LEAD = 400, TAIL = 5, INSTRUCTIONS = 150 }; /* INSTRUCTIONS: about as many as enter() executes */

static void enter(int moment) {
  gs_biased_take(&left);
  uint64_t seen = left_counter;
  for (volatile int k = moment; k > 0; k--) {
  }
  left_counter = seen + 1;
  gs_biased_drop(&left);
}

/* Returns once the other thread has become the owner, or after 1 ms, if this thread is inside and keeps it out. In its
 * last TAIL entries the other stays inside for longer than it takes to revoke an ownership. */
static void lose_the_processor(void) {
  uint64_t end = gs_now() + 1000000;
  __atomic_store_n(&burst, LEAD + TAIL, __ATOMIC_RELAXED);
  while (__atomic_load_n(&burst, __ATOMIC_RELAXED) > TAIL && gs_now() < end) {
  }
}

#ifdef __x86_64__
enum { TRAP = 0x100 }; /* trap flag of EFLAGS: a signal after each instruction */

static void begin_to_step(int signal, siginfo_t *about, void *context) {
  (void)signal, (void)about;
  /* An exiting thread blocks all signals and must not trap. */
  if (!__atomic_load_n(&left_over, __ATOMIC_RELAXED))
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP;
}

/* Loses the processor one instruction later than the last time. */
static void step(int signal, siginfo_t *about, void *context) {
  static int steps, at = 1;
  (void)signal, (void)about;
  if (!__atomic_load_n(&left_over, __ATOMIC_RELAXED)) {
    if (++steps < at)
      return;
    lose_the_processor();
  }
  steps = 0;
  at = at % INSTRUCTIONS + 1;
  ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP;
}
#else
static void begin_to_step(int signal, siginfo_t *about, void *context) {
  (void)signal, (void)about, (void)context;
  lose_the_processor();
}
#endif

static void *one(void *argument) {
  uint64_t entries = 0;
  (void)argument;
  for (; !__atomic_load_n(&left_over, __ATOMIC_RELAXED); entries++) {
    left.after = 0; /* makes the owner change as often as possible */
    enter(10);
  }
  return (void *)(uintptr_t)entries;
}

static void *other(void *argument) {
  uint64_t entries = 0;
  (void)argument;
  while (!__atomic_load_n(&left_over, __ATOMIC_RELAXED)) {
    if (!__atomic_load_n(&burst, __ATOMIC_RELAXED))
      continue;
    left.after = 0;
    enter(burst > TAIL ? 10 : 20000);
    entries++;
    __atomic_store_n(&burst, burst - 1, __ATOMIC_RELAXED);
  }
  return (void *)(uintptr_t)entries;
}

static void check_owner_that_was_left_behind(uint64_t seconds) {
  pthread_t threads[2];
  void *entries[2];
  struct sigaction begin = {.sa_sigaction = begin_to_step, .sa_flags = SA_SIGINFO};
  sigaction(SIGUSR1, &begin, NULL);
#ifdef __x86_64__
  struct sigaction each = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
  sigfillset(&each.sa_mask);
  sigaction(SIGTRAP, &each, NULL);
#endif
  pthread_create(&threads[0], NULL, one, NULL);
  pthread_create(&threads[1], NULL, other, NULL);
  for (uint64_t end = gs_now() + seconds * 1000000000u; gs_now() < end;) {
    usleep(300);
    pthread_kill(threads[0], SIGUSR1);
  }
  __atomic_store_n(&left_over, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], &entries[i]);
  CHECK(left_counter == (uint64_t)(uintptr_t)entries[0] + (uint64_t)(uintptr_t)entries[1]);
}

/* More live threads than there are owner words: first one after the other, then all at once. */
enum { CROWD = GS_BIASED_OWNERS + 4, TIMES = 2000 };
static struct gs_biased crowded;
static uint64_t crowd_counter;
static uint32_t crowd_turn, crowd_owners;

static void *one_of_many(void *argument) {
  uint32_t index = (uint32_t)(uintptr_t)argument;
  while (__atomic_load_n(&crowd_turn, __ATOMIC_ACQUIRE) != index)
    usleep(50);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < TIMES; i++) {
      gs_biased_take(&crowded);
      crowd_counter++;
      crowded.after = 0;
      gs_biased_drop(&crowded);
    }
    if (round)
      break;
    crowd_owners += crowded.owner - crowded.owner % GS_BIASED_OWNERS == (uintptr_t)&gs_self;
    __atomic_store_n(&crowd_turn, index + 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&crowd_turn, __ATOMIC_ACQUIRE) != CROWD)
      usleep(50);
  }
  return NULL;
}

static void check_more_threads_than_words(void) {
  pthread_t threads[CROWD];
  for (uintptr_t i = 0; i < CROWD; i++)
    CHECK(pthread_create(&threads[i], NULL, one_of_many, (void *)i) == 0);
  for (int i = 0; i < CROWD; i++)
    pthread_join(threads[i], NULL);
  CHECK(crowd_counter == 2 * CROWD * TIMES);
  CHECK(crowd_owners == GS_BIASED_OWNERS);
}

static void check_clock(uint64_t seconds) {
  struct gs_ticks ticks = {0};
  uint64_t last = 0, quick = 0, end = gs_now() + seconds * 1000000000u, worst = 0, n = 0;
  while (last < end) {
    uint64_t before = gs_now(), now, after;
    uint64_t compared = ticks.ns;
    now = gs_ticks_at(&ticks, gs_ticks_read());
    after = gs_now();
    CHECK(now >= last);
    quick += compared == ticks.ns && ticks.within > 0;
    last = now;
    n++;
    if (after - before > 20000)
      continue; /* the thread was preempted */
    if (now + 1000 < before && before - now > worst)
      worst = before - now;
    if (now > after + 1000 && now - after > worst)
      worst = now - after;
  }
  printf("%llu readings, %llu of the counter alone, at most %llu ns more than 1000 off\n", (unsigned long long)n,
         (unsigned long long)quick, (unsigned long long)worst);
  CHECK(worst <= 20000);
  /* A counter that jumped is not trusted again. */
  if (ticks.within > 0) {
    ticks.tick -= (uint64_t)(1e9 / ((double)ticks.scale / 4294967296.0));
    for (int i = 0; i < 10000 && !ticks.broken; i++) { /* an interrupted comparison is inconclusive */
      ticks.within = 0;
      gs_ticks_at(&ticks, gs_ticks_read());
    }
    CHECK(ticks.broken && ticks.within == 0);
    last = gs_ticks_at(&ticks, gs_ticks_read());
    CHECK(last <= gs_now() && gs_now() - last < 1000000000u);
  }
}

int main(int argc, char **argv) {
  uint64_t seconds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  check_clock(seconds);
  check_lock(seconds);
  check_owner_that_was_left_behind(seconds);
  check_more_threads_than_words();
  return 0;
}
