/* A model around the arbiter's own code: two gangs, each with a rank on both of two devices; all kernels are
 * collectives. States are plain memory. A step restores a state, applies an event and canonicalises the result: times
 * are relative to now, pure counters are dropped, and credit is rounded to half a millisecond. gang_check.c searches
 * all orders of events. */
#ifndef GANG_MODEL_H
#define GANG_MODEL_H

#include "arbiter/core/state.h"
#include "arbiter/thread/state.h"

enum { GANGS = 2, DEVICES = 2, T0 = 1000000000, MS = 1000000 };
/* The longest time in ms for which neither device has a lease while a gang waits: a drain and the following step. A
 * gang waits at most three leases. A collective waits at most spin_max, from when all ranks of its gang are awake until
 * it is on both devices. */
enum { FREE_MAX = 2 };

struct model_rank {
  uint8_t queued;             /* its collectives on the device */
  bool waiting, asleep, held; /* held: by the lease word it last read */
  uint8_t slept;              /* ms */
};

/* The size of a grant's fields that decisions depend on. Its last fields are statistics, which start afresh with each
 * event. */
enum { GRANT_BYTES = offsetof(struct core_grant, receipt) };
struct core_part {
  char head[offsetof(struct gs_core, members)];
  char grant[GANGS][GRANT_BYTES];
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

/* The options of the check, and the worst waits seen. */
struct options {
  bool use_cuts; /* ranks honour cuts */
  bool late;     /* the arbiter may act late, at any time within a millisecond */
  uint32_t depth_max, sleep_max, lease_ms, spin_max;
};
extern struct options options;
extern unsigned worst_wait, worst_spin;
extern const char *broken; /* the violated invariant; NULL: none */

/* The state under examination, and the live memory it is loaded into. */
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
/* elapsed: time since the previous state */
void model_normalise(uint64_t elapsed);

/* gang_events.c: applies event `what` (below EVENTS_KINDS) if it is possible; returns whether it was. */
enum { EVENTS_KINDS = 2 + GANGS + 3 * GANGS * DEVICES };
bool model_happens(int what, uint64_t *elapsed);

#endif
