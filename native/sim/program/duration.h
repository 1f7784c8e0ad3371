/* How long a kernel takes: pure arithmetic on its shape, for the device in model/card.h. Nothing is executed, so the
 * work of each thread is an assumption: that of the kernel's family if its name identifies one, else a default. */
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

/* The work of one thread. */
struct sim_work {
  double bytes; /* of device memory, read and written */
  double operations;
  unsigned per_clock; /* the device's rate for these operations, per multiprocessor */
  bool each_column;   /* the work is repeated for each column of the grid */
};

/* Blocks that one multiprocessor has room for at a time, by threads, registers and shared memory; 0: not even one. */
unsigned sim_resident_blocks(unsigned threads, unsigned registers, uint64_t shared);

/* Device time of a launch in ns, at least SIM_SHORTEST_NS. More blocks never take less. */
uint64_t sim_kernel_ns(const struct sim_shape *shape, const struct sim_work *work);

/* The work of each thread of a kernel with this name; never NULL. */
const struct sim_work *sim_work_of(const char *name);

#endif
