/* Gangs: grants whose leases are given on all their devices at the same instant, and revoked likewise. A pure layer
 * over the cores of those devices (core.h): no clock, no I/O, no shared memory.
 *
 * Each core treats a gang as one candidate. Where it would lease the device to the gang it marks it as due and serves
 * others meanwhile. A gang that is due on all its devices is called: the holders lose their leases, and the gang gets
 * all of its own when all devices have drained, or after the overlap. A gang yields as a whole, when one core wants it
 * to or when it is idle everywhere. Where only one of its ranks is idle, the gang rests on that device, which is
 * lent. */
#ifndef GS_ARBITER_CORE_GANGS_H
#define GS_ARBITER_CORE_GANGS_H

#include "arbiter/core/core.h"

/* A gang whose work has not drained after this time gets its leases again, alongside those of others: once per turn,
 * and more often while its ranks are uneven and its debt is small. */
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

/* Adds a grant with GS_SHARE_GANG to the cores of its devices: to core[devices[i]] with share[i]. held: it has all its
 * leases from before a restart. Returns 1 if it keeps them, 0 if the caller has to revoke them. */
int gs_gangs_add(gs_gangs *gangs, gs_core *const *core, int32_t grant, const uint32_t *devices, uint32_t ndevices,
                 const struct gs_share *share, int held, uint64_t now_ns);
/* Removes it from the cores, too. */
void gs_gangs_remove(gs_gangs *gangs, gs_core *const *core, int32_t grant, uint64_t now_ns);

/* To be called after the cores that were due have been stepped at now_ns. Does at most one thing for the gangs. Fills
 * at most GS_GANG_DECISIONS and returns how many. *again: bit d is set when core d has to be stepped at the same
 * now_ns, and this function called again after that. When it is 0, *next_ns is when to call again if nothing
 * happens. */
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
  bool beside;       /* its leases are held alongside others' */
  bool again;        /* they have been since its last turn */
  uint64_t since_ns; /* since when it waits; 0: it does not */
  uint64_t end_ns;   /* of leases beside others */
};

struct gs_gangs {
  uint64_t term_ns;
  int n;
  struct gs_gang gang[GS_ARBITER_MAX_GRANTS];
};
#endif
#endif
