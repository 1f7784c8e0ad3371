/* Devices and their tenants in virtual time, which drive the arbiter's pure code: a core for each device, and the gangs
 * over them. virtual_node.py sets them up and reads the results.
 *
 * A device runs the submitted work. The holder of a lease keeps `depth` of work queued while it has work. The queued
 * work of a revoked holder continues with an equal part of the device; or, with `slice_ns`, in turns of that length,
 * which a program that pauses between its kernels loses in each pause. A gang has a rank
 * on each of its devices, which behaves as any other tenant there; ranks run no collectives. */
#ifndef VIRTUAL_H
#define VIRTUAL_H

#ifndef GS_CFFI
#include "arbiter/core/gangs.h"
#endif

enum { VIRTUAL_GRANTS = 256, VIRTUAL_DEVICES = 16 };

/* A grant on one device. Times in ns. */
struct virtual_tenant {
  uint32_t guarantee, limit, weight, workload;
  int32_t tier;
  uint64_t depth;     /* length of the queue that it maintains */
  uint32_t processes; /* number of processes that share its queue, time-sliced evenly; 0: 1 */
  uint64_t kernel;    /* with a gap: length of the one kernel that it submits at a time */
  uint64_t gap;       /* pause after each kernel, as in a host-bound program; 0: it keeps `depth` queued */
  uint32_t ahead;     /* with a gap: while its kernel runs a thread waits in the gate with the next one */
  uint64_t expected;  /* with a gap: how long it believes, and reports, each kernel to take; 0: the truth */
  double work;        /* device time it still wants to submit; infinity: endless */
  double queued, executed;
  double metered; /* what it reports of `executed`: with a gap, a kernel is metered when it ends */
  uint32_t stopped, live, held, waiting;
  uint64_t launches;
  int32_t contended; /* enum gs_core_company as published, -1 before */
  uint64_t woke_ns;  /* when it began to wait for the device; 0: it does not wait */
  uint64_t ready_ns, submitted_ns, busy_until_ns;
  /* What its page reports instead of the truth; 0: the truth. */
  uint64_t claims_busy_until_ns;
  uint32_t claims_undrained, says_spins;
  uint32_t away; /* 1: its memory is not on the device */
};

struct virtual_device {
  gs_core *core;
  uint64_t next_ns;    /* when the core wants its next step */
  uint64_t revoked_ns; /* when a lease on it was last revoked; 0: never */
  int32_t runner;      /* with slices: index of the member whose turn it is */
  uint64_t turn_end_ns;
  int32_t members[256]; /* VIRTUAL_GRANTS */
  int32_t nmembers;
  struct virtual_tenant tenant[256]; /* VIRTUAL_GRANTS */
};

struct virtual_grant {
  uint32_t ndevices, gang;
  uint32_t device[16]; /* VIRTUAL_DEVICES */
};

struct virtual_event {
  uint64_t t_ns;
  uint32_t device;
  uint64_t waited_ns; /* lease: time since the grant woke; UINT64_MAX: it had not just woken */
  struct gs_core_decision decision;
};

struct virtual_node {
  uint64_t now_ns, next_ns, steps;
  uint32_t ndevices;
  uint64_t slice_ns;  /* 0: the device is shared evenly at each instant */
  uint32_t exclusive; /* check that two tenants without gaps never hold a device at once */
  const char *broken; /* the first violated rule; NULL: none */
  gs_gangs *gangs;
  gs_core *core[16]; /* VIRTUAL_DEVICES */
  uint64_t nevents, events_room;
  struct virtual_event *event;
  struct virtual_grant grant[256];  /* VIRTUAL_GRANTS */
  struct virtual_device device[16]; /* VIRTUAL_DEVICES */
};

/* Returns NULL if out of memory. */
struct virtual_node *virtual_create(const struct gs_arbiter_config *config, uint32_t ndevices, uint32_t exclusive,
                                    uint64_t now_ns);
void virtual_destroy(struct virtual_node *node);

/* Each of these lets the cores decide before it returns. */

/* settings: for the tenant on each device. flags: enum gs_share_flags. held: its lease words already say that it holds
 * its leases. Returns 1 if those leases remain valid. */
int virtual_add(struct virtual_node *node, int32_t grant, const uint32_t *devices, uint32_t ndevices,
                const struct virtual_tenant *settings, uint32_t flags, int held);
void virtual_remove(struct virtual_node *node, int32_t grant);
/* Call it after changing the shares of the grant's tenants. */
void virtual_share(struct virtual_node *node, int32_t grant);
/* device -1: all devices of the grant. */
void virtual_want(struct virtual_node *node, int32_t grant, int32_t device, double work);
/* SIGSTOP or SIGCONT: queued work still runs, its page does not change otherwise. */
void virtual_stop(struct virtual_node *node, int32_t grant, int32_t device, uint32_t stopped);
void virtual_kill(struct virtual_node *node, int32_t grant);
void virtual_step(struct virtual_node *node);
void virtual_run(struct virtual_node *node, uint64_t duration_ns);
/* The same without an arbiter: tenants keep their current leases. */
void virtual_run_bare(struct virtual_node *node, uint64_t duration_ns);

#endif
