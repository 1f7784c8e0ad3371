/* The arbiter's interface to the daemon (through cffi). One thread serves all devices: Python sets the policy, C grants
 * and revokes leases. All functions are thread-safe. Functions that take a gs_err return 0, or a negative errno with
 * err filled in. */
#ifndef GS_ARBITER_H
#define GS_ARBITER_H

#ifndef GS_CFFI
#include <stdint.h>
#include "page/gs_err.h"
#include "page/gs_page.h"
#include "page/gs_seats.h"
#endif

enum { GS_ARBITER_MAX_GRANTS = 1024, GS_ARBITER_MAX_DEVICES = 16, GS_LATENCY_BUCKETS = 24, GS_ARBITER_EVENTS = 65536 };

typedef struct gs_arbiter gs_arbiter;

enum gs_grant_class { GS_CLASS_INTERACTIVE = 0, GS_CLASS_INFERENCE = 1, GS_CLASS_TRAINING = 2 };

enum gs_share_flags {
  /* a grant with several devices gets its leases, and loses them, on all devices at the same instant */
  GS_SHARE_GANG = 1,
  /* the grant holds its lease alongside those of others, however much of the device they fill: no arbiter on this node
   * can synchronise it with its peers on other nodes. Takes precedence over GANG. */
  GS_SHARE_BESIDE = 2
};

/* Policy for one grant on one device. */
struct gs_share {
  uint32_t guarantee_milli; /* thousandths of the device's time; 0: borrow or scavenge only */
  uint32_t limit_milli;     /* >= guarantee; 1000 = no limit */
  uint32_t weight;          /* share of the surplus relative to other grants; 0: scavenger */
  int32_t tier;             /* higher borrows first */
  uint32_t class_;          /* enum gs_grant_class */
  /* enum gs_share_flags; must be equal on all devices of the grant; gs_arbiter_grant_share does not change them */
  uint32_t flags;
};

struct gs_arbiter_config {
  /* The times in the comments are the defaults. */
  uint64_t lease_ns; /* 20 ms */
  /* most device time in flight while other grants want the device, 2 ms; a quarter of it next to an interactive
   * grant */
  uint64_t bound_ns;
  uint64_t bound_alone_ns;    /* the same otherwise, 50 ms */
  uint64_t revoke_overlap_ns; /* the next grant gets its lease at the latest this long after a revoke, 1 ms */
  /* a holder that has been idle for this long loses its lease if another grant waits, 0.2 ms */
  uint64_t early_idle_ns;
  uint64_t bucket_ns;       /* guarantee credit is capped at what the guarantee yields in this time, 200 ms */
  uint64_t credit_floor_ns; /* least credit with which a grant is served from its guarantee, 1 ms */
  uint32_t reserve_milli;   /* thousandths of the device's time that are kept for switching, 20 */
  uint32_t realtime;        /* 1: try to run the thread with SCHED_FIFO, priority 1 */
};

/* Durations of waits, or of reclaims, that have ended. */
struct gs_spans {
  uint64_t n, total_ns, max_ns;
  /* GS_LATENCY_BUCKETS: bucket i counts durations below 2^i us that no lower bucket counts, the last one all longer
   * ones */
  uint64_t bucket[24];
};

struct gs_grant_stats {
  uint64_t leased_ns;   /* device time charged */
  uint64_t borrowed_ns; /* the part of leased_ns served as surplus */
  /* Device time that the grant can have used, as far as it reported: what is charged, and what it was not charged
   * because other grants claimed to run at the same time. No claim of another grant makes this less. */
  uint64_t had_ns;
  /* device time metered by the interposer in all processes of the grant, including those that have ended */
  uint64_t busy_ns;
  uint64_t wait_ns; /* wall time during which the grant waited without a lease */
  /* Parts of wait_ns: while it was owed guaranteed time, and while its limit was used up. In the rest of wait_ns it had
   * received its guarantee, and others had the device. */
  uint64_t wait_owed_ns, wait_limit_ns;
  uint64_t launches; /* of all its processes, including those that have ended: kernels, graphs and other work */
  uint64_t leases, revokes, waits;
  uint64_t wake_to_lease_ns, wake_to_lease_max_ns; /* only of waits that began with a wake */
  uint64_t wake_to_lease[24];                      /* buckets as in gs_spans */
  struct gs_spans waited;                          /* waits that ended, with a lease or without */
  /* of leases that were revoked while work was running: the time until that work was done */
  struct gs_spans reclaimed;
  uint64_t memory_bytes;      /* sum over slots now */
  uint64_t memory_peak_bytes; /* highest sum so far, sampled at every bell and tick */
  uint32_t waiting, held, processes, runnable;
  uint32_t marked; /* processes whose slot is marked: it contains an impossible value, see GS_EVENT_LIE */
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
  /* a gang that did not drain gets its leases again, alongside those of its successors, so that all its ranks can
   * submit the work that other ranks wait for */
  GS_EVENT_BESIDE = 6,
  /* the work of a revoked lease is done, so the reclaim has ended. Not recorded if the holder was idle or had ended */
  GS_EVENT_DRAINED = 7,
  GS_EVENT_LEFT = 8, /* a wait ended without a lease, since the waiting threads or processes ended */
  /* A word of a slot has an impossible value. The slot is marked until its process has ended, and the grant is charged
   * for the most that it could have used (native/arbiter/thread/claims.h). Recorded once for each word of a slot, and
   * at most GS_LIES_PER_SECOND times a second for a grant. */
  GS_EVENT_LIE = 9,
  /* Calls of the grant's processes were refused for want of device memory, as the daemon found in its usage page */
  GS_EVENT_REFUSED = 10
};

enum { GS_LIES_PER_SECOND = 16 };

/* The words of a slot in the usage page that are checked. */
enum gs_word {
  GS_WORD_STATE = 0,
  GS_WORD_GENERATION = 1,
  GS_WORD_PID = 2,
  GS_WORD_MEMORY = 3,
  GS_WORD_BUSY = 4,
  GS_WORD_QUEUE_END = 5,
  GS_WORD_LAUNCHES = 6,
  GS_WORD_COLLECTIVES = 7,
  GS_WORD_WAITING = 8,
  GS_WORD_INFLIGHT = 9,
  GS_WORDS = 10
};

/* Why a lease was revoked. For a new lease: why the previous one was revoked, or why the device was free. */
enum gs_rule {
  GS_RULE_NONE = 0,
  GS_RULE_IDLE = 1,      /* the holder had nothing to run */
  GS_RULE_SLEEPING = 2,  /* the same without a delay: the holder usually sleeps after its work */
  GS_RULE_GONE = 3,      /* no live process of the holder was left */
  GS_RULE_UNUSED = 4,    /* the holder did not use the lease */
  GS_RULE_LIMIT = 5,     /* the holder had used up its limit; lease: the grant itself had, and had to wait */
  GS_RULE_WAKE = 6,      /* a grant with precedence woke up */
  GS_RULE_GUARANTEE = 7, /* a grant claimed time of its guarantee that it had lent */
  GS_RULE_TIER = 8,      /* a grant of a higher tier has precedence for borrowing */
  GS_RULE_TERM = 9,      /* the term had ended, and another grant had precedence */
  GS_RULE_EXCESS = 10,   /* several grants held leases: this one got more than its guarantee and another one less */
  GS_RULE_GANG = 11,     /* a gang got, or lost, all its devices at the same instant */
  GS_RULE_ENDED = 12,    /* the grant ended */
  GS_RULE_FREE = 13,     /* lease: no grant had the device */
  GS_RULE_ROOM = 14,     /* lease: the grant fits on the device together with the holders */
  GS_RULE_AWAY = 15      /* the holder's memory leaves the device */
};

/* What pays for a lease: the guarantee, saved-up slack, or the surplus. */
enum gs_level { GS_LEVEL_NONE = 0, GS_LEVEL_GUARANTEE = 1, GS_LEVEL_SLACK = 2, GS_LEVEL_SURPLUS = 3 };

enum gs_receipt_flags {
  GS_RECEIPT_WOKE = 1, /* lease: the wait began with a wake, that is, the grant had been asleep */
  /* drained: the work was still running; the grant got another lease, ended, or did not report the end of its work for
   * one second */
  GS_RECEIPT_RUNNING = 2
};

/* The reason and the numbers of a decision. guarantee_milli and had_milli are those of the leased grant or, for a
 * revoke, of the grant that gets the device instead. */
struct gs_receipt {
  uint32_t rule;            /* enum gs_rule */
  uint32_t level;           /* enum gs_level, of the lease */
  uint32_t flags;           /* enum gs_receipt_flags */
  uint32_t guarantee_milli; /* on this device */
  uint32_t had_milli;       /* thousandths of the last full second for which the grant was charged */
  uint32_t reserved;
  /* lease, beside, left: time since the grant began to wait without a lease */
  uint64_t wait_ns;
  /* lease: time since the revoke of the previous holder; handover, drained, late, beside: time since the revoke */
  uint64_t reclaim_ns;
};

/* The impossible value that a process wrote, and its slot. */
struct gs_lie {
  uint32_t word; /* enum gs_word */
  uint32_t slot;
  int32_t pid; /* host pid of the slot's process; another process of the grant may have written the word */
  uint32_t reserved;
  uint64_t value; /* at most INT64_MAX */
};

/* Refused calls since the last such event of the grant on the device; of the last one: what it asked for, and what the grant
 * had left of its limit. */
struct gs_refused {
  uint64_t calls, asked_bytes, left_bytes, limit_bytes;
  uint32_t why; /* enum gs_refusal */
  uint32_t reserved;
};

/* The arbiter keeps the last GS_ARBITER_EVENTS events, from which the daemon makes receipts. Each wait ends with LEASE,
 * BESIDE or LEFT. Each lease ends with REVOKE. Each revoke ends with DRAINED, unless the grant was idle or was
 * removed. */
struct gs_event {
  /* CLOCK_MONOTONIC */
  uint64_t t_ns;
  uint32_t kind;   /* enum gs_event_kind */
  uint32_t device; /* node index */
  int32_t grant;   /* handle; late: the grant that did not drain in time */
  /* lease: the previous holder; revoke, drained: the grant for which the lease was revoked; -1: none */
  int32_t other;
  union {
    struct gs_receipt receipt;
    struct gs_lie lie;         /* of GS_EVENT_LIE */
    struct gs_refused refused; /* of GS_EVENT_REFUSED */
  };
};

/* Creates the arbiter and starts its thread. -EINVAL: config has an invalid value; -ENOMEM, or the errno of a failed
 * system call. */
int gs_arbiter_create(gs_arbiter **out, const struct gs_arbiter_config *config, struct gs_err *err);
/* Sets the defaults named in gs_arbiter_config. */
void gs_arbiter_defaults(struct gs_arbiter_config *config);
/* Stops the thread and frees everything. Lease words keep their values, so tenants keep running. */
void gs_arbiter_destroy(gs_arbiter *arbiter);

/* Adds a grant and returns its handle >= 0 in *grant; no other grant gets the same handle while events may still refer
 * to it. The caller keeps limits, usage and seats until gs_arbiter_grant_remove has returned. Only seats decides which
 * slots of usage count. devices[i] is the node index of the device with ordinal i in the grant, and share[i] its share.
 * bell is an eventfd that tenants write and nobody reads; the arbiter duplicates it and waits for edges. A lease that
 * is marked held in its lease word, as after a restart of the daemon, is kept where the core allows it. */
int gs_arbiter_grant_add(gs_arbiter *arbiter, struct gs_limits *limits, struct gs_usage *usage, struct gs_seats *seats,
                         const uint32_t *devices, uint32_t ndevices, const struct gs_share *share, int bell,
                         int32_t *grant, struct gs_err *err);
/* Sets new shares for a grant, one for each ordinal. -ENOENT: no such grant; -EINVAL: a share is invalid. */
int gs_arbiter_grant_share(gs_arbiter *arbiter, int32_t grant, const struct gs_share *share, struct gs_err *err);
/* Revokes the leases of a grant and removes it. -ENOENT: no such grant. */
int gs_arbiter_grant_remove(gs_arbiter *arbiter, int32_t grant, struct gs_err *err);
/* To be called after the process in a slot has ended: adds its metered time to the sum of the grant, zeroes its device
 * words and frees the slot and its seat. A free slot is only zeroed. -ENOENT: no such grant; -EINVAL: no such slot. */
int gs_arbiter_slot_clear(gs_arbiter *arbiter, int32_t grant, uint32_t slot, struct gs_err *err);

/* Records GS_EVENT_REFUSED for a grant on one of its devices (node index). -ENOENT: no such grant, or it does not have the
 * device. */
int gs_arbiter_refused(gs_arbiter *arbiter, int32_t grant, uint32_t device, const struct gs_refused *refused,
                       struct gs_err *err);

/* Statistics of a grant on one of its devices (node index), up to date. -ENOENT: no such grant, or it does not have the
 * device. */
int gs_arbiter_grant_stats(gs_arbiter *arbiter, int32_t grant, uint32_t device, struct gs_grant_stats *out,
                           struct gs_err *err);
/* Statistics of a device. If no grant was ever on it: only wall_ns and idle_ns, since the arbiter was created. -EINVAL:
 * no such device. */
int gs_arbiter_device_stats(gs_arbiter *arbiter, uint32_t device, struct gs_device_stats *out, struct gs_err *err);
/* Copies at most n events with sequence numbers above *after, oldest first, and returns their number. *after becomes
 * the sequence number of the last event copied; if it grows by more than the return value, events were lost. */
int gs_arbiter_events(gs_arbiter *arbiter, uint64_t *after, struct gs_event *out, uint32_t n);
/* The sequence number of the newest event; 0: none. */
uint64_t gs_arbiter_newest_event(gs_arbiter *arbiter);

#endif
