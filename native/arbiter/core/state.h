/* The core's private state, and the functions that its files offer to each other. */
#ifndef GS_ARBITER_CORE_STATE_H
#define GS_ARBITER_CORE_STATE_H

#include <stdbool.h>

#include "arbiter/core/core.h"

/* Credit is kept in ns x 1e6, so that guarantee_milli x (1000 - reserve_milli) per ns needs no division. */
#define CREDIT_PER_NS INT64_C(1000000)
#define MS_NS UINT64_C(1000000)
/* A holder keeps the device from a borrower while it has been idle for less than one part in LOAN_PART of the borrower's
 * last tail. */
#define LOAN_PART 10
/* A grant that has wanted nothing for this long counts as asleep. Shorter gaps occur between two launches, or while a
 * program waits for a CPU. */
#define QUIET_NS (5 * MS_NS)
/* A grant that wanted nothing for SLEPT_NS after its work was done, SLEEPS_TRUSTED times in a row, is expected to do so
 * again: it loses the device as soon as its work is done. */
#define SLEPT_NS MS_NS
#define SLEEPS_TRUSTED 2
/* The device of such a grant is handed over this long before the expected end of its work: about the time that the
 * successor's threads need to wake up. Less than the 0.2 ms of work that count as drained. */
#define AHEAD_NS (100 * UINT64_C(1000))
/* A lease that is not used within this time is revoked: the process is stopped or gets no CPU. Equals the soft bound of
 * the interposer's gate. */
#define PICKUP_NS (5 * MS_NS)
/* Longest pause before the next lease of a grant that left one unused, while its bell rings. */
#define MISS_BACKOFF_MAX_NS (100 * MS_NS)
/* The same while its bell is silent. A thread in the gate rings 20 times per second, so a silent process is stopped. */
#define SILENCE_MAX_NS (10 * 1000 * MS_NS)
/* A revoked holder is late when this time has passed after the time that all work allowed in flight takes. */
#define LATE_NS (5 * MS_NS)
/* A revoked holder that never reports that it has drained shares the charge with its successors for this long. After
 * that it counts as stopped, unless it claims to be busy. */
#define TAIL_MAX_NS (1000 * MS_NS)
/* A tail is charged to its grant, and not to others, up to this device time. A longer tail could not be paid back: see
 * DEBT_MAX. Only the tenant reports that it runs. */
#define OVERRUN_MAX_NS (10 * 1000 * MS_NS)
/* How often the claim that a tail runs is checked. The real end of the work rings the bell. */
#define TAIL_LOOK_NS (50 * MS_NS)
/* How long a grant counts as a neighbour after it last ran. */
#define RECENT_NS (1000 * MS_NS)
/* For this long after a holder gets a neighbour, its queue may still be filled up to the bound of a grant that is
 * alone. */
#define BOUND_CHANGE_NS (100 * MS_NS)
/* Number of full-length leases in a round. When more grants want the device, leases become shorter, down to a quarter,
 * so that each grant has its turn often enough for shares to hold within one second. */
#define ROUND_LEASES 4
/* Window of limit_milli: a grant may use limit x this in one burst, and no more than its limit over longer times. */
#define LIMIT_WINDOW_NS (100 * MS_NS)
/* The same window for a grant that others kept waiting. A grant with a limit of 950 can keep the others off the device
 * for 400 ms. */
#define LIMIT_WAITED_NS (500 * MS_NS)
/* Shortest interval between two checks of a limit. Holders that share the device approach their limits ever more
 * slowly. */
#define LIMIT_LOOK_NS (100 * UINT64_C(1000))
/* Upper bound of a grant's debt and of the credit owed to it, in ns x 1e6: a kernel of 10 s is paid back in full. */
#define DEBT_MAX ((int64_t)OVERRUN_MAX_NS * CREDIT_PER_NS)
/* Shortest and longest interval between two checks of whether a holder has gone idle; it doubles with each check. */
#define IDLE_LOOK_MIN_NS (50 * UINT64_C(1000))
#define IDLE_LOOK_MAX_NS (1 * MS_NS)

/* A grant fills the device if it was busy for at least FULL_MILLI of the time for which it had a lease, measured over
 * the last FILL_SAMPLES lease lengths; it stops filling the device when that falls below LEAN_MILLI. Grants that do not
 * fill the device hold leases at the same time, as long as their fills sum to at most 1000. */
#define FULL_MILLI 800
#define LEAN_MILLI 700
#define FILL_SAMPLES 5
/* A grant of which nothing was metered in this time with a lease, although it ran, filled the device. */
#define UNMETERED_MAX_NS (1000 * MS_NS)
/* From this sum of fills on, leases held at the same time leave no idle time. A grant that then gets more than its
 * guarantee, by OVER_NS, while another grant gets less, loses its lease. */
#define SATURATED_MILLI 950
/* Grants whose fills sum to less than this hardly slow each other down. */
#define CROWDED_MILLI 800
#define OVER_NS (10 * MS_NS)
/* A gang that has been due on a device for this many lease lengths is called even if other grants have precedence. */
#define DUE_LEASES_MAX 4
/* Upper bound of the time that a gang can save up for spinning after a revoke without being charged. The time saved
 * grows with the switching reserve. */
#define SPIN_MAX (INT64_C(50000000) * CREDIT_PER_NS)
/* While its debt is below this, a gang whose work does not drain gets leases alongside others more than once per
 * turn. */
#define AGAIN_DEBT_NS (100 * MS_NS)
/* Maximum number of leases held at the same time; it bounds the decisions of one step. */
#define TOGETHER_MAX 16

enum core_phase { CORE_FREE, CORE_HELD, CORE_DRAINING };

/* What pays for a lease, in order of precedence. BOTH: the lease has outlasted its term while no grant waited; the
 * guarantee pays what it can and the surplus pays the rest. */
enum core_level { LEVEL_GUARANTEE, LEVEL_SLACK, LEVEL_SURPLUS, LEVEL_BOTH };

struct fill_sample {
  uint64_t busy_ns, resident_ns;
};

#define VTIME_PER_NS UINT64_C(64)
/* Time received, divided by a weight, in 1/64 ns: a counter that lasts for years. The remainder keeps short times from
 * being lost to a large weight. */
struct core_vtime {
  uint64_t sum;
  uint32_t rest;
};

/* Data for receipts; no decision depends on it. */
struct core_receipt {
  uint64_t wait_ns; /* since when the grant waits without a lease; 0: it does not wait */
  bool limited;     /* the limit was used up during this wait */
  uint32_t rule;    /* enum gs_rule, of the last revoke */
  int32_t taken_for;
  /* when the lease was revoked with work running; 0: the grant was idle, or has drained since */
  uint64_t taken_ns;
  struct gs_receipt served; /* of the last lease */
  uint64_t had_at_ns, had_leased_ns;
  uint32_t had_milli;
};

/* Since the last lease that the grant was given with nothing running: what it had metered before; its part of the time
 * if no other's tail ran; and the rest of the time of its own tails. */
struct core_stint {
  uint64_t metered_ns, part_ns, spared_ns;
};

struct core_grant {
  bool present;
  bool held;        /* has a lease */
  bool full;        /* fills the device as far as known, so its leases are exclusive */
  bool was_waiting; /* waited without a lease in the last step */
  bool asleep;      /* the grant gave up the device by itself; its next wait is a wake */
  bool late; /* reported as late. Its remaining work is charged to it; while it claims to be busy it keeps its turns */
  bool limit_reached; /* may not run until its allowance has grown again */
  bool published;
  bool gang, beside; /* from the flags of the share; not both */
  bool alongside;    /* the lease is held alongside whatever else is on the device */
  bool rests;        /* a gang with a lease and nothing to run on this device, which is lent until the gang has work */
  bool yields;       /* a gang that has to give up its leases on all its devices */
  int32_t yields_to;
  /* since when the gang would get this device if its other devices were free; 0: it would not get it */
  uint64_t due_ns;
  uint64_t launches_at_rest;
  int64_t spin; /* time that the gang may still spin without being charged, ns x 1e6 */
  struct gs_share share;
  struct gs_core_view view;
  int64_t credit, credit_cap; /* guarantee bucket, ns x 1e6; negative is debt */
  int64_t owed;               /* what grants that overran their leases owe to this one */
  int64_t slack, slack_cap;   /* slack bucket, ns x 1e6 */
  int64_t allowance;          /* limit bucket, ns x 1e3 */
  struct core_vtime borrowed; /* surplus received, by weight */
  struct core_vtime served;   /* time with a lease by its guarantee, divided by that; tails count as its own time */
  uint64_t last_ran_ns;       /* 0: never */
  uint64_t quiet_ns;          /* since when the grant wants nothing; 0: it wants the device */
  uint64_t wake_ns;           /* when the current wait began, if with a wake; else 0 */
  uint64_t revoked_ns;        /* when it lost the lease whose work has not drained; else 0 */
  uint64_t late_ns;           /* when that work counts as late */
  uint64_t overrun_ns;        /* device time charged to it since it lost its last lease */
  uint64_t overran_ns;        /* the same of its last tail, when that ended */
  struct core_stint stint;
  uint64_t metered_at_lease_ns; /* view.busy_ns when it was last given a lease */
  uint64_t beside_ns;    /* what its guarantee paid beside tails, of which they may have used more than their parts */
  uint64_t engaged_ns;   /* when it last reported, with a lease, that it ran or that a thread waited */
  uint32_t company;      /* enum gs_core_company, as published */
  uint64_t contended_ns; /* when another grant last joined it */
  enum core_level level; /* of the lease */
  uint64_t lease_ns;     /* since when it has the lease */
  /* when its work was done, if it had no lease then or lost it because it was idle; 0: it has wanted the device
   * since */
  uint64_t dry_ns;
  uint32_t sleeps; /* number of times in a row that it then slept */
  uint64_t launches_at_lease;
  /* time with a lease, plus pauses that are too short to be sleep and during which others had the device */
  uint64_t resident_ns;
  int64_t unhad_ns; /* work beside other holders that is not in stats.had_ns yet; negative: parts ahead of the work */
  uint64_t paid_busy_ns; /* the part of view.busy_ns that has been counted against the limit, or need not be */
  uint64_t sampled_busy_ns, sampled_resident_ns; /* at the start of the current sample of its fill */
  struct fill_sample fill[FILL_SAMPLES];
  uint32_t fills; /* samples since it last began or stopped sharing the device */
  bool fill_shared;
  uint32_t work_milli;          /* measured over the last samples, whatever else ran; 1000 before that */
  uint32_t fill_milli;          /* what it would fill if it were alone, as far as known */
  uint64_t over_ns;             /* time received beyond its guarantee at the cost of a grant that shares the device */
  uint64_t missed_ns, retry_ns; /* when it last left a lease unused; when it may get the next one */
  uint32_t misses;
  struct core_receipt receipt;
  struct gs_core_stats stats;
};

struct gs_core {
  struct gs_arbiter_config config;
  uint64_t now_ns;
  /* For the span being charged. tails: processes of revoked grants that still run; sharers: tails plus the processes of
   * the holders, which is the number of parts that the hardware cuts the device into. */
  uint64_t tails, sharers;
  int unmetered; /* tails of grants that metered nothing since their last leases: they may be no more than words */
  enum core_phase phase;
  /* held: the grant with precedence among those with a main lease; draining: the one that had it, or -1; free: -1 */
  int32_t holder;
  uint64_t round_ns; /* draining: when the leases were revoked */
  int32_t called;    /* the gang that gets the device as soon as its other devices are free too; -1: none */
  int32_t previous;  /* the grant whose work drained when the device last became free */
  uint64_t freed_ns; /* when the device last became free */
  bool had_waiters;  /* in the last step, a grant without a lease could have used the device */
  /* had_waiters, or a tail competes, or a gang waits for this and other devices, or leases are held alongside others */
  bool wanted;
  bool asks; /* one of the gangs that are due may be called before the core continues without them */
  uint64_t asked_ns;
  bool alongside_left; /* the last step had no room for all decisions about leases alongside others */
  uint64_t term_end_ns, idle_look_ns;
  int32_t members[GS_ARBITER_MAX_GRANTS];
  int nmembers;
  struct gs_device_stats stats;
  struct core_grant grant[GS_ARBITER_MAX_GRANTS];
};

static inline uint64_t core_max(uint64_t a, uint64_t b) { return a > b ? a : b; }

static inline uint64_t core_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

static inline int64_t core_floor(const struct gs_core *core) {
  return (int64_t)core->config.credit_floor_ns * CREDIT_PER_NS;
}

static inline int64_t core_rate(const struct gs_core *core, const struct core_grant *g) {
  return (int64_t)g->share.guarantee_milli * (1000 - core->config.reserve_milli);
}

static inline bool core_interactive(const struct core_grant *g) { return g->share.class_ == GS_CLASS_INTERACTIVE; }

/* The level at which a grant would be served now. */
static inline enum core_level core_level(const struct gs_core *core, const struct core_grant *g) {
  if (g->share.guarantee_milli == 0)
    return LEVEL_SURPLUS;
  return g->credit >= core_floor(core) ? LEVEL_GUARANTEE : g->slack >= core_floor(core) ? LEVEL_SLACK : LEVEL_SURPLUS;
}

/* When the holder has nothing left to run, as expected at `now`; what is not proven done runs. A new lease counts as
 * work, since its holder has to wake up. */
static inline uint64_t core_idle_since(const struct core_grant *g, uint64_t now) {
  return core_max(core_max(g->view.busy_until_ns, g->lease_ns), g->view.running ? now : 0);
}

/* How long after that time the grant may still submit more work, in ns. Negative for a grant that is expected to sleep
 * then: its device is handed over that much earlier. */
static inline int64_t core_patience(const struct gs_core *core, const struct core_grant *g) {
  bool done = g->sleeps >= SLEEPS_TRUSTED && g->view.launches != g->launches_at_lease;
  if (!done)
    return (int64_t)core->config.early_idle_ns;
  if (g->gang)
    return 0;
  return g->view.busy_until_ns > g->lease_ns ? -(int64_t)core_min(AHEAD_NS, (g->view.busy_until_ns - g->lease_ns) / 4)
                                             : 0;
}

/* How long a holder may be idle before the candidate gets the device, where that may keep the owner from it for long: a
 * pause between two kernels is no time to lend for a kernel of a second. */
static inline int64_t core_patience_for(const struct gs_core *core, const struct core_grant *g, int32_t candidate) {
  int64_t patience = core_patience(core, g);
  if (patience <= 0 || candidate < 0 || core_level(core, &core->grant[candidate]) == LEVEL_GUARANTEE)
    return patience;
  return (int64_t)core_max((uint64_t)patience, core_min(core->grant[candidate].overran_ns / LOAN_PART, QUIET_NS));
}

static inline bool core_holder_idle(const struct gs_core *core, const struct core_grant *g, uint64_t now) {
  return g->view.waiting == 0 && core_idle_since(g, now) + (uint64_t)core_patience(core, g) <= now;
}

static inline uint64_t core_term(const struct gs_core *core) {
  uint64_t wanting = 1;
  for (int i = 0; i < core->nmembers; i++)
    wanting += core->grant[core->members[i]].was_waiting;
  return core_max(core->config.lease_ns / 4,
                  core_min(core->config.lease_ns, core->config.lease_ns * ROUND_LEASES / wanting));
}

struct decisions {
  struct gs_core_decision *out;
  int n;
};

static inline void emit(struct decisions *d, enum gs_core_action action, int32_t grant, int32_t other, uint64_t value) {
  d->out[d->n++] =
      (struct gs_core_decision){.action = (uint32_t)action, .grant = grant, .other = other, .value = value};
}

/* Whether there is room for a decision that only informs. The last places are kept for a round of revokes, a handover
 * and a round of leases. */
static inline bool room(const struct decisions *d) { return d->n < GS_CORE_DECISIONS - 2 * TOGETHER_MAX - 8; }

/* A grant gets a main lease only if it fits on the device together with the other main leases. Other leases are held
 * alongside whatever else runs. */
static inline bool core_main(const struct core_grant *g) { return g->held && !g->alongside && !g->rests; }

/* True if several main leases are held. */
static inline bool core_joined(const struct gs_core *core) {
  int mains = 0;
  for (int i = 0; i < core->nmembers; i++)
    mains += core_main(&core->grant[core->members[i]]);
  return mains > 1;
}

/* True if several holders may have work on the device. */
static inline bool core_shared(const struct gs_core *core) {
  int holders = 0;
  for (int i = 0; i < core->nmembers; i++)
    holders += core->grant[core->members[i]].held && !core->grant[core->members[i]].rests;
  return holders > 1;
}

/* True if the grant could not use a lease. */
static inline bool core_unable(const struct core_grant *g) { return !g->view.live || g->view.away; }

static inline bool core_wants(const struct core_grant *g) {
  return (g->gang ? g->view.wanted : g->view.waiting) && !core_unable(g);
}

/* True if the grant is late and does not claim to run anything: its process is stopped. */
static inline bool core_silent(const struct gs_core *core, const struct core_grant *g) {
  /* the work that a gang's kernels wait for may itself wait in the gate */
  return g->late && !g->gang && g->view.busy_until_ns <= core->now_ns;
}

/* True if a revoked grant has work on the device at `now`. */
static inline bool core_runs(const struct core_grant *g, uint64_t now) {
  return g->view.live && (g->view.running || g->view.busy_until_ns > now);
}

/* True if a holder reports that it runs or that a thread waits. */
static inline bool core_engaged(const struct core_grant *g, uint64_t now) {
  return g->held && (g->view.waiting || core_runs(g, now));
}

/* True if a revoked grant still pays for the device time of its tail. */
static inline bool core_overruns(const struct core_grant *g) { return g->revoked_ns && g->overrun_ns < OVERRUN_MAX_NS; }

/* True if a revoked grant competes for the device with what it still runs: its kernels are longer than a lease, and what
 * others run meanwhile makes them longer still. */
static inline bool core_competes(const struct gs_core *core, const struct core_grant *g) {
  return !g->held && !g->gang && !g->beside && !g->view.away && core_overruns(g) && core_runs(g, core->now_ns) &&
         !g->view.drained && !core_silent(core, g);
}

/* True if a grant does not use its lease although a thread waits for it. A thread may also wait for the end of the
 * grant's own kernel, for the sake of the bound on work in flight: what runs uses the lease. */
static inline bool core_unused(const struct gs_core *core, const struct core_grant *h) {
  return h->view.waiting && h->view.launches == h->launches_at_lease && !core_runs(h, core->now_ns) &&
         core->now_ns >= h->lease_ns + PICKUP_NS;
}

/* books.c */
/* The allowance from which on a grant that has used up its limit may run again, ns x 1e3. */
int64_t core_limit_resume(const struct gs_core *core, const struct core_grant *g);
void core_set_share(struct gs_core *core, struct core_grant *g, const struct gs_share *share);
/* Brings all accounts up to now: buckets grow; holders, and revoked grants that still run, are charged; the rest of the
 * time was idle or spent on switching. */
void core_advance(struct gs_core *core, uint64_t now);

/* choose.c */
/* > 0 if a may borrow before b whatever their virtual times, < 0 if b may borrow before a, else 0. */
int core_compare_borrowing(const struct core_grant *a, const struct core_grant *b);
/* True if a has precedence over b. */
bool core_goes_before(const struct gs_core *core, const struct core_grant *a, const struct core_grant *b);
/* The grant with precedence among those that wait for a main lease and may run, without gangs that are due; -1: none.
 * ignore_backoff: also consider grants that left leases unused and are not to be tried again yet. */
int32_t core_pick(const struct gs_core *core, bool ignore_backoff);
/* The grant with precedence among `candidate` (-1: none) and those whose tails compete with it; -1: none. */
int32_t core_pick_or_tail(const struct gs_core *core, int32_t candidate);
/* The grant with precedence among those that hold a main lease; -1: none. */
int32_t core_lead(const struct gs_core *core);
/* True if h has to yield to c, which waits, before the end of its term. */
bool core_preempts(const struct gs_core *core, const struct core_grant *c, const struct core_grant *h);
/* To be called after each new view: measures how much of the device the grant fills. */
void core_measure(const struct gs_core *core, struct core_grant *g);
/* The grant counts as filling the device until it is measured again. */
void core_forget_fill(struct core_grant *g);
/* True if c, which waits, fits on the device together with the holders of main leases, without filling it. */
bool core_fits_beside(const struct gs_core *core, const struct core_grant *c);

/* receipt.c */
/* Records whether the grant waits. If it got a lease, its wait has already ended. */
void core_follow_wait(struct gs_core *core, int32_t grant, bool waits, struct decisions *d);
/* Records a new lease, which ends the grant's wait. Returns how long it waited, in ns. */
uint64_t core_note_lease(struct gs_core *core, int32_t grant, int32_t previous);
/* To be called just before a lease is revoked, while the state is still that of a holder. */
void core_note_revoke(struct gs_core *core, int32_t grant, int32_t candidate, bool idle);
/* Ends the reclaims of grants that have drained. */
void core_end_reclaims(struct gs_core *core, struct decisions *d);
/* Fills in the receipts of all decisions of a step. */
void core_write_receipts(struct gs_core *core, struct decisions *d);

/* lease.c */
/* Sets the grant's state to that of a holder; core_lease also records and emits the decision. */
void core_give_lease(struct gs_core *core, struct core_grant *g);
void core_start_term(struct gs_core *core, int32_t grant);
void core_lease(struct gs_core *core, int32_t grant, int32_t previous, struct decisions *d);
void core_revoke(struct gs_core *core, int32_t grant, int32_t candidate, bool idle, struct decisions *d);
/* Records that a grant did not use its lease, which delays its next one. */
void core_note_miss(struct gs_core *core, struct core_grant *h);
/* Ends a tail: the grant's work has left the device, or the core no longer waits for a report that it has. */
void core_end_tail(const struct gs_core *core, struct core_grant *g);
/* Whether all grants revoked in this round have drained. */
bool core_drained(struct gs_core *core);

/* gang.c */
/* Marks the gangs that would get the device now as due. ignore_backoff: as in core_pick. */
void core_mark_due(struct gs_core *core, bool ignore_backoff);
/* Before the core passes over gangs that are due, one of them may be called: true once per instant. */
bool core_asks_gangs(struct gs_core *core);
/* The gang keeps its lease and has nothing to run on this device, which is lent to others. */
void core_rest(struct core_grant *g);
/* Resting gangs that have work again get the device back or have to yield. */
void core_wake_resting_gangs(struct gs_core *core, struct decisions *d);
/* Decides leases held alongside others: of GS_SHARE_BESIDE grants, and of gangs whose work did not drain. */
void core_decide_alongside(struct gs_core *core, struct decisions *d);

/* notice.c */
void core_join_tier(struct gs_core *core, struct core_grant *g);
void core_notice_waits(struct gs_core *core, struct decisions *d);
void core_notice_tails(struct gs_core *core, struct decisions *d);
/* Returns false when not all changes found room. */
bool core_publish_contention(struct gs_core *core, struct decisions *d);

/* next.c: when the core has to be stepped again if nothing happens, in ns; UINT64_MAX: never */
uint64_t core_next_look(struct gs_core *core);

#endif
