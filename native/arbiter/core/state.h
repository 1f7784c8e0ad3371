/* Insides of the core, and what its files do for each other, from the ground up. */
#ifndef GS_ARBITER_CORE_STATE_H
#define GS_ARBITER_CORE_STATE_H

#include <stdbool.h>

#include "arbiter/core/core.h"

/* Credit is kept in ns x 1e6, so that guarantee_milli x (1000 - reserve_milli) per ns needs no division. */
#define CREDIT_PER_NS INT64_C(1000000)
#define MS_NS UINT64_C(1000000)
/* A grant that wanted nothing for this long has been asleep; shorter gaps are a program between two launches, or one
 * that gets no CPU at once. */
#define QUIET_NS (5 * MS_NS)
/* A grant that wanted nothing for so long after its work was done, so often in a row, is believed to do it again: its
 * device is handed on at once. */
#define SLEPT_NS MS_NS
#define SLEEPS_TRUSTED 2
/* And so long before that, which is what its successor's threads take to wake: less than counts as drained. */
#define AHEAD_NS (100 * UINT64_C(1000))
/* A lease not taken up after this long: its process is stopped, or starved of CPU. The gate's soft bound is as long. */
#define PICKUP_NS (5 * MS_NS)
#define MISS_BACKOFF_MAX_NS (100 * MS_NS)
/* The same of one that rings no bell meanwhile, as a thread in the gate does 20 times a second: it is stopped. */
#define SILENCE_MAX_NS (10 * 1000 * MS_NS)
/* A revoked holder is late this long after all that the bound allows in flight should be done. */
#define LATE_NS (5 * MS_NS)
/* A revoked holder that shows no end is charged beside its successors for this long, then counts as stopped unless it
 * says that it is busy. */
#define TAIL_MAX_NS (1000 * MS_NS)
/* Between looks at whether it still is after that; that it drained rings the bell. */
#define TAIL_LOOK_NS (50 * MS_NS)
/* How long a grant counts as a neighbour after it ran. */
#define RECENT_NS (1000 * MS_NS)
/* A holder may have filled its queue up to the bound of being alone until this long after it got a neighbour. */
#define BOUND_CHANGE_NS (100 * MS_NS)
/* So many leases of full length make a round; with more grants that want the device leases shrink, down to a quarter,
 * so that each comes round often enough for shares to hold within a second. */
#define ROUND_LEASES 4
/* Window of limit_milli: a grant may use limit x this at once, never more than its limit over longer times. */
#define LIMIT_WINDOW_NS (100 * MS_NS)
/* The same of one that had to wait for others so long: one with a limit of 950 keeps the rest off the device for 400
 * ms. */
#define LIMIT_WAITED_NS (500 * MS_NS)
/* Least distance between two looks at it: what holders together pay comes to its end ever more slowly. */
#define LIMIT_LOOK_NS (100 * UINT64_C(1000))
/* What may be owed by one grant, and to one, in ns x 1e6: a kernel of 10 s is paid back in full. */
#define DEBT_MAX (INT64_C(10000000000) * CREDIT_PER_NS)
/* First and last distance between two looks at whether a holder has gone idle; doubled between them. */
#define IDLE_LOOK_MIN_NS (50 * UINT64_C(1000))
#define IDLE_LOOK_MAX_NS (1 * MS_NS)

/* A grant fills the device when it was busy for FULL_MILLI of what it held, over the last FILL_SAMPLES leases' lengths;
 * it does not any more below LEAN_MILLI. Those that do not fill it hold leases together, until their fills sum to 1000. */
#define FULL_MILLI 800
#define LEAN_MILLI 700
#define FILL_SAMPLES 5
/* Leases held together from here on leave nothing idle: one that gets more than its guarantee for OVER_NS while another
 * gets less has to go. */
#define SATURATED_MILLI 950
/* Together doing less than this, they hardly hold each other up. */
#define CROWDED_MILLI 800
#define OVER_NS (10 * MS_NS)
/* A gang that wants a device for so many leases' lengths, having once been due there, is not put off by others that go
 * first. */
#define DUE_LEASES_MAX 4
/* What gangs may spin after a revoke at nobody's cost, at most at once; it grows with the switching reserve. */
#define SPIN_MAX_NS (50 * MS_NS)
/* Debt up to which a gang whose work does not drain runs beside others more than once in a turn. */
#define AGAIN_DEBT_NS (100 * MS_NS)
/* Leases held at once; bounds what one step decides. */
#define TOGETHER_MAX 16

enum core_phase { CORE_FREE, CORE_HELD, CORE_DRAINING };

/* What a lease is given for and paid from; earlier goes first. BOTH: beyond its term with nobody waiting, the guarantee
 * pays what it can and the surplus the rest. */
enum core_level { LEVEL_GUARANTEE, LEVEL_SLACK, LEVEL_SURPLUS, LEVEL_BOTH };

struct fill_sample {
  uint64_t busy_ns, resident_ns;
};

/* What receipts are made of; no decision depends on it. */
struct core_receipt {
  uint64_t wait_ns; /* since when it waits without a lease; 0: it does not */
  bool limited;     /* in this wait it had all of its limit */
  uint32_t rule;    /* enum gs_rule, of the last revoke */
  int32_t taken_for;
  uint64_t taken_ns;        /* when that was; 0: it was idle, or has drained */
  struct gs_receipt served; /* of the last lease */
  uint64_t had_at_ns, had_leased_ns;
  uint32_t had_milli;
};

struct core_grant {
  bool present;
  bool held;        /* has a lease */
  bool full;        /* fills the device, as far as known: its leases are exclusive */
  bool was_waiting; /* as of the last step, without a lease */
  bool asleep;      /* gave the device up by itself; its next wait is a wake */
  /* reported; what it still runs is charged to it, and keeps it from nothing while it says that it is busy */
  bool late;
  bool limit_reached; /* may not run until its allowance is back */
  bool published;
  bool gang, beside; /* by the flags of its share; not both */
  bool alongside;    /* its lease is beside whatever else is on the device */
  bool rests;        /* a gang that has a lease and nothing to run here: the device is lent until it has */
  bool yields;       /* a gang that has to go, on all its devices */
  int32_t yields_to;
  uint64_t due_ns; /* since when the device would be this gang's if its others were; 0: not */
  uint64_t launches_at_rest;
  int64_t spin; /* what it may still spin for nothing, ns x 1e3 */
  struct gs_share share;
  struct gs_core_view view;
  int64_t credit, credit_cap; /* guarantee bucket, ns x 1e6; negative is debt */
  int64_t owed;               /* to it, by those who overran their leases */
  int64_t slack, slack_cap;   /* slack bucket, ns x 1e6 */
  int64_t allowance;          /* limit bucket, ns x 1e3 */
  uint64_t vtime;             /* surplus got, over weight */
  uint32_t vtime_rest;        /* what of it was too little for a unit */
  uint64_t last_ran_ns;       /* 0: never */
  uint64_t quiet_ns;          /* since when it wants nothing; 0 while it does */
  /* when the wake came that it still waits from; 0: it does not wait, or not from a wake */
  uint64_t wake_ns;
  uint64_t revoked_ns;   /* 0, or when a lease was taken from it that has not drained */
  uint64_t late_ns;      /* when that will be late */
  uint32_t company;      /* enum gs_core_company, as published */
  uint64_t contended_ns; /* when it was no longer alone */
  enum core_level level; /* of its lease */
  uint64_t lease_ns;     /* since when it has it */
  /* when its work was done, if it then had no lease, or lost it as idle; 0: it wanted more since */
  uint64_t dry_ns;
  uint32_t sleeps; /* in a row that it slept after that */
  uint64_t launches_at_lease;
  /* ever with a lease, and in pauses too short for sleep, in which the device was given to others */
  uint64_t resident_ns;
  uint64_t paid_busy_ns;                         /* of the metered work, what its limit has paid or need not */
  uint64_t sampled_busy_ns, sampled_resident_ns; /* where the next sample of its fill begins */
  struct fill_sample fill[FILL_SAMPLES];
  uint32_t fills; /* samples taken since the last change between alone and shared */
  bool fill_shared;
  uint32_t work_milli;          /* measured of late, whoever else was there; 1000 until it is */
  uint32_t fill_milli;          /* what it would do alone, as far as known */
  uint64_t over_ns;             /* beyond its guarantee, at the cost of one that it shares the device with */
  uint64_t missed_ns, retry_ns; /* when it last did not take a lease up; not again before */
  uint32_t misses;
  struct core_receipt receipt;
  struct gs_core_stats stats;
};

struct gs_core {
  struct gs_arbiter_config config;
  uint64_t now_ns;
  int64_t tails; /* work of so many overran its lease in the span that is paid */
  enum core_phase phase;
  /* held: of those with a main lease the one that goes first; draining: who had it or -1; else -1 */
  int32_t holder;
  uint64_t round_ns; /* draining: when the leases were taken */
  int32_t called;    /* the gang that gets the device next, as soon as it gets all its others; -1: none */
  int32_t previous;  /* who it drained of when it became free, */
  uint64_t freed_ns; /* and when that was */
  bool had_waiters;  /* as of the last step, somebody else could have used the device */
  bool wanted;       /* the same, or a gang waits for it and others, or it is held beside others */
  bool asks;         /* a loan, or a term of one, waits for the word of the gangs that are due */
  uint64_t asked_ns;
  bool alongside_left; /* leases beside that found no room in the last step */
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

/* When the holder is expected to have nothing left to run. A fresh lease counts as work: its holder still has to wake
 * up. */
static inline uint64_t core_idle_since(const struct core_grant *g) {
  return core_max(g->view.busy_until_ns, g->lease_ns);
}

/* How long after that it may still be about to submit more. Below 0: of one that is believed to sleep then, so much
 * before. */
static inline int64_t core_patience(const struct gs_core *core, const struct core_grant *g) {
  bool done = g->sleeps >= SLEEPS_TRUSTED && g->view.launches != g->launches_at_lease;
  if (!done)
    return (int64_t)core->config.early_idle_ns;
  if (g->gang)
    return 0;
  return g->view.busy_until_ns > g->lease_ns ? -(int64_t)core_min(AHEAD_NS, (g->view.busy_until_ns - g->lease_ns) / 4)
                                             : 0;
}

static inline bool core_holder_idle(const struct gs_core *core, const struct core_grant *g, uint64_t now) {
  return g->view.waiting == 0 && core_idle_since(g) + (uint64_t)core_patience(core, g) <= now;
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

/* Room for what only informs; the last places are kept for a round of revokes, a hand-over and a round of leases. */
static inline bool room(const struct decisions *d) { return d->n < GS_CORE_DECISIONS - 2 * TOGETHER_MAX - 8; }

/* A main lease keeps others off or lets them in by what it fills; the rest are beside whatever there is. */
static inline bool core_main(const struct core_grant *g) { return g->held && !g->alongside && !g->rests; }

/* Several main leases. */
static inline bool core_joined(const struct gs_core *core) {
  int mains = 0;
  for (int i = 0; i < core->nmembers; i++)
    mains += core_main(&core->grant[core->members[i]]);
  return mains > 1;
}

/* Several that may have work on the device. */
static inline bool core_shared(const struct gs_core *core) {
  int holders = 0;
  for (int i = 0; i < core->nmembers; i++)
    holders += core->grant[core->members[i]].held && !core->grant[core->members[i]].rests;
  return holders > 1;
}

static inline bool core_wants(const struct core_grant *g) {
  return (g->gang ? g->view.wanted : g->view.waiting) && g->view.live;
}

/* Late, and its process does not say that it still runs something: it is stopped. */
static inline bool core_silent(const struct gs_core *core, const struct core_grant *g) {
  /* what a gang's work waits for may be held in the gate */
  return g->late && !g->gang && g->view.busy_until_ns <= core->now_ns;
}

/* A lease that is not taken up, although a thread waits for it. */
static inline bool core_unused(const struct gs_core *core, const struct core_grant *h) {
  return h->view.waiting && h->view.launches == h->launches_at_lease && core->now_ns >= h->lease_ns + PICKUP_NS;
}

/* books.c */
int64_t core_limit_resume(const struct gs_core *core, const struct core_grant *g);
void core_set_share(struct gs_core *core, struct core_grant *g, const struct gs_share *share);
/* Moves the books to now: buckets grow, holders and undrained tails pay, the rest is idle or switching. */
void core_advance(struct gs_core *core, uint64_t now);

/* choose.c */
/* > 0 when a may borrow before b whatever their virtual times. */
int core_compare_borrowing(const struct core_grant *a, const struct core_grant *b);
bool core_goes_before(const struct gs_core *core, const struct core_grant *a, const struct core_grant *b);
/* The best of those that wait for a main lease and may run, or -1; gangs that are due not counted. Grants that let
 * leases pass unused are left out until their time, unless ignore_backoff. */
int32_t core_pick(const struct gs_core *core, bool ignore_backoff);
/* The best of those that hold a main lease, or -1. */
int32_t core_lead(const struct gs_core *core);
/* c waits and should not have to wait for the end of the term of h. */
bool core_preempts(const struct gs_core *core, const struct core_grant *c, const struct core_grant *h);
/* A view is new: how much of the device the grant fills. */
void core_measure(const struct gs_core *core, struct core_grant *g);
/* Counts as filling the device until measured again. */
void core_forget_fill(struct core_grant *g);
/* c, which waits, leaves enough idle to hold a lease beside those that have main ones. */
bool core_fits_beside(const struct gs_core *core, const struct core_grant *c);

/* receipt.c */
/* The grant waits, or does not any more; one that got a lease has been served. */
void core_follow_wait(struct gs_core *core, int32_t grant, bool waits, struct decisions *d);
/* Its wait ends with the lease that it gets now. Gives how long it was. */
uint64_t core_note_lease(struct gs_core *core, int32_t grant, int32_t previous);
/* Its lease is taken now; its state is still the holder's. */
void core_note_revoke(struct gs_core *core, int32_t grant, int32_t candidate, bool idle);
/* Reclaims of which nothing runs any more are over. */
void core_end_reclaims(struct gs_core *core, struct decisions *d);
/* Into all decisions of a step. */
void core_write_receipts(struct gs_core *core, struct decisions *d);

/* lease.c */
void core_give_lease(struct gs_core *core, struct core_grant *g);
void core_start_term(struct gs_core *core, int32_t grant);
void core_lease(struct gs_core *core, int32_t grant, int32_t previous, struct decisions *d);
void core_revoke(struct gs_core *core, int32_t grant, int32_t candidate, bool idle, struct decisions *d);
void core_note_miss(struct gs_core *core, struct core_grant *h);
/* Nothing of it is on the device any more, or it is not waited for to say so. */
void core_end_tail(const struct gs_core *core, struct core_grant *g);
bool core_drained(struct gs_core *core);

/* gang.c */
/* Gangs that would get the device now are due on it. ignore_backoff: as in core_pick. */
void core_mark_due(struct gs_core *core, bool ignore_backoff);
/* Once at a time: before a gang that is due is passed over, it may be called. */
bool core_asks_gangs(struct gs_core *core);
/* The device is lent while the gang, which holds it, has nothing to run there. */
void core_rest(struct core_grant *g);
/* Gangs that rest and have work again get the device back, or yield it. */
void core_wake_resting_gangs(struct gs_core *core, struct decisions *d);
/* Leases of those that are never alone, and of gangs that run beside others. */
void core_decide_alongside(struct gs_core *core, struct decisions *d);

/* notice.c */
void core_notice_waits(struct gs_core *core, struct decisions *d);
void core_notice_tails(struct gs_core *core, struct decisions *d);
/* Gives false when not all changes found room. */
bool core_publish_contention(struct gs_core *core, struct decisions *d);

/* next.c: UINT64_MAX: never */
uint64_t core_next_look(struct gs_core *core);

#endif
