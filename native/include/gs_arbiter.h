/* The arbiter as the daemon sees it (through cffi). One thread serves all devices; Python sets policy, C serves leases.
 * Every function is thread-safe; 0 or a negative errno with err filled in. */
#ifndef GS_ARBITER_H
#define GS_ARBITER_H

#ifndef GS_CFFI
#include <stdint.h>
#include "gs_err.h"
#include "gs_page.h"
#endif

enum { GS_ARBITER_MAX_GRANTS = 256, GS_ARBITER_MAX_DEVICES = 16, GS_LATENCY_BUCKETS = 24 };

typedef struct gs_arbiter gs_arbiter;

enum gs_grant_class { GS_CLASS_INTERACTIVE = 0, GS_CLASS_INFERENCE = 1, GS_CLASS_TRAINING = 2 };

enum gs_share_flags {
  GS_SHARE_GANG = 1,  /* of a grant with several devices, on each: its leases are given and taken on all of them at one instant */
  GS_SHARE_BESIDE = 2 /* its lease is held beside those of others, whatever they fill: nobody here could align it with its peers
                       * elsewhere. Goes before GANG. */
};

/* What policy decides about one grant on one device. */
struct gs_share {
  uint32_t guarantee_milli; /* 0: borrow or scavenge only */
  uint32_t limit_milli;     /* >= guarantee; 1000 = no limit */
  uint32_t weight;          /* of the surplus; 0: scavenger */
  int32_t tier;             /* higher borrows first */
  uint32_t class_;          /* enum gs_grant_class */
  uint32_t flags;           /* enum gs_share_flags; as of gs_arbiter_grant_add, the same on all devices of the grant */
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

struct gs_grant_stats {
  uint64_t leased_ns;   /* charged residency */
  uint64_t borrowed_ns; /* the part of leased_ns served as surplus */
  uint64_t busy_ns;     /* metered by the interposer: sum over live and dead slots */
  uint64_t wait_ns;     /* wall time with a waiter and no lease */
  uint64_t leases, revokes, waits;
  uint64_t wake_to_lease_max_ns;
  uint64_t wake_to_lease[24]; /* GS_LATENCY_BUCKETS: bucket i counts waits < 2^i us (the last: all longer) */
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
  GS_EVENT_BESIDE = 6 /* a gang that did not drain has its leases again, beside those after it, so that all its ranks can
                       * submit what the others wait for */
};

/* The arbiter's own record, a ring of the last 4096: receipts are made from it. */
struct gs_event {
  uint64_t t_ns;
  uint32_t kind;   /* enum gs_event_kind */
  uint32_t device; /* node index */
  int32_t grant;   /* handle; GS_EVENT_LATE: the holder that did not drain in time */
  int32_t other;   /* lease: previous holder, revoke: who it is taken for; -1 none */
  uint64_t value;  /* lease: ns since the grant's wake; revoke: 0; handover, late, beside: ns since the revoke */
};

int gs_arbiter_create(gs_arbiter **out, const struct gs_arbiter_config *config, struct gs_err *err);
void gs_arbiter_defaults(struct gs_arbiter_config *config);
/* Stops the thread (leases stay as they are: tenants go on) and frees everything. */
void gs_arbiter_destroy(gs_arbiter *arbiter);

/* limits and usage stay mapped by the caller until gs_arbiter_grant_remove returned. devices[i] is the node index of the
 * device with ordinal i in the grant. bell is an eventfd the arbiter reads; the caller keeps ownership. Gives a handle >= 0 in
 * *grant. share[i] is for ordinal i. An already held lease word (daemon restart) is taken over as held. */
int gs_arbiter_grant_add(gs_arbiter *arbiter, struct gs_limits *limits, struct gs_usage *usage, const uint32_t *devices,
                         uint32_t ndevices, const struct gs_share *share, int bell, int32_t *grant, struct gs_err *err);
/* share: again one for each ordinal. */
int gs_arbiter_grant_share(gs_arbiter *arbiter, int32_t grant, const struct gs_share *share, struct gs_err *err);
int gs_arbiter_grant_remove(gs_arbiter *arbiter, int32_t grant, struct gs_err *err);
/* A slot's process is dead: keeps its metered time in the grant's sum, zeroes its device words, frees the header. */
int gs_arbiter_slot_clear(gs_arbiter *arbiter, int32_t grant, uint32_t slot, struct gs_err *err);

int gs_arbiter_grant_stats(gs_arbiter *arbiter, int32_t grant, uint32_t device, struct gs_grant_stats *out, struct gs_err *err);
int gs_arbiter_device_stats(gs_arbiter *arbiter, uint32_t device, struct gs_device_stats *out, struct gs_err *err);
/* Copies events with sequence numbers > *after, at most n; moves *after; returns how many (a gap shows in *after). */
int gs_arbiter_events(gs_arbiter *arbiter, uint64_t *after, struct gs_event *out, uint32_t n);

#endif
