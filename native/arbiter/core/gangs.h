/* Gangs: grants whose leases are given on all their devices at one instant and taken back alike. A pure layer over the
 * cores of those devices (core.h), with their ways: no clock, no I/O, no shared memory.
 *
 * Each core treats a gang as one candidate among others. Where it would lease the device to the gang it calls it due
 * there, and goes on serving others on loan. A gang that is due on all its devices, or could be at once, is called: the
 * holders go, and when all devices are drained, at the latest after the overlap, all are leased. A gang goes as a whole
 * when one core would have it go, or when it is idle everywhere; where it is idle alone, its device is lent while it
 * rests. */
#ifndef GS_ARBITER_CORE_GANGS_H
#define GS_ARBITER_CORE_GANGS_H

#include "arbiter/core/core.h"

/* A gang whose work has not drained after this long gets its leases again beside those of others: once per turn,
 * and while its ranks are uneven until it is deep in debt. */
#if !defined(GS_CFFI) && !defined(GS_GANG_AGAIN_NS)
#define GS_GANG_AGAIN_NS UINT64_C(5000000)
#endif
enum { GS_GANG_DECISIONS = 512 };

typedef struct gs_gangs gs_gangs;

struct gs_gang_decision {
  uint32_t device;
  struct gs_core_decision core;
};

int gs_gangs_create(gs_gangs **out, const struct gs_arbiter_config *config);
void gs_gangs_destroy(gs_gangs *gangs);

/* Adds the grant, whose shares say GS_SHARE_GANG, to the cores of its devices: core[devices[i]] with share[i]. held:
 * all its leases stand from before a restart; gives 1 if they are taken over, 0 if the caller has to take all of them
 * back. */
int gs_gangs_add(gs_gangs *gangs, gs_core *const *core, int32_t grant, const uint32_t *devices, uint32_t ndevices,
                 const struct gs_share *share, int held, uint64_t now_ns);
/* Also from the cores. */
void gs_gangs_remove(gs_gangs *gangs, gs_core *const *core, int32_t grant, uint64_t now_ns);

/* After the cores that were due have been stepped at now_ns: at most one thing that gangs need. Fills at most
 * GS_GANG_DECISIONS and gives how many. *again: bit d is set when core d has to be stepped, after which this is called
 * once more, all at the same time; 0: nothing is left, and *next_ns is when to come back if nothing happens. */
int gs_gangs_step(gs_gangs *gangs, gs_core *const *core, uint64_t now_ns, struct gs_gang_decision *out, uint32_t *again,
                  uint64_t *next_ns);
/* 1: the gang has its leases. */
int gs_gangs_held(const gs_gangs *gangs, int32_t grant);

#ifndef GS_CFFI
#include <stdbool.h>

struct gs_gang {
  int32_t grant;
  uint32_t ndevices;
  uint32_t device[GS_MAX_DEVICES];
  bool held, called;
  bool beside, again; /* its leases are beside others; they have been since its last turn */
  uint64_t since_ns;  /* since when it waits; 0: it does not */
  uint64_t end_ns;    /* of leases beside others */
};

struct gs_gangs {
  uint64_t term_ns;
  int n;
  struct gs_gang gang[GS_ARBITER_MAX_GRANTS];
};
#endif
#endif
