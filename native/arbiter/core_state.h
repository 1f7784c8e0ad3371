/* Insides of the core, shared by its two files: core.c decides, core_books.c keeps time. */
#ifndef GS_CORE_STATE_H
#define GS_CORE_STATE_H

#include <stdbool.h>

#include "core.h"

/* Credit is kept in ns x 1e6, so that guarantee_milli x (1000 - reserve_milli) per ns needs no division. */
#define CREDIT_PER_NS INT64_C(1000000)
#define MS_NS UINT64_C(1000000)
/* A grant that wanted nothing for this long has been asleep; shorter gaps are a program between two launches, or one that
 * gets no CPU at once. */
#define QUIET_NS (5 * MS_NS)
/* A lease not taken up after this long: its process is stopped, or starved of CPU. The gate's soft bound is as long. */
#define PICKUP_NS (5 * MS_NS)
#define MISS_BACKOFF_MAX_NS (100 * MS_NS)
/* A revoked holder is late this long after all that the bound allows in flight should be done. */
#define LATE_NS (5 * MS_NS)
/* A revoked holder that shows no end is charged beside its successors for this long, then counts as stopped. */
#define TAIL_MAX_NS (1000 * MS_NS)
/* How long a grant counts as a neighbour after it ran. */
#define RECENT_NS (1000 * MS_NS)
/* A holder may have filled its queue up to the bound of being alone until this long after it got a neighbour. */
#define BOUND_CHANGE_NS (100 * MS_NS)
/* So many leases of full length make a round; with more grants that want the device leases shrink, down to a quarter, so
 * that each comes round often enough for shares to hold within a second. */
#define ROUND_LEASES 4
/* Window of limit_milli: a grant may use limit x this at once, never more than its limit over longer times. */
#define LIMIT_WINDOW_NS (100 * MS_NS)
#define DEBT_MAX_NS (1000 * MS_NS)
/* First and last distance between two looks at whether a holder has gone idle; doubled between them. */
#define IDLE_LOOK_MIN_NS (250 * UINT64_C(1000))
#define IDLE_LOOK_MAX_NS (1 * MS_NS)

struct core_grant {
  bool present;
  bool was_waiting;   /* as of the last step, without a lease */
  bool asleep;        /* gave the device up by itself; its next wait is a wake */
  bool late;          /* reported; passed over until it drained */
  bool limit_reached; /* may not run until its allowance is back */
  bool contended;     /* as published */
  bool published;
  struct gs_share share;
  struct gs_core_view view;
  int64_t credit, credit_cap; /* guarantee bucket, ns x 1e6; negative is debt */
  int64_t slack, slack_cap;   /* slack bucket, ns x 1e6 */
  int64_t allowance;          /* limit bucket, ns x 1e3 */
  uint64_t vtime;             /* surplus got, over weight */
  uint64_t last_ran_ns;       /* 0: never */
  uint64_t quiet_ns;          /* since when it wants nothing; 0 while it does */
  uint64_t wake_ns;           /* when the wake came that it still waits from; 0: it does not wait, or not from a wake */
  uint64_t revoked_ns;        /* 0, or when a lease was taken from it that has not drained */
  uint64_t late_ns;           /* when that will be late */
  uint64_t contended_ns;      /* when contended became true */
  uint64_t launches_at_lease;
  uint64_t retry_ns; /* not before, after leases it did not take up */
  uint32_t misses;
  struct gs_core_stats stats;
};

enum core_phase { CORE_FREE, CORE_HELD, CORE_DRAINING };

/* What a lease is given for and paid from; earlier goes first. BOTH: beyond its term with nobody waiting, the guarantee pays
 * what it can and the surplus the rest. */
enum core_level { LEVEL_GUARANTEE, LEVEL_SLACK, LEVEL_SURPLUS, LEVEL_BOTH };

struct gs_core {
  struct gs_arbiter_config config;
  uint64_t now_ns, start_ns;
  enum core_phase phase;
  int32_t holder;   /* held or draining; -1 when free */
  int32_t taken_for; /* draining: who the revoke was for, -1 nobody */
  enum core_level level; /* of the lease */
  bool had_waiters; /* as of the last step, somebody else could have used the device */
  uint64_t lease_ns, term_end_ns, idle_look_ns;
  int32_t members[GS_ARBITER_MAX_GRANTS];
  int nmembers;
  struct gs_device_stats stats;
  struct core_grant grant[GS_ARBITER_MAX_GRANTS];
};

static inline uint64_t core_max(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static inline uint64_t core_min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static inline int64_t core_floor(const struct gs_core *core) {
  return (int64_t)core->config.credit_floor_ns * CREDIT_PER_NS;
}

static inline int64_t core_rate(const struct gs_core *core, const struct core_grant *g) {
  return (int64_t)g->share.guarantee_milli * (1000 - core->config.reserve_milli);
}

/* The level at which a grant would be served now. */
static inline enum core_level core_level(const struct gs_core *core, const struct core_grant *g) {
  if (g->share.guarantee_milli == 0)
    return LEVEL_SURPLUS;
  return g->credit >= core_floor(core) ? LEVEL_GUARANTEE : g->slack >= core_floor(core) ? LEVEL_SLACK : LEVEL_SURPLUS;
}

/* Nothing of the holder is waiting or expected to run. A fresh lease counts as work: its holder still has to wake up. */
static inline bool core_holder_idle(const struct gs_core *core, const struct core_grant *g, uint64_t now) {
  return g->view.waiting == 0 && core_max(g->view.busy_until_ns, core->lease_ns) + core->config.early_idle_ns <= now;
}

static inline uint64_t core_term(const struct gs_core *core) {
  uint64_t wanting = 1;
  for (int i = 0; i < core->nmembers; i++)
    wanting += core->grant[core->members[i]].was_waiting;
  return core_max(core->config.lease_ns / 4, core_min(core->config.lease_ns, core->config.lease_ns * ROUND_LEASES / wanting));
}

int64_t core_limit_resume(const struct gs_core *core, const struct core_grant *g);
void core_set_share(struct gs_core *core, struct core_grant *g, const struct gs_share *share);
/* Moves the books to now: buckets grow, the holder and undrained tails pay, the rest is idle or switching. */
void core_advance(struct gs_core *core, uint64_t now);
void core_count_wake(struct core_grant *g, uint64_t waited_ns);

#endif
