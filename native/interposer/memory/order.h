/* Calls about physical memory that are on their way, and which of them wait for each other: so what a call names is what
 * the books say it is, from before the driver's call until it is recorded.
 *
 *   A call that ends what a handle names, or what is bound to it, is alone with the handle. One that maps or unmaps is
 *   alone with the addresses.
 *   An import waits for exports, since several may have one name.
 *   A handle that is not in the books, which only a guess can be, may be one that the driver is just giving to another
 *   call: whoever names one waits for the calls that make handles, and they wait for it.
 *
 * Each waits only for those before it, so they never wait in a circle. A call that the driver keeps waiting
 * (cuMulticastBindMem, until all devices are added) keeps only those that name the same waiting. */
#ifndef GPUSHARE_MEMORY_ORDER_H
#define GPUSHARE_MEMORY_ORDER_H

#include <stdint.h>

/* What a call does, as far as others wait for it. */
enum gs_does {
  GS_MAKES_HANDLE = 1,
  GS_IS_ALONE = 2, /* with `handle` */
  GS_MAPS = 4,
  GS_UNMAPS = 8,
  GS_BINDS = 16, /* an object may hold another then */
  GS_EXPORTS = 32,
  GS_IMPORTS = 64,
  GS_NAMES_MANY = 128, /* handles, which are not listed */
  GS_GUESSES = 256     /* names a handle that is not in the books */
};

enum { GS_UNDERWAY = 256 /* more calls than that at once wait for a place */ };

struct gs_underway {
  uint64_t number;        /* counts calls; 0: a free place */
  uint64_t handle, other; /* that it names; 0: none */
  uint64_t from, bytes;   /* addresses that it names; 0, 0: none */
  unsigned does;          /* enum gs_does */
  int thread;             /* its id in the kernel */
};

/* Zeroed is valid. `lock` of the objects (objects.h) guards it. */
struct gs_order {
  struct gs_underway call[GS_UNDERWAY];
  uint32_t places; /* the first so many have been in use */
  uint64_t numbers;
  uint32_t ended; /* counts ends; a futex */
  uint32_t waiters;
};

/* Around the driver's call and what the books record of it, with no lock held. `wanted` without a number and a thread.
 * Returns what gs_order_end wants. */
struct gs_underway *gs_order_begin(const struct gs_underway *wanted);
void gs_order_end(struct gs_underway *call);

#endif
