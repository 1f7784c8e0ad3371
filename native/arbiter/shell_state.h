/* Insides of the arbiter around its cores, shared by shell.c (the thread) and api.c (what Python calls). */
#ifndef GS_SHELL_STATE_H
#define GS_SHELL_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "core.h"
#include "gs_arbiter.h"

#define NEVER UINT64_MAX
#define TICK_NS UINT64_C(50000000)
/* What a tenant may claim to have queued; its own word is all there is. */
#define QUEUE_CLAIM_MAX_NS UINT64_C(1000000000)
/* Bells of one grant per tick before it is not listened to until the next: a tenant that rings in a loop costs no core. */
#define BELLS_PER_TICK 500
/* What epoll says of what is not a bell. */
#define STOPPER UINT64_C(0xffffffff)
#define TIMER UINT64_C(0xfffffffe)
#define NO_ORDINAL 0xff
enum { EVENTS = 4096, WAKES_MAX = 512 };

struct entry {
  bool present, muted;
  uint32_t generation; /* of this place in the table: tells late epoll events from fresh ones */
  struct gs_limits *limits;
  struct gs_usage *usage;
  int bell; /* our own duplicate */
  uint32_t bells, live, ndevices;
  uint32_t device[GS_MAX_DEVICES];                /* by ordinal */
  uint8_t ordinal[GS_ARBITER_MAX_DEVICES];        /* by node index */
  uint64_t dead_busy_ns[GS_MAX_DEVICES];          /* metered by processes that are gone */
  uint64_t memory_bytes[GS_MAX_DEVICES], memory_peak_bytes[GS_MAX_DEVICES];
};

struct gs_arbiter {
  struct gs_arbiter_config config;
  pthread_mutex_t lock;
  pthread_t thread;
  int epoll, timer, stopper;
  bool stopping;
  int32_t next_handle;
  uint64_t armed_ns, tick_ns; /* when the timer is set to fire, when the next tick is due; NEVER: not */
  gs_core *core[GS_ARBITER_MAX_DEVICES];
  uint64_t due_ns[GS_ARBITER_MAX_DEVICES]; /* when a core wants its next step */
  struct entry grant[GS_ARBITER_MAX_GRANTS];
  uint32_t *wake[WAKES_MAX];
  int nwakes;
  uint64_t nevents; /* ever recorded: the sequence number of the newest */
  struct gs_event event[EVENTS];
};

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint32_t load32(const uint32_t *word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline uint64_t load64(const uint64_t *word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Everything below is called with the mutex held. */

/* Ends every critical section: drops the mutex, then wakes the futexes of changed words. */
void arbiter_release_and_wake(gs_arbiter *a);
/* Decides what is due and arms the timer. */
void arbiter_run(gs_arbiter *a, uint64_t now);
/* Something about a grant may be new: look, and decide on its devices in the next run. */
void arbiter_changed(gs_arbiter *a, int32_t grant, uint64_t now);
void arbiter_look_at(struct entry *e, uint32_t ordinal, uint64_t now, struct gs_core_view *view);
void arbiter_set_lease(gs_arbiter *a, struct entry *e, uint32_t ordinal, bool held);
void arbiter_set_bound(const gs_arbiter *a, struct entry *e, uint32_t ordinal, enum gs_core_company company);
uint32_t arbiter_slots_of(const struct entry *e);

/* The one function that is called without it. */
int arbiter_start_thread(gs_arbiter *a, struct gs_err *err);

#endif
