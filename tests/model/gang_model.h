/* A model of two gangs with a rank on each of two devices, whose kernels are all collectives, around the arbiter's own
 * code. Its states are plain memory: a step restores one, moves, and brings what came of it into one form. Times are
 * kept relative to now, what only counts is left out, and credit goes in steps of half a millisecond. gang_check.c
 * searches all orders of events. */
#ifndef GANG_MODEL_H
#define GANG_MODEL_H

#include "arbiter/core/state.h"
#include "arbiter/thread/state.h"

enum { GANGS = 2, DEVICES = 2, T0 = 1000000000, MS = 1000000 };
/* Both devices without a lease while a gang waits, in ms: a drain and the step after it. A gang waits at most three
 * leases long, a collective spin_max from when all ranks of its gang are awake until it is on both devices. */
enum { FREE_MAX = 2 };

struct model_rank {
  uint8_t queued;             /* collectives of it on the device */
  bool waiting, asleep, held; /* held: as it last saw its lease word */
  uint8_t slept;              /* ms */
};

/* What changes of a core. */
struct core_part {
  char head[offsetof(struct gs_core, members)];
  struct core_grant grant[GANGS];
};

struct state {
  struct model_rank rank[GANGS][DEVICES];
  uint8_t wait[GANGS], spin[GANGS], unleased;
  bool ripe[GANGS]; /* both ranks' collectives have been on the devices for a millisecond */
  bool bell;
  uint64_t next_ns;
  uint32_t lease[GANGS][DEVICES];
  struct gs_slot_device words[GANGS][DEVICES];
  uint64_t base[GANGS][DEVICES], since_ns[GANGS];
  bool open[GANGS], uneven[GANGS];
  struct gs_gang gang[GANGS];
  struct core_part core[DEVICES];
};

/* What is checked, and the worst that was seen. */
struct options {
  bool use_cuts; /* ranks know of cuts */
  bool late;     /* also the arbiter does what it has to at any time in a millisecond */
  uint32_t depth_max, sleep_max, lease_ms, spin_max;
};
extern struct options options;
extern unsigned worst_wait, worst_spin;
extern const char *broken; /* the invariant that does not hold; NULL: none */

/* The state that is looked at, and the live memory of the same. */
extern struct state s;
extern gs_core *core[GS_ARBITER_MAX_DEVICES];
extern gs_gangs *gangs;
extern struct gs_limits limits[GANGS];
extern struct entry entry[GANGS];
extern struct cuts cuts[GANGS];

/* gang_model.c */
void model_start(void);
void model_end(void);
void model_restore(void);
void model_save(void);
/* elapsed: what time has passed since the state before */
void model_normalise(uint64_t elapsed);

/* gang_events.c: does event `what`, below EVENTS_KINDS, if it can happen; gives whether it did. */
enum { EVENTS_KINDS = 2 + GANGS + 3 * GANGS * DEVICES };
bool model_happens(int what, uint64_t *elapsed);

#endif
