/* The arbiter as the daemon sees it (through cffi). One thread serves all devices; Python sets policy, C serves leases.
 * Every function is thread-safe; 0 or a negative errno with err filled in. */
#ifndef GS_ARBITER_H
#define GS_ARBITER_H

#ifndef GS_CFFI
#include <stdint.h>
#include "page/gs_err.h"
#include "page/gs_page.h"
#endif

enum { GS_ARBITER_MAX_GRANTS = 256, GS_ARBITER_MAX_DEVICES = 16, GS_LATENCY_BUCKETS = 24, GS_ARBITER_EVENTS = 65536 };

typedef struct gs_arbiter gs_arbiter;

enum gs_grant_class { GS_CLASS_INTERACTIVE = 0, GS_CLASS_INFERENCE = 1, GS_CLASS_TRAINING = 2 };

enum gs_share_flags {
  /* of a grant with several devices, on each: its leases are given and taken on all of them at one instant */
  GS_SHARE_GANG = 1,
  GS_SHARE_BESIDE =
      2 /* its lease is held beside those of others, whatever they fill: nobody here could align it with its peers
                       * elsewhere. Goes before GANG. */
};

/* What policy decides about one grant on one device. */
struct gs_share {
  uint32_t guarantee_milli; /* 0: borrow or scavenge only */
  uint32_t limit_milli;     /* >= guarantee; 1000 = no limit */
  uint32_t weight;          /* of the surplus; 0: scavenger */
  int32_t tier;             /* higher borrows first */
  uint32_t class_;          /* enum gs_grant_class */
  /* enum gs_share_flags; as of gs_arbiter_grant_add, the same on all devices of the grant */
  uint32_t flags;
};

struct gs_arbiter_config {
  uint64_t lease_ns;          /* 20 ms */
  uint64_t bound_ns;          /* D while contended, 2 ms; a quarter of it beside an interactive grant */
  uint64_t bound_alone_ns;    /* D otherwise, 50 ms */
  uint64_t revoke_overlap_ns; /* the successor is leased at the latest this long after a revoke, 1 ms */
  uint64_t early_idle_ns;     /* a holder idle this long hands over when another waits, 0.2 ms */
  uint64_t bucket_ns;         /* cap of stored guarantee credit: guarantee x this, 200 ms */
  uint64_t credit_floor_ns;   /* credit needed to be served as guaranteed, 1 ms */
  uint32_t reserve_milli;     /* switching reserve h, 20 */
  uint32_t realtime;          /* 1: try SCHED_FIFO 1 for the thread */
};

/* How long things took that have ended. */
struct gs_spans {
  uint64_t n, total_ns, max_ns;
  uint64_t bucket[24]; /* GS_LATENCY_BUCKETS: bucket i counts those < 2^i us (the last: all longer) */
};

struct gs_grant_stats {
  uint64_t leased_ns;   /* charged residency */
  uint64_t borrowed_ns; /* the part of leased_ns served as surplus */
  uint64_t busy_ns;     /* metered by the interposer: sum over live and dead slots */
  uint64_t wait_ns;     /* wall time with a waiter and no lease */
  uint64_t leases, revokes, waits;
  uint64_t wake_to_lease_ns, wake_to_lease_max_ns; /* of the waits that were wakes */
  uint64_t wake_to_lease[24];                      /* as in gs_spans */
  struct gs_spans waited;                          /* every wait that ended, in a lease or without one */
  /* every lease taken from it in mid-work: until that work was done */
  struct gs_spans reclaimed;
  uint64_t memory_bytes;      /* sum over slots now */
  uint64_t memory_peak_bytes; /* highest sum the arbiter saw; sampled at every bell and tick */
  uint32_t waiting, held, processes, runnable;
};

struct gs_device_stats {
  uint64_t wall_ns, leased_ns, switch_ns, idle_ns, idle_with_waiters_ns, leases;
};

enum gs_event_kind {
  GS_EVENT_LEASE = 1,
  GS_EVENT_REVOKE = 2,
  GS_EVENT_HANDOVER = 3,
  GS_EVENT_WAKE = 4,
  GS_EVENT_LATE = 5,
  GS_EVENT_BESIDE =
      6, /* a gang that did not drain has its leases again, beside those after it, so that all its ranks can
                       * submit what the others wait for */
  GS_EVENT_DRAINED =
      7, /* what a revoked lease had left on the device is done: the reclaim is over. Not of one that was idle
                         * or ended */
  GS_EVENT_LEFT = 8 /* a wait ended without a lease: its threads or processes are gone */
};

/* Why a lease was taken; of a lease given: why the one before it was, or how else there was one to give. */
enum gs_rule {
  GS_RULE_NONE = 0,
  GS_RULE_IDLE = 1,      /* its holder had nothing to run */
  GS_RULE_SLEEPING = 2,  /* the same, at once: it is known to sleep after its work */
  GS_RULE_GONE = 3,      /* no process is left that could use it */
  GS_RULE_UNUSED = 4,    /* it was not taken up */
  GS_RULE_LIMIT = 5,     /* its holder had all of its limit; lease: it had, and had to wait for more */
  GS_RULE_WAKE = 6,      /* a grant woke that goes before it */
  GS_RULE_GUARANTEE = 7, /* a grant has time of its guarantee to come, which it had lent */
  GS_RULE_TIER = 8,      /* a grant of a higher tier borrows before it */
  GS_RULE_TERM = 9,      /* its term was over and others go before it */
  GS_RULE_EXCESS = 10,   /* held together with others: it had more than its guarantee, another less */
  GS_RULE_GANG = 11,     /* a gang gets, or loses, all its devices at one instant */
  GS_RULE_ENDED = 12,    /* the grant ended */
  GS_RULE_FREE = 13,     /* lease: nobody had the device */
  GS_RULE_ROOM = 14      /* lease: those who have the device leave room */
};

/* What a lease is given for. */
enum gs_level { GS_LEVEL_NONE = 0, GS_LEVEL_GUARANTEE = 1, GS_LEVEL_SLACK = 2, GS_LEVEL_SURPLUS = 3 };

enum gs_receipt_flags {
  GS_RECEIPT_WOKE = 1, /* lease: the wait began as a wake: the grant had been quiet before */
  /* drained: in fact it still ran; it got another lease, ended, or showed no end for a second */
  GS_RECEIPT_RUNNING = 2
};

/* The numbers of a decision. Of a lease its own, else of the grant it was taken for. */
struct gs_receipt {
  uint32_t rule;            /* enum gs_rule */
  uint32_t level;           /* enum gs_level, of the lease */
  uint32_t flags;           /* enum gs_receipt_flags */
  uint32_t guarantee_milli; /* on this device, as policy set it */
  uint32_t had_milli;       /* what of the last whole second it was charged for */
  uint32_t reserved;
  uint64_t wait_ns; /* lease, beside, left: since it began to wait without one */
  uint64_t
      reclaim_ns; /* lease: of that, since the revoke of the holder before it; handover, drained, late, beside: since the
                        * revoke */
};

/* The arbiter's own record, a ring of the last GS_ARBITER_EVENTS: receipts are made from it. Each wait ends with lease,
 * beside or left, each lease with revoke, each revoke of a grant that goes on and was not idle with drained. */
struct gs_event {
  uint64_t t_ns;
  uint32_t kind;   /* enum gs_event_kind */
  uint32_t device; /* node index */
  int32_t grant;   /* handle; GS_EVENT_LATE: the holder that did not drain in time */
  int32_t other;   /* lease: previous holder; revoke, drained: who it is taken for; -1 none */
  struct gs_receipt receipt;
};

int gs_arbiter_create(gs_arbiter **out, const struct gs_arbiter_config *config, struct gs_err *err);
void gs_arbiter_defaults(struct gs_arbiter_config *config);
/* Stops the thread (leases stay as they are: tenants go on) and frees everything. */
void gs_arbiter_destroy(gs_arbiter *arbiter);

/* limits and usage stay mapped by the caller until gs_arbiter_grant_remove returned. devices[i] is the node index of
 * the device with ordinal i in the grant. bell is an eventfd that tenants write and nobody reads: the arbiter waits for
 * its edges, on a duplicate of its own. Gives a handle >= 0 in *grant, which is no other grant's for as long as events could name it. share[i] is for ordinal i. An
 * already held lease word (daemon restart) is taken over as held. */
int gs_arbiter_grant_add(gs_arbiter *arbiter, struct gs_limits *limits, struct gs_usage *usage, const uint32_t *devices,
                         uint32_t ndevices, const struct gs_share *share, int bell, int32_t *grant, struct gs_err *err);
/* share: again one for each ordinal. */
int gs_arbiter_grant_share(gs_arbiter *arbiter, int32_t grant, const struct gs_share *share, struct gs_err *err);
int gs_arbiter_grant_remove(gs_arbiter *arbiter, int32_t grant, struct gs_err *err);
/* A slot's process is dead: keeps its metered time in the grant's sum, zeroes its device words, frees the header. */
int gs_arbiter_slot_clear(gs_arbiter *arbiter, int32_t grant, uint32_t slot, struct gs_err *err);

int gs_arbiter_grant_stats(gs_arbiter *arbiter, int32_t grant, uint32_t device, struct gs_grant_stats *out,
                           struct gs_err *err);
int gs_arbiter_device_stats(gs_arbiter *arbiter, uint32_t device, struct gs_device_stats *out, struct gs_err *err);
/* Copies events with sequence numbers > *after, at most n; moves *after; returns how many (a gap shows in *after). */
int gs_arbiter_events(gs_arbiter *arbiter, uint64_t *after, struct gs_event *out, uint32_t n);
/* The sequence number of the newest event; 0: there is none. */
uint64_t gs_arbiter_newest_event(gs_arbiter *arbiter);

#endif
