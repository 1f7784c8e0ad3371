/* Holds: a test stops a driver call before or after its effect. The lock is taken by test code and by calls made while
 * a hold is placed; a stopped thread waits without it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim/api/holds.h"
#include "sim/api/sim_procs.h"

enum { HOLDS = 32, NAME_BYTES = 80 };

struct hold {
  int number; /* 0: free */
  char function[NAME_BYTES];
  int when;
  int thread;    /* 0: any */
  unsigned skip; /* matching calls still to let pass */
  int stopped;   /* the thread, once there is one */
  bool released;
};

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int numbers; /* given out so far */
  struct hold hold[HOLDS];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;

unsigned sim_holds;

static void condition_new(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&all.changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

/* Stopped threads do not exist in a forked child, and nothing there would release the child's own calls. */
static void child(void) {
  pthread_mutex_init(&all.lock, NULL);
  condition_new();
  memset(all.hold, 0, sizeof all.hold);
  sim_holds = 0;
}

static void set_up(void) {
  condition_new();
  pthread_atfork(NULL, NULL, child);
}

static bool known(const char *function) {
  for (unsigned i = 0; i < sim_nexports; i++)
    if (strcmp(sim_exports[i], function) == 0)
      return true;
  for (unsigned i = 0; i < sim_nprocs; i++)
    if (strcmp(sim_procs[i].base, function) == 0)
      return true;
  return false;
}

static struct hold *hold_of(int number) {
  for (int i = 0; i < HOLDS; i++)
    if (number > 0 && all.hold[i].number == number)
      return &all.hold[i];
  return NULL;
}

int gs_sim_hold(const char *function, int when, int thread, unsigned skip) {
  int number = 0;
  if (!function || strlen(function) >= NAME_BYTES || when < GS_SIM_BEFORE || when > GS_SIM_AFTER || !known(function))
    return -1;
  pthread_once(&once, set_up);
  pthread_mutex_lock(&all.lock);
  for (int i = 0; i < HOLDS && number == 0; i++) {
    struct hold *hold = &all.hold[i];
    if (hold->number)
      continue;
    number = ++all.numbers;
    *hold = (struct hold){.number = number, .when = when, .thread = thread, .skip = skip};
    snprintf(hold->function, sizeof hold->function, "%s", function);
    __atomic_add_fetch(&sim_holds, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&all.lock);
  return number;
}

int gs_sim_held(int number, int timeout_ms) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  int64_t ns = until.tv_nsec + (int64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000;
  until.tv_sec += ns / 1000000000;
  until.tv_nsec = ns % 1000000000;
  pthread_once(&once, set_up);
  pthread_mutex_lock(&all.lock);
  struct hold *hold = hold_of(number);
  for (int error = 0; hold && !hold->stopped && !hold->released && error == 0; hold = hold_of(number))
    error = pthread_cond_timedwait(&all.changed, &all.lock, &until);
  int thread = hold && !hold->released ? hold->stopped : -1;
  pthread_mutex_unlock(&all.lock);
  return thread;
}

int gs_sim_release(int number) {
  int stopped = -1;
  pthread_once(&once, set_up);
  pthread_mutex_lock(&all.lock);
  struct hold *hold = hold_of(number);
  if (hold && !hold->released) {
    stopped = hold->stopped != 0;
    if (stopped) {
      hold->released = true; /* its thread frees it */
    } else {
      hold->number = 0;
      __atomic_sub_fetch(&sim_holds, 1, __ATOMIC_RELAXED);
    }
    pthread_cond_broadcast(&all.changed);
  }
  pthread_mutex_unlock(&all.lock);
  return stopped;
}

static bool matches(const struct hold *hold, const char *name, const char *base, enum gs_sim_when when, int thread) {
  return hold->number && !hold->stopped && hold->when == (int)when && (hold->thread == 0 || hold->thread == thread) &&
         (strcmp(hold->function, name) == 0 || strcmp(hold->function, base) == 0);
}

static void stop_for(struct hold *hold, int thread) {
  hold->stopped = thread;
  __atomic_sub_fetch(&sim_holds, 1, __ATOMIC_RELAXED);
  pthread_cond_broadcast(&all.changed);
  while (!hold->released)
    pthread_cond_wait(&all.changed, &all.lock);
  hold->number = 0;
}

void sim_hold_here(const char *name, const char *base, enum gs_sim_when when) {
  int thread = (int)syscall(SYS_gettid), cancel;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* the waits are cancellation points, driver calls are not */
  pthread_mutex_lock(&all.lock);
  for (int i = 0; i < HOLDS; i++) {
    struct hold *hold = &all.hold[i];
    if (!matches(hold, name, base, when, thread))
      continue;
    if (hold->skip > 0)
      hold->skip--;
    else
      stop_for(hold, thread);
  }
  pthread_mutex_unlock(&all.lock);
  pthread_setcancelstate(cancel, &cancel);
}
