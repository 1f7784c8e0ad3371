/* How the systems that gpushare is compared with hold a tenant back, reimplemented from what is published about them;
 * the constants are theirs.
 *
 * TOKENS: a token bucket in grid blocks per process. Every 120 ms a thread compares the process's part of the last
 * second, as the device's books say, with its limit, and moves what it adds to the bucket; a launch that finds the
 * bucket below zero sleeps 10 ms. Graph launches pay nothing. (HAMi-core) LEASE: a process submits only while its lease
 * word is odd; a revoked one waits for its own work and reports that. The controller decides who gets the lease and when:
 * a lock with a quantum (nvshare) or fixed slices (Run:ai). */
#ifndef BENCH_GATE_H
#define BENCH_GATE_H

#include "driver.h"
#include "page.h"

enum gate_kind { GATE_NONE, GATE_TOKENS, GATE_LEASE };

struct gate_options {
  enum gate_kind kind;
  uint32_t limit_percent; /* TOKENS */
  uint32_t device;        /* TOKENS: the simulator's index */
  uint64_t idle_ns;       /* LEASE: given up after so long without a launch; 0: never */
  bool windows;           /* LEASE: waits for its queue every so many launches, as nvshare does */
};

/* After the context is current. */
void gate_open(const struct gate_options *options, struct bench_page *page, struct bench_tenant *mine,
               CUcontext context);
/* Around each submission; blocks is 0 for a graph. */
void gate_enter(unsigned blocks);
void gate_leave(void);

#endif
