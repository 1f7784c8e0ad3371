/* Gangs: grants that get their leases on all their devices at the same instant, and lose them likewise. A pure layer
 * over the cores of those devices (core.h): no clock, no I/O, no shared memory.
 *
 * Each core treats a gang as one candidate. When a core would lease its device to the gang, it marks the gang as due
 * and serves others meanwhile. A gang that is due on all its devices is called: the holders lose their leases, and the
 * gang gets all its leases when all devices have drained, or after the overlap. A gang yields on all devices at once,
 * when one core asks for it or when the gang is idle everywhere. When only one of its ranks is idle, the gang rests on
 * that device, which is lent to others. */
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

/* 0 or -ENOMEM. */
int gs_gangs_create(gs_gangs **out, const struct gs_arbiter_config *config);
void gs_gangs_destroy(gs_gangs *gangs);

/* Adds a grant with GS_SHARE_GANG to the cores of its devices: to core[devices[i]] with share[i]. held: the grant has
 * all its leases from before a restart. Returns 1 if it keeps them, 0 if the caller has to revoke them. */
int gs_gangs_add(gs_gangs *gangs, gs_core *const *core, int32_t grant, const uint32_t *devices, uint32_t ndevices,
                 const struct gs_share *share, int held, uint64_t now_ns);
/* Removes a gang, also from its cores. */
void gs_gangs_remove(gs_gangs *gangs, gs_core *const *core, int32_t grant, uint64_t now_ns);

/* To be called after the cores that were due have been stepped at now_ns. Acts for at most one gang. Fills at most
 * GS_GANG_DECISIONS and returns how many. *again: bit d is set if core d has to be stepped at the same now_ns; after
 * that, call this function again. When *again is 0, *next_ns is when to call if nothing happens. */
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
  bool again;        /* the gang has had such leases since its last turn */
  uint64_t since_ns; /* since when the gang waits; 0: it does not wait */
  uint64_t end_ns;   /* when leases alongside others end */
};

struct gs_gangs {
  uint64_t term_ns;
  int n;
  struct gs_gang gang[GS_ARBITER_MAX_GRANTS];
};
#endif
#endif
