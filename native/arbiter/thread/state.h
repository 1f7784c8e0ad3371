/* Private state of the arbiter around its cores: the table of grants, and the functions that the files of this
 * directory offer to each other. */
#ifndef GS_ARBITER_THREAD_STATE_H
#define GS_ARBITER_THREAD_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "arbiter/core/core.h"
#include "arbiter/core/gangs.h"
#include "arbiter/gs_arbiter.h"
#include "arbiter/thread/claims.h"

#define NEVER UINT64_MAX
#define TICK_NS UINT64_C(50000000)
/* Upper bound of the queued work that a tenant is believed to have, since only the tenant reports it. */
#define QUEUE_CLAIM_MAX_NS UINT64_C(1000000000)
/* Bells of one grant that are handled per tick. Further ones are ignored until the next tick, so that a tenant that
 * rings in a loop costs little. */
#define BELLS_PER_TICK 500
/* The arbiter wakes at most this many waiters at each change of a lease word, and they wake the others: a tenant
 * decides how many threads wait, and waking ten thousand takes 80 ms. */
#define WOKEN_MAX 64
/* epoll data of events other than bells. */
#define STOPPER UINT64_C(0xffffffff)
#define TIMER UINT64_C(0xfffffffe)
#define NO_ORDINAL 0xff
enum {
  /* words that one pass over all devices and one step of the gangs can change */
  WAKES_PASS = GS_ARBITER_MAX_DEVICES * GS_CORE_DECISIONS + GS_GANG_DECISIONS,
  WAKES_MAX = 2 * WAKES_PASS
};

/* How far the ranks of a gang have come, so that they stop at the same collective. */
struct cuts {
  bool begun;        /* processes from before the arbiter are noted: from now on each counts from its join */
  bool open;         /* some ranks may go on without a lease */
  bool uneven;       /* the leases are revoked, and some ranks have submitted more than others */
  uint64_t since_ns; /* when they were opened */
  uint32_t generation[GS_MAX_SLOTS];
  uint64_t base[GS_MAX_SLOTS][GS_MAX_DEVICES];
};

/* A lie that is not in the record yet. */
struct report {
  uint32_t ordinal;
  struct gs_lie lie;
};
enum { REPORTS_MAX = 8 }; /* lies recorded per observation of a grant's pages; further ones mark without an event */

struct entry {
  bool present, muted;
  uint32_t generation;  /* of this place in the table: distinguishes late epoll events from current ones */
  uint64_t observed_in; /* section in which the grant's pages were last passed to the cores; 0: pass them again */
  struct gs_limits *limits;
  struct gs_usage *usage;
  struct gs_seats *seats;  /* which slots of usage count; the page's own words do not */
  struct gs_claim *claims; /* [ordinal * GS_MAX_SLOTS + slot] */
  int bell;                /* a duplicate that the arbiter owns */
  uint32_t bells, live, marked, ndevices;
  struct report reports[REPORTS_MAX];
  uint32_t nreports, lies; /* lies: recorded in the second that began at lies_from_ns */
  uint64_t lies_from_ns;
  struct cuts *cuts;                       /* a gang's, else NULL */
  uint32_t device[GS_MAX_DEVICES];         /* by ordinal */
  uint8_t ordinal[GS_ARBITER_MAX_DEVICES]; /* by node index */
  uint64_t dead_busy_ns[GS_MAX_DEVICES];   /* device time metered by processes that have ended */
  uint64_t dead_launches[GS_MAX_DEVICES];  /* their launches */
  uint64_t launches[GS_MAX_DEVICES];       /* of all processes */
  struct gs_metered metered[GS_MAX_DEVICES];
  uint64_t memory_bytes[GS_MAX_DEVICES], memory_peak_bytes[GS_MAX_DEVICES];
};

struct gs_arbiter {
  struct gs_arbiter_config config;
  uint64_t began_ns;
  pthread_mutex_t lock;
  pthread_t thread;
  int epoll, timer, stopper;
  bool stopping;
  uint64_t section; /* number of the critical section, from 1 */
  int32_t next_place;
  uint64_t armed_ns, tick_ns; /* when the timer is set to fire, when the next tick is due; NEVER: not */
  gs_core *core[GS_ARBITER_MAX_DEVICES];
  uint64_t due_ns[GS_ARBITER_MAX_DEVICES]; /* when a core wants its next step */
  gs_gangs *gangs;
  int ngangs;
  uint64_t gangs_due_ns;
  struct entry grant[GS_ARBITER_MAX_GRANTS];
  uint32_t *wake[WAKES_MAX];
  int nwakes;
  uint64_t nevents; /* ever recorded: the sequence number of the newest */
  struct gs_event event[GS_ARBITER_EVENTS];
};

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Places in the table are reused. A handle also contains the number of uses, so that no two of 2^21 successive grants
 * in one place share a handle; it stays below 2^31. */
static inline int32_t handle_of(const gs_arbiter *a, int32_t place) {
  return (int32_t)(((a->grant[place].generation - 1) & 0x1fffff) * GS_ARBITER_MAX_GRANTS + (uint32_t)place);
}

static inline int32_t place_of(int32_t handle) { return handle % GS_ARBITER_MAX_GRANTS; }

static inline uint32_t load32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static inline uint64_t load64(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static inline struct gs_claim *arbiter_claim(const struct entry *e, uint32_t ordinal, uint32_t slot) {
  return &e->claims[ordinal * GS_MAX_SLOTS + slot];
}

/* The process that has a slot; NULL: nobody. */
static inline const struct gs_seat *arbiter_seat(const struct entry *e, uint32_t slot) {
  const struct gs_seat *seat = &e->seats->seat[slot];
  return load32(&seat->taken) ? seat : NULL;
}

/* Everything below is called with the mutex held. */

/* pages.c */
/* Number of slots that may be in use. */
uint32_t arbiter_slots_of(const struct entry *e);
/* Sums the believed words of the grant's processes for a device, and updates the grant's memory and metered time. */
void arbiter_read_view(struct entry *e, uint32_t ordinal, uint64_t now, struct gs_core_view *view);
/* Empties a slot, and adds its process's metered time and launches to the grant's sums. */
void arbiter_clear_slot(struct entry *e, uint32_t slot);
/* Passes what a grant's processes wrote to its cores: once per section, and again after its leases have changed. */
void arbiter_observe(gs_arbiter *a, int32_t grant, uint64_t now);
/* Ends a critical section: releases the mutex, then wakes the waiters on changed words. */
void arbiter_release_and_wake(gs_arbiter *a);
void arbiter_set_lease(gs_arbiter *a, struct entry *e, uint32_t ordinal, bool held);
void arbiter_set_bound(const gs_arbiter *a, struct entry *e, uint32_t ordinal, enum gs_core_company company);
/* Writes into the pages of a grant how many others have work on the device at a time. */
void arbiter_publish_foreign_work(struct entry *e, uint32_t ordinal, uint32_t others, uint64_t now);
/* Wakes the threads that wait on these ordinals (one bit each), because of a new cut. */
void arbiter_wake_cut(gs_arbiter *a, struct entry *e, uint32_t ordinals);

/* cut.c: for the entry of a gang. The last two return the ordinals (one bit each) whose waiting threads have to be
 * woken. */
/* The gang has been added: notes the processes that it has already. */
void arbiter_begin_cuts(struct entry *e);
/* To be called before the gang's leases are revoked: sets how far each rank may still go. */
uint32_t arbiter_set_cuts(struct entry *e, uint64_t now);
/* Follows the ranks after that. held: the gang has its leases. *drained: none of its work has outlived a revoke; in: as
 * known to the cores, out: the actual state. *next_ns: when to call again. */
uint32_t arbiter_follow_ranks(struct entry *e, bool held, bool *drained, uint64_t now, uint64_t *next_ns);

/* decisions.c */
/* Writes a decision into the pages and the record. */
void arbiter_carry_out(gs_arbiter *a, uint32_t device, const struct gs_core_decision *d, uint64_t now);
/* Writes a decision into the record only. */
void arbiter_record(gs_arbiter *a, uint32_t device, const struct gs_core_decision *d, uint64_t now);

/* gangs.c */
/* Acts for at most one gang after the cores have decided; returns whether cores have to decide again. */
bool arbiter_run_gangs(gs_arbiter *a, uint64_t now);
/* Updates the cuts of all gangs. */
void arbiter_follow_gangs(gs_arbiter *a, uint64_t now);

/* thread.c */
/* A grant may have changed: its cores see its pages now and decide in the next arbiter_run. */
void arbiter_changed(gs_arbiter *a, int32_t grant, uint64_t now);
/* Makes all decisions that are due and arms the timer. */
void arbiter_run(gs_arbiter *a, uint64_t now);
/* The only function here that is called without the mutex. */
int arbiter_start_thread(gs_arbiter *a, struct gs_err *err);

#endif
