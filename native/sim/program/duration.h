/* How long a kernel takes: pure arithmetic on its shape, for a device as model/card.h describes it. Nothing is executed, so
 * what each thread does is an assumption: that of its family, if its name tells one, else a common one. */
#ifndef SIM_DURATION_H
#define SIM_DURATION_H

#include <stdbool.h>
#include <stdint.h>

struct sim_shape {
  uint64_t blocks;
  uint32_t columns; /* blocks in the x dimension */
  unsigned threads; /* of a block */
  unsigned registers;
  uint64_t shared; /* bytes of a block */
};

/* What a thread does. */
struct sim_work {
  double bytes;      /* of device memory, read and written */
  double operations; /* at the device's rate for them: */
  unsigned per_clock;
  bool each_column; /* all this once for each column of the grid */
};

/* Blocks that one multiprocessor has room for at a time, by threads, registers and shared memory; 0: not even one. */
unsigned sim_resident_blocks(unsigned threads, unsigned registers, uint64_t shared);

/* Device time of a launch in ns, at least SIM_SHORTEST_NS. More blocks never take less. */
uint64_t sim_kernel_ns(const struct sim_shape *shape, const struct sim_work *work);

/* What the threads of a kernel of this name do; never NULL. */
const struct sim_work *sim_work_of(const char *name);

#endif
