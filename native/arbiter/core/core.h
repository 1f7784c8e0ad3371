/* Who may use one device, and when: the decisions of the arbiter. Pure: no clock, no I/O, no shared memory and no
 * allocation after create. The caller tells what it saw of each grant (gs_core_observe), says what time it is
 * (gs_core_step) and carries out the decisions it gets back. Times are nanoseconds of one monotonic clock; one that
 * steps back counts as standing still.
 *
 * The rules (ARCHITECTURE.md "arbiter" says why):
 *  guarantee  a grant whose guarantee bucket holds at least the floor; the bucket that is fullest for its size goes first.
 *  slack      the same with the slack bucket: the switching reserve, as far as switches did not need it.
 *  surplus    highest tier, then least weighted virtual time; weight 0 (scavengers) last and equally.
 * Of guaranteed grants the interactive ones go first. The guarantee bucket grows at guarantee x (1 - reserve), the
 * slack bucket at guarantee x reserve; a lease is paid from the bucket it was given for, and what it overruns is debt,
 * and owed to those it held up. So promises hold with switches paid, and a full device is split by its guarantees to
 * the last per cent.
 *
 * Leases are exclusive for grants that fill the device and held together by those that do not, as measured. One holder
 * pays its residency; several pay the wall time in proportion to how much of the device each is measured to fill. */
#ifndef GS_ARBITER_CORE_CORE_H
#define GS_ARBITER_CORE_CORE_H

#ifndef GS_CFFI
#include <stdint.h>
#include "arbiter/gs_arbiter.h"
#endif

enum { GS_CORE_DECISIONS = 64 };

typedef struct gs_core gs_core;

/* What the caller sees of a grant on the device. All of it comes from the tenant: lies cost only the grant itself. */
struct gs_core_view {
  uint32_t waiting;       /* threads in the gate */
  uint32_t wanted;        /* for a gang: threads in the gate of any of its devices */
  uint32_t spins;         /* of a gang: 1: some of its work waits for work that it has not submitted */
  uint32_t drained;       /* 1: nothing of it is in flight any more */
  uint32_t live;          /* processes that could use a lease */
  uint64_t busy_until_ns; /* when what it submitted is expected to be done */
  uint64_t launches;      /* submissions so far; any change shows that a lease was taken up */
  uint64_t busy_ns;       /* metered so far */
};

enum gs_core_action {
  /* grant gets the lease; other: the holder before it or -1; value: ns since it began to wait */
  GS_CORE_LEASE = 1,
  GS_CORE_REVOKE = 2,    /* grant loses it; other: who it is taken for or -1 */
  GS_CORE_HANDOVER = 3,  /* grant's device time passed to other; value: ns since the revoke */
  GS_CORE_LATE = 4,      /* grant had not drained value ns after the revoke */
  GS_CORE_WAKE = 5,      /* grant wants the device after it had been quiet */
  GS_CORE_CONTENDED = 6, /* the bound on work in flight of grant changes: value enum gs_core_company */
  /* grant, a gang that has not drained value ns after its revoke, gets the lease beside those after it */
  GS_CORE_LEASE_BESIDE = 7,
  /* what grant had on the device is done, value ns after its revoke; other: who it was taken for or -1 */
  GS_CORE_DRAINED = 8,
  GS_CORE_LEFT = 9 /* grant waits no more after value ns, without a lease */
};

/* Who else wants the device of late: nobody, others, or others of which one is interactive and waits for little. */
enum gs_core_company { GS_CORE_ALONE = 0, GS_CORE_IN_COMPANY = 1, GS_CORE_WITH_INTERACTIVE = 2 };

struct gs_core_decision {
  uint32_t action; /* enum gs_core_action */
  int32_t grant, other;
  uint64_t value;
  struct gs_receipt receipt; /* not of WAKE and CONTENDED, which give and take nothing */
};

/* The books of one grant on the device. */
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

/* grant is the caller's number for it, 0 .. GS_ARBITER_MAX_GRANTS - 1. held: it already has a lease (a restart); gives
 * 1 if that lease stands, 0 if the device has a holder already and the caller has to take the lease back. */
int gs_core_add(gs_core *core, int32_t grant, const struct gs_share *share, int held, uint64_t now_ns);
/* What is open of it ends: its lease, its wait, a reclaim. Before remove; changes nothing but its books. Gives how many
 * decisions, at most 3. */
int gs_core_close(gs_core *core, int32_t grant, uint64_t now_ns, struct gs_core_decision *out);
/* A lease it holds ends here; the next step leases the device to another. */
void gs_core_remove(gs_core *core, int32_t grant, uint64_t now_ns);
void gs_core_share(gs_core *core, int32_t grant, const struct gs_share *share, uint64_t now_ns);
void gs_core_observe(gs_core *core, int32_t grant, const struct gs_core_view *view);
/* Its bell rang: one that let leases pass unused is alive, and tried again sooner. */
void gs_core_bell_rang(gs_core *core, int32_t grant);

/* Decides. Fills at most GS_CORE_DECISIONS and gives how many; *next_ns is when to step again if nothing happens
 * (UINT64_MAX: never). The views of all grants that gs_core_watched names should be fresh. */
int gs_core_step(gs_core *core, uint64_t now_ns, struct gs_core_decision *out, uint64_t *next_ns);

/* ---- gangs ---- The core gives no lease to a gang and takes none back: it says where the gang is due, and when it
 * should go. gang.h does the same on all devices of a gang at one time now_ns; cores whose state it changed are stepped
 * again at that time. */

/* Why a gang cannot be called to the device now, or since when it is due. */
enum gs_core_call { GS_CORE_NOT_DUE, GS_CORE_DUE, GS_CORE_CALLABLE };
enum gs_core_call gs_core_gang_callable(const gs_core *core, int32_t grant, uint64_t *due_ns, uint64_t *next_ns);
/* 1: nobody has to go for it. */
int gs_core_gang_fits(const gs_core *core, int32_t grant);
/* Takes the device for it. Gangs that hold main leases on it are gone, or rest. */
int gs_core_gang_call(gs_core *core, int32_t grant, uint64_t now_ns, struct gs_core_decision *out);
void gs_core_gang_uncall(gs_core *core, int32_t grant);
/* 1: it has been called and the device is free for it; else *next_ns is when it will be at the latest. */
int gs_core_gang_ready(gs_core *core, int32_t grant, uint64_t *next_ns);
int gs_core_gang_lease(gs_core *core, int32_t grant, int beside, uint64_t now_ns, struct gs_core_decision *out);
int gs_core_gang_revoke(gs_core *core, int32_t grant, int32_t other, int idle, uint64_t now_ns,
                        struct gs_core_decision *out);
/* 1: gangs are due here, and unless one of them is called now the core goes on without them: it is to be stepped again. */
int gs_core_asks_gangs(const gs_core *core);
/* 1: it should go; *other: for whom. */
int gs_core_gang_yields(const gs_core *core, int32_t grant, int32_t *other);
/* 1: it holds a lease that it does not use. rests: and the device is lent. */
int gs_core_gang_idle(const gs_core *core, int32_t grant, int *rests);
void gs_core_gang_rest(gs_core *core, int32_t grant);
/* The next gang after `after` (-1: the first) that holds a main lease on the device, or -1. */
int32_t gs_core_gang_main(const gs_core *core, int32_t after);
int gs_core_gang_wants(const gs_core *core, int32_t grant);
/* 1: it may have leases beside others more than once in a turn: its ranks are uneven, and what it ran beyond its
 * guarantee is not much yet. */
int gs_core_gang_solvent(const gs_core *core, int32_t grant);
/* It has work on the device without a lease, although it had drained. */
void gs_core_gang_clear_drained(gs_core *core, int32_t grant, uint64_t now_ns);
/* Since when its work outlives a revoke; 0: it does not. */
uint64_t gs_core_undrained_since(const gs_core *core, int32_t grant);

/* The grants whose views matter now (they wait, hold or drain); fills out, gives how many (<= GS_ARBITER_MAX_GRANTS). */
int gs_core_watched(const gs_core *core, int32_t *out);
/* The holder, of several the one that goes before the others; -1: none. */
int32_t gs_core_holder(const gs_core *core);
int gs_core_holds(const gs_core *core, int32_t grant);
/* 1: another grant than this one may have work on the device, from a lease of its own or one that was revoked. */
int gs_core_foreign_work(const gs_core *core, int32_t grant);
void gs_core_grant_stats(const gs_core *core, int32_t grant, struct gs_core_stats *out);
void gs_core_device_stats(const gs_core *core, struct gs_device_stats *out);

#endif
