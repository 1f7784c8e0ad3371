/* Decides who may use one device, and when. Pure: no clock, no I/O, no shared memory, and no allocation after create.
 * The caller reports what it sees of each grant (gs_core_observe), passes the time (gs_core_step), and carries out
 * the decisions that it gets back. Times are ns of one monotonic clock; one that steps back counts as standing still.
 * README.md has the rules and the reasons. */
#ifndef GS_ARBITER_CORE_CORE_H
#define GS_ARBITER_CORE_CORE_H

#ifndef GS_CFFI
#include <stdint.h>
#include "arbiter/gs_arbiter.h"
#endif

enum { GS_CORE_DECISIONS = 64 };

typedef struct gs_core gs_core;

/* What the caller sees of a grant on the device. The tenant wrote all of these values; false claims cost only the grant
 * itself. */
struct gs_core_view {
  uint32_t waiting;       /* threads in the gate */
  uint32_t wanted;        /* for a gang: threads in the gate, summed over all its devices */
  uint32_t spins;         /* 1: a gang has work on the device that waits for work that it has not submitted yet */
  uint32_t drained;       /* 1: the grant has little in flight, as far as it knows: the device can be handed on */
  uint32_t live;          /* processes that could use a lease */
  uint32_t away;          /* 1: the grant's memory is not on the device: a lease would be of no use */
  uint32_t running;       /* processes that may have work on the device: they are busy until proven idle */
  uint64_t busy_until_ns; /* when the submitted work is expected to be done; with none running: when it was done */
  uint64_t launches;      /* submissions so far; a change shows that the lease is used */
  uint64_t busy_ns;       /* device time metered so far */
};

enum gs_core_action {
  /* grant gets the lease; other: the previous holder, or -1; value: ns since the grant began to wait */
  GS_CORE_LEASE = 1,
  GS_CORE_REVOKE = 2,    /* grant loses its lease; other: the grant for which it is revoked, or -1 */
  GS_CORE_HANDOVER = 3,  /* the device passed from grant to other; value: ns since the revoke */
  GS_CORE_LATE = 4,      /* grant had not drained value ns after the revoke */
  GS_CORE_WAKE = 5,      /* grant wants the device again after it was asleep */
  GS_CORE_CONTENDED = 6, /* grant's bound on work in flight changes; value: enum gs_core_company */
  /* grant, a gang that has not drained value ns after its revoke, gets the lease alongside its successors */
  GS_CORE_LEASE_BESIDE = 7,
  /* grant's work is done, value ns after its revoke; other: the grant for which the lease was revoked, or -1 */
  GS_CORE_DRAINED = 8,
  GS_CORE_LEFT = 9 /* grant stopped waiting after value ns, without a lease */
};

/* Which other grants want the device or ran on it in the last second: none, some, or some of which one is
 * interactive. */
enum gs_core_company { GS_CORE_ALONE = 0, GS_CORE_IN_COMPANY = 1, GS_CORE_WITH_INTERACTIVE = 2 };

struct gs_core_decision {
  uint32_t action; /* enum gs_core_action */
  int32_t grant, other;
  uint64_t value;
  struct gs_receipt receipt; /* empty for WAKE and CONTENDED */
};

/* Statistics of one grant on the device; the fields are explained at gs_grant_stats. */
struct gs_core_stats {
  uint64_t leased_ns, borrowed_ns, had_ns, wait_ns;
  uint64_t wait_owed_ns, wait_limit_ns; /* parts of wait_ns, see gs_grant_stats */
  uint64_t leases, revokes, waits;
  uint64_t wake_to_lease_ns, wake_to_lease_max_ns;
  uint64_t wake_to_lease[24]; /* GS_LATENCY_BUCKETS */
  struct gs_spans waited, reclaimed;
  uint32_t waiting, held;
};

/* 0 or -ENOMEM. */
int gs_core_create(gs_core **out, const struct gs_arbiter_config *config, uint64_t now_ns);
void gs_core_destroy(gs_core *core);

/* Adds a grant. grant: the caller's number for it, 0 .. GS_ARBITER_MAX_GRANTS - 1. held: the grant has a lease from
 * before a restart. Returns 1 if it keeps that lease, 0 if the device already has a holder and the caller has to revoke
 * the lease. */
int gs_core_add(gs_core *core, int32_t grant, const struct gs_share *share, int held, uint64_t now_ns);
/* To be called before gs_core_remove: makes the decisions that end the grant's lease, its wait and its reclaim, for the
 * record. Changes only statistics. Fills at most 3 decisions and returns how many. */
int gs_core_close(gs_core *core, int32_t grant, uint64_t now_ns, struct gs_core_decision *out);
/* Removes a grant with its lease; the next step leases the device to another grant. */
void gs_core_remove(gs_core *core, int32_t grant, uint64_t now_ns);
/* Sets a new share; its flags are ignored. */
void gs_core_share(gs_core *core, int32_t grant, const struct gs_share *share, uint64_t now_ns);
/* Replaces what the core knows of a grant. */
void gs_core_observe(gs_core *core, int32_t grant, const struct gs_core_view *view);
/* Brings the accounts to now_ns with the current view, to be called before the view changes. */
void gs_core_charge(gs_core *core, uint64_t now_ns);
/* The grant's bell rang. If it left leases unused, it is alive after all, and gets the next try sooner. */
void gs_core_bell_rang(gs_core *core, int32_t grant);

/* Makes all decisions that are due at now_ns. Fills at most GS_CORE_DECISIONS and returns how many; *next_ns is when to
 * step again if nothing happens (UINT64_MAX: never). Before the call, observe all grants that gs_core_watched names. */
int gs_core_step(gs_core *core, uint64_t now_ns, struct gs_core_decision *out, uint64_t *next_ns);

/* ---- gangs ---- The core neither leases the device to a gang nor revokes its lease. It reports whether the gang is due,
 * and when it has to yield. gangs.h then acts on all devices of the gang at one time now_ns; cores whose state it
 * changed are stepped again at that time. The functions below are for gangs.c. */

/* Whether a gang can be called to the device now. *due_ns: since when it is due; *next_ns: when it can be called. */
enum gs_core_call { GS_CORE_NOT_DUE, GS_CORE_DUE, GS_CORE_CALLABLE };
enum gs_core_call gs_core_gang_callable(const gs_core *core, int32_t grant, uint64_t *due_ns, uint64_t *next_ns);
/* 1: the gang fits on the device without a holder having to yield. */
int gs_core_gang_fits(const gs_core *core, int32_t grant);
/* Begins to free the device for the gang. No gang may hold a main lease on the device: they have yielded, or rest.
 * Fills out as gs_core_step does and returns how many decisions it made. */
int gs_core_gang_call(gs_core *core, int32_t grant, uint64_t now_ns, struct gs_core_decision *out);
/* Cancels the call. */
void gs_core_gang_uncall(gs_core *core, int32_t grant);
/* 1: the gang has been called and the device is free for it; else *next_ns is the latest time at which the device will
 * be free. */
int gs_core_gang_ready(gs_core *core, int32_t grant, uint64_t *next_ns);
/* Give the gang its lease on this device, and revoke it. beside: the lease is held alongside whatever else runs. other:
 * the grant for which the lease is revoked, or -1. Both fill out and return how many decisions they made. */
int gs_core_gang_lease(gs_core *core, int32_t grant, int beside, uint64_t now_ns, struct gs_core_decision *out);
int gs_core_gang_revoke(gs_core *core, int32_t grant, int32_t other, int idle, uint64_t now_ns,
                        struct gs_core_decision *out);
/* 1: gangs are due on this device. Unless one of them is called now, the caller steps the core again, and it then
 * continues without them. */
int gs_core_asks_gangs(const gs_core *core);
/* 1: the gang has to yield; *other: for which grant. */
int gs_core_gang_yields(const gs_core *core, int32_t grant, int32_t *other);
/* 1: the gang has a lease and nothing to run. *rests: meanwhile the device is lent to others. */
int gs_core_gang_idle(const gs_core *core, int32_t grant, int *rests);
/* The gang keeps its lease and has nothing to run: lends the device to others. */
void gs_core_gang_rest(gs_core *core, int32_t grant);
/* The next gang after `after` (-1: the first) that holds a main lease on the device, or -1. */
int32_t gs_core_gang_main(const gs_core *core, int32_t after);
/* 1: the gang waits for a lease and its limit allows one. */
int gs_core_gang_wants(const gs_core *core, int32_t grant);
/* 1: the gang may hold leases alongside others more than once per turn, because its ranks are uneven and its debt is
 * small. */
int gs_core_gang_solvent(const gs_core *core, int32_t grant);
/* The gang had drained, but has work on the device again without a lease. */
void gs_core_gang_clear_drained(gs_core *core, int32_t grant, uint64_t now_ns);
/* When the grant lost the lease whose work has not drained yet; 0: all work has drained. */
uint64_t gs_core_undrained_since(const gs_core *core, int32_t grant);

/* Fills out with the grants that wait, hold a lease or drain, and returns how many. out has room for
 * GS_ARBITER_MAX_GRANTS. */
int gs_core_watched(const gs_core *core, int32_t *out);
/* The holder; if there are several, the one with precedence; -1: none. */
int32_t gs_core_holder(const gs_core *core);
/* 1: the grant has a lease. */
int gs_core_holds(const gs_core *core, int32_t grant);
/* At most so many other grants have work on the device at a time, from leases that they hold, by what they fill of it, or
 * from revoked ones. */
uint32_t gs_core_foreign_work(const gs_core *core, int32_t grant);
/* What other grants with leases leave of the device, by what they fill; 0 while work outlives the lease of one. */
uint32_t gs_core_spare_milli(const gs_core *core, int32_t grant);
void gs_core_grant_stats(const gs_core *core, int32_t grant, struct gs_core_stats *out);
void gs_core_device_stats(const gs_core *core, struct gs_device_stats *out);

#endif
