/* Several others on the modelled GPU, who have the lease in turn when the program has not. Whoever loses it is in the
 * midst of a kernel. The device gives all that have work a time slice in turn. */
#ifndef MODELLED_TAILS_H
#define MODELLED_TAILS_H

#include "modelled_gpu.h"

/* All times are in ns. TAILS_SLICE: as of the simulated device (native/sim/engine/main.c). */
enum { TAILS_MOST = 4, TAILS_SLICE = 2000000 };

struct tails {
  uint32_t count;
  uint64_t longest[TAILS_MOST]; /* their kernels, of which any part may be left */
  uint64_t at;                  /* played up to here */
  uint64_t lost;                /* the program's lease: from here on the holder has work all the time */
  uint32_t holder;
  uint64_t back; /* the holder has work again; 0: it has not been without */
  uint64_t left[TAILS_MOST], ended[TAILS_MOST];
  uint32_t turn; /* whose slice it is, and until when; `count`: the program's */
  uint64_t slice_until;
};

/* The program has a lease from `at` to `lost`: the holder has a part of a kernel left, others too. */
void tails_begin(struct tails *tails, uint64_t at, uint64_t lost);

/* The program has nothing on the device until then. */
void tails_pass(struct tails *tails, uint64_t until);

/* The time at which the device will have done `ns` of the program's work, which can begin at `begin`. */
uint64_t tails_worked(struct tails *tails, uint64_t begin, uint64_t ns);

/* How many of them have work then. */
uint32_t tails_at(const struct tails *tails, uint64_t t);

#endif
