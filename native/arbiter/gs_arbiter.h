/* The arbiter's interface to the daemon (through cffi). One thread serves all devices; Python sets policy, C serves
 * leases. All functions are thread-safe. One that takes a gs_err returns 0, or a negative errno with err filled in. */
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
  /* the leases of a grant of several devices are given, and revoked, on all of them at the same instant */
  GS_SHARE_GANG = 1,
  /* its lease is held alongside those of others, whatever they fill: nobody on this node could align it with those of its
   * peers on other nodes. Takes precedence over GANG. */
  GS_SHARE_BESIDE = 2
};

/* Policy for one grant on one device. */
struct gs_share {
  uint32_t guarantee_milli; /* 0: borrow or scavenge only */
  uint32_t limit_milli;     /* >= guarantee; 1000 = no limit */
  uint32_t weight;          /* of the surplus; 0: scavenger */
  int32_t tier;             /* higher borrows first */
  uint32_t class_;          /* enum gs_grant_class */
  /* enum gs_share_flags; the same on all devices of the grant; gs_arbiter_grant_share does not change them */
  uint32_t flags;
};

struct gs_arbiter_config {
  uint64_t lease_ns; /* 20 ms */
  uint64_t bound_ns; /* most device time in flight while contended, 2 ms; a quarter of it beside an interactive grant */
  uint64_t bound_alone_ns;    /* the same otherwise, 50 ms */
  uint64_t revoke_overlap_ns; /* a successor is leased this long after a revoke at the latest, 1 ms */
  uint64_t early_idle_ns;     /* a holder that is idle for this long hands over when another grant waits, 0.2 ms */
  uint64_t bucket_ns;         /* guarantee credit is capped at the guarantee's part of this, 200 ms */
  uint64_t credit_floor_ns;   /* least credit with which a grant is served by its guarantee, 1 ms */
  uint32_t reserve_milli;     /* part of the device's time that is kept for switching, 20 */
  uint32_t realtime;          /* 1: try SCHED_FIFO 1 for the thread */
};

/* How long waits, or reclaims, took that have ended. */
struct gs_spans {
  uint64_t n, total_ns, max_ns;
  uint64_t bucket[24]; /* GS_LATENCY_BUCKETS: bucket i counts those below 2^i us, the last one all longer */
};

struct gs_grant_stats {
  uint64_t leased_ns;   /* device time charged */
  uint64_t borrowed_ns; /* the part of leased_ns served as surplus */
  uint64_t busy_ns;     /* metered by the interposer, by living and ended processes */
  uint64_t wait_ns;     /* wall time during which it waited without a lease */
  uint64_t leases, revokes, waits;
  uint64_t wake_to_lease_ns, wake_to_lease_max_ns; /* of the waits that began with a wake */
  uint64_t wake_to_lease[24];                      /* buckets as in gs_spans */
  struct gs_spans waited;                          /* waits that ended, with a lease or without */
  /* leases revoked in mid-work: until that work was done */
  struct gs_spans reclaimed;
  uint64_t memory_bytes;      /* sum over slots now */
  uint64_t memory_peak_bytes; /* highest sum so far, sampled at every bell and tick */
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
  /* a gang that did not drain gets its leases again, alongside its successors', so that all its ranks can submit what
   * others wait for */
  GS_EVENT_BESIDE = 6,
  /* the work of a revoked lease is done: the reclaim is over. Not recorded when the holder was idle or ended */
  GS_EVENT_DRAINED = 7,
  GS_EVENT_LEFT = 8 /* a wait ended without a lease: its threads or processes have ended */
};

/* Why a lease was revoked. For a lease that was given: why the one before it was revoked, or why the device was free. */
enum gs_rule {
  GS_RULE_NONE = 0,
  GS_RULE_IDLE = 1,      /* its holder had nothing to run */
  GS_RULE_SLEEPING = 2,  /* the same, at once: it usually sleeps after its work */
  GS_RULE_GONE = 3,      /* no process is left to use it */
  GS_RULE_UNUSED = 4,    /* it was not used */
  GS_RULE_LIMIT = 5,     /* its holder's limit was used up; lease: the grant's own was, and it had to wait */
  GS_RULE_WAKE = 6,      /* a grant woke that goes first */
  GS_RULE_GUARANTEE = 7, /* a grant is due time of its guarantee, which it had lent */
  GS_RULE_TIER = 8,      /* a grant of a higher tier borrows first */
  GS_RULE_TERM = 9,      /* its term was over, and others go first */
  GS_RULE_EXCESS = 10,   /* several held leases: this one got more than its guarantee, another less */
  GS_RULE_GANG = 11,     /* a gang gets, or loses, all its devices at the same instant */
  GS_RULE_ENDED = 12,    /* the grant ended */
  GS_RULE_FREE = 13,     /* lease: nobody had the device */
  GS_RULE_ROOM = 14      /* lease: it fits beside the holders */
};

/* What a lease is given for. */
enum gs_level { GS_LEVEL_NONE = 0, GS_LEVEL_GUARANTEE = 1, GS_LEVEL_SLACK = 2, GS_LEVEL_SURPLUS = 3 };

enum gs_receipt_flags {
  GS_RECEIPT_WOKE = 1, /* lease: the wait began with a wake: the grant had been asleep */
  /* drained: its work still ran; it got another lease, ended, or did not report its end for a second */
  GS_RECEIPT_RUNNING = 2
};

/* The reason and the numbers of a decision. guarantee and had: of the leased grant, or the one that the lease was revoked
 * for. */
struct gs_receipt {
  uint32_t rule;            /* enum gs_rule */
  uint32_t level;           /* enum gs_level, of the lease */
  uint32_t flags;           /* enum gs_receipt_flags */
  uint32_t guarantee_milli; /* on this device */
  uint32_t had_milli;       /* part of the last whole second that it was charged for */
  uint32_t reserved;
  /* lease, beside, left: since it began to wait without a lease */
  uint64_t wait_ns;
  /* lease: the part of wait_ns since the revoke of the holder before it; handover, drained, late, beside: since the revoke */
  uint64_t reclaim_ns;
};

/* The arbiter keeps the last GS_ARBITER_EVENTS events; the daemon makes receipts from them. Each wait ends with lease,
 * beside or left. Each lease ends with revoke. Each revoke of a grant that goes on and was not idle ends with drained. */
struct gs_event {
  uint64_t t_ns;
  uint32_t kind;   /* enum gs_event_kind */
  uint32_t device; /* node index */
  int32_t grant;   /* handle; late: of the grant that did not drain in time */
  int32_t other;   /* lease: the previous holder; revoke, drained: the grant that it was revoked for; -1: none */
  struct gs_receipt receipt;
};

/* Starts the thread. -EINVAL: a value of config makes no sense; -ENOMEM, or the errno of a system call. */
int gs_arbiter_create(gs_arbiter **out, const struct gs_arbiter_config *config, struct gs_err *err);
/* The values named in gs_arbiter_config. */
void gs_arbiter_defaults(struct gs_arbiter_config *config);
/* Stops the thread and frees everything. Lease words stay as they are, so tenants go on. */
void gs_arbiter_destroy(gs_arbiter *arbiter);

/* limits and usage stay mapped by the caller until gs_arbiter_grant_remove returned. devices[i] is the node index of
 * the device with ordinal i in the grant. bell is an eventfd that tenants write and nobody reads: the arbiter waits for
 * its edges, on a duplicate of its own. Gives a handle >= 0 in *grant, which is no other grant's for as long as events could name it. share[i] is for ordinal i. An
 * already held lease word (daemon restart) is taken over as held. */
int gs_arbiter_grant_add(gs_arbiter *arbiter, struct gs_limits *limits, struct gs_usage *usage, const uint32_t *devices,
                         uint32_t ndevices, const struct gs_share *share, int bell, int32_t *grant, struct gs_err *err);
/* New shares for a grant, one for each ordinal. -ENOENT: no such grant; -EINVAL: a share makes no sense. */
int gs_arbiter_grant_share(gs_arbiter *arbiter, int32_t grant, const struct gs_share *share, struct gs_err *err);
/* Revokes its leases and forgets it. -ENOENT: no such grant. */
int gs_arbiter_grant_remove(gs_arbiter *arbiter, int32_t grant, struct gs_err *err);
/* The slot's process has ended: adds its metered time to the grant's sum, zeroes its device words and frees its header.
 * -ENOENT: no such grant; -EINVAL: no such slot. */
int gs_arbiter_slot_clear(gs_arbiter *arbiter, int32_t grant, uint32_t slot, struct gs_err *err);

/* Statistics of a grant on one of its devices (node index), brought up to now. -ENOENT: no such grant, or not there. */
int gs_arbiter_grant_stats(gs_arbiter *arbiter, int32_t grant, uint32_t device, struct gs_grant_stats *out,
                           struct gs_err *err);
/* All 0 for a device that has had no grant. -EINVAL: no such device. */
int gs_arbiter_device_stats(gs_arbiter *arbiter, uint32_t device, struct gs_device_stats *out, struct gs_err *err);
/* Copies at most n events with sequence numbers above *after, oldest first, and returns how many. *after becomes the
 * number of the last one copied; a gap shows as *after moving by more than the count. */
int gs_arbiter_events(gs_arbiter *arbiter, uint64_t *after, struct gs_event *out, uint32_t n);
/* The sequence number of the newest event; 0: none. */
uint64_t gs_arbiter_newest_event(gs_arbiter *arbiter);

#endif
