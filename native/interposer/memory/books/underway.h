/* Calls in progress that concern physical memory, which order.h orders. */
#ifndef GPUSHARE_MEMORY_UNDERWAY_H
#define GPUSHARE_MEMORY_UNDERWAY_H

#include <stdint.h>

enum { GS_UNDERWAY = 256 /* calls at once; further ones wait for a free entry */ };

struct gs_underway {
  uint64_t number;        /* counts calls; 0: a free entry */
  uint64_t handle, other; /* that it names; 0: none */
  uint64_t from, bytes;   /* addresses that it names; 0, 0: none */
  unsigned does;          /* enum gs_does */
  int thread;             /* its id in the kernel */
};

/* All zero is valid. Guarded by the lock of the objects (objects.h). */
struct gs_order {
  struct gs_underway call[GS_UNDERWAY];
  uint32_t places; /* number of entries of `call` that have ever been in use */
  uint64_t numbers;
  uint32_t ended; /* counts ends; a futex */
  uint32_t waiters;
};

#endif
