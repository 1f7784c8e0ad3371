/* Decides who may use one device, and when. Pure: no clock, no I/O, no shared memory, and no allocation after create.
 * The caller reports what it sees of each grant (gs_core_observe), says what time it is (gs_core_step), and carries out
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

/* What the caller sees of a grant on the device. The tenant wrote all of it; false claims cost only the grant
 * itself. */
struct gs_core_view {
  uint32_t waiting;       /* threads in the gate */
  uint32_t wanted;        /* for a gang: threads in the gate of any of its devices */
  uint32_t spins;         /* 1: of a gang, some of its work waits for work that it has not submitted */
  uint32_t drained;       /* 1: it has nothing in flight */
  uint32_t live;          /* processes that could use a lease */
  uint64_t busy_until_ns; /* when what it submitted is expected to be done */
  uint64_t launches;      /* submissions so far; a change shows that the lease is used */
  uint64_t busy_ns;       /* device time metered so far */
};

enum gs_core_action {
  /* grant gets the lease; other: the holder before it, or -1; value: ns since it began to wait */
  GS_CORE_LEASE = 1,
  GS_CORE_REVOKE = 2,    /* grant loses it; other: the grant that it is revoked for, or -1 */
  GS_CORE_HANDOVER = 3,  /* the device passed from grant to other; value: ns since the revoke */
  GS_CORE_LATE = 4,      /* grant had not drained value ns after the revoke */
  GS_CORE_WAKE = 5,      /* grant wants the device after it was asleep */
  GS_CORE_CONTENDED = 6, /* grant's bound on work in flight changes; value: enum gs_core_company */
  /* grant, a gang that has not drained value ns after its revoke, gets the lease alongside its successors */
  GS_CORE_LEASE_BESIDE = 7,
  /* grant's work is done, value ns after its revoke; other: the grant that it was revoked for, or -1 */
  GS_CORE_DRAINED = 8,
  GS_CORE_LEFT = 9 /* grant stopped waiting after value ns, without a lease */
};

/* Who else wants the device, or ran on it in the last second: nobody, others, or others of which one is interactive. */
enum gs_core_company { GS_CORE_ALONE = 0, GS_CORE_IN_COMPANY = 1, GS_CORE_WITH_INTERACTIVE = 2 };

struct gs_core_decision {
  uint32_t action; /* enum gs_core_action */
  int32_t grant, other;
  uint64_t value;
  struct gs_receipt receipt; /* empty for WAKE and CONTENDED */
};

/* The books of one grant on the device; gs_grant_stats explains them. */
struct gs_core_stats {
  uint64_t leased_ns, borrowed_ns, wait_ns;
  uint64_t leases, revokes, waits;
  uint64_t wake_to_lease_ns, wake_to_lease_max_ns;
  uint64_t wake_to_lease[24]; /* GS_LATENCY_BUCKETS */
  struct gs_spans waited, reclaimed;
  uint32_t waiting, held;
};

int gs_core_create(gs_core **out, const struct gs_arbiter_config *config, uint64_t now_ns);
void gs_core_destroy(gs_core *core);

/* grant: the caller's number for it, 0 .. GS_ARBITER_MAX_GRANTS - 1. held: it has a lease from before a restart.
 * Returns 1 if it keeps that lease, 0 if the device has a holder already and the caller has to revoke it. */
int gs_core_add(gs_core *core, int32_t grant, const struct gs_share *share, int held, uint64_t now_ns);
/* To be called before gs_core_remove: the events that end its lease, its wait and a reclaim. Changes nothing but its
 * books. Fills at most 3 decisions and returns how many. */
int gs_core_close(gs_core *core, int32_t grant, uint64_t now_ns, struct gs_core_decision *out);
/* Ends the lease that it holds; the next step leases the device to another grant. */
void gs_core_remove(gs_core *core, int32_t grant, uint64_t now_ns);
void gs_core_share(gs_core *core, int32_t grant, const struct gs_share *share, uint64_t now_ns);
void gs_core_observe(gs_core *core, int32_t grant, const struct gs_core_view *view);
/* Its bell rang: if it left leases unused it is alive, and tried again sooner. */
void gs_core_bell_rang(gs_core *core, int32_t grant);

/* Decides. Fills at most GS_CORE_DECISIONS and returns how many; *next_ns is when to step again if nothing happens
 * (UINT64_MAX: never). The views of all grants that gs_core_watched names should be new. */
int gs_core_step(gs_core *core, uint64_t now_ns, struct gs_core_decision *out, uint64_t *next_ns);

/* ---- gangs ---- The core neither leases the device to a gang nor revokes its lease. It says whether the gang is due,
 * and when it has to yield. gangs.h then acts on all devices of the gang at one time now_ns; cores whose state it
 * changed are stepped again at that time. The functions below are for gangs.c. */

/* Whether a gang can be called to the device now. *due_ns: since when it is due; *next_ns: when it can be called. */
enum gs_core_call { GS_CORE_NOT_DUE, GS_CORE_DUE, GS_CORE_CALLABLE };
enum gs_core_call gs_core_gang_callable(const gs_core *core, int32_t grant, uint64_t *due_ns, uint64_t *next_ns);
/* 1: no holder has to yield for it. */
int gs_core_gang_fits(const gs_core *core, int32_t grant);
/* Frees the device for it. No gang may hold a main lease on it: they have yielded, or rest. */
int gs_core_gang_call(gs_core *core, int32_t grant, uint64_t now_ns, struct gs_core_decision *out);
void gs_core_gang_uncall(gs_core *core, int32_t grant);
/* 1: it has been called and the device is free for it; else *next_ns is the latest time at which it will be. */
int gs_core_gang_ready(gs_core *core, int32_t grant, uint64_t *next_ns);
int gs_core_gang_lease(gs_core *core, int32_t grant, int beside, uint64_t now_ns, struct gs_core_decision *out);
int gs_core_gang_revoke(gs_core *core, int32_t grant, int32_t other, int idle, uint64_t now_ns,
                        struct gs_core_decision *out);
/* 1: gangs are due here. Unless one of them is called now, the core is to be stepped again and goes on without them. */
int gs_core_asks_gangs(const gs_core *core);
/* 1: it has to yield; *other: for whom. */
int gs_core_gang_yields(const gs_core *core, int32_t grant, int32_t *other);
/* 1: it has a lease and nothing to run. *rests: the device is lent meanwhile. */
int gs_core_gang_idle(const gs_core *core, int32_t grant, int *rests);
void gs_core_gang_rest(gs_core *core, int32_t grant);
/* The next gang after `after` (-1: the first) that holds a main lease on the device, or -1. */
int32_t gs_core_gang_main(const gs_core *core, int32_t after);
int gs_core_gang_wants(const gs_core *core, int32_t grant);
/* 1: it may have leases alongside others more than once per turn: its ranks are uneven and its debt is small. */
int gs_core_gang_solvent(const gs_core *core, int32_t grant);
/* It had drained, and has work on the device again without a lease. */
void gs_core_gang_clear_drained(gs_core *core, int32_t grant, uint64_t now_ns);
/* When the lease was revoked whose work has not drained yet; 0: none. */
uint64_t gs_core_undrained_since(const gs_core *core, int32_t grant);

/* The grants that wait, hold a lease or drain. Fills out, which has room for GS_ARBITER_MAX_GRANTS; returns how
 * many. */
int gs_core_watched(const gs_core *core, int32_t *out);
/* The holder; of several, the one that goes first; -1: none. */
int32_t gs_core_holder(const gs_core *core);
int gs_core_holds(const gs_core *core, int32_t grant);
/* 1: other grants may have work on the device, from leases that they hold or that were revoked. */
int gs_core_foreign_work(const gs_core *core, int32_t grant);
void gs_core_grant_stats(const gs_core *core, int32_t grant, struct gs_core_stats *out);
void gs_core_device_stats(const gs_core *core, struct gs_device_stats *out);

#endif
