#include "sim/program/duration.h"

#include "sim/model/card.h"

/* Assumed for nearly empty blocks: they start, wait for one load from memory (about 500 ns), and end. */
#define WAVE_NS 1000.0
#define LONGEST_NS 3600e9 /* as for gpushare-sim --kernel-ns */

unsigned sim_resident_blocks(unsigned threads, unsigned registers, uint64_t shared) {
  unsigned warps = (threads + SIM_WARP - 1) / SIM_WARP;
  unsigned per_warp = (registers * SIM_WARP + SIM_REGISTERS_UNIT - 1) / SIM_REGISTERS_UNIT * SIM_REGISTERS_UNIT;
  unsigned blocks = SIM_THREADS / (warps * SIM_WARP);
  uint64_t by_shared = SIM_SHARED / (shared + SIM_SHARED_RESERVED);
  if (blocks > SIM_BLOCKS)
    blocks = SIM_BLOCKS;
  if (per_warp && SIM_REGISTERS / per_warp / warps < blocks)
    blocks = SIM_REGISTERS / per_warp / warps;
  return by_shared < blocks ? (unsigned)by_shared : blocks;
}

static double longer(double a, double b) { return a > b ? a : b; }

/* Time of a wave, that is, of blocks that run at the same time. All share the memory bandwidth; each multiprocessor
 * computes for its own blocks. */
static double wave_ns(uint64_t blocks, const struct sim_shape *shape, const struct sim_work *work) {
  double times = work->each_column ? shape->columns : 1;
  uint64_t most = (blocks + SIM_MULTIPROCESSORS - 1) / SIM_MULTIPROCESSORS; /* blocks of one multiprocessor */
  double threads = (double)most * shape->threads;
  double moving = times * (double)blocks * shape->threads * work->bytes / SIM_BYTES_PER_NS;
  double computing =
      work->operations > 0 ? times * threads * work->operations * SIM_MULTIPROCESSORS / SIM_PER_NS(work->per_clock) : 0;
  return longer(WAVE_NS, longer(moving, computing));
}

uint64_t sim_kernel_ns(const struct sim_shape *shape, const struct sim_work *work) {
  unsigned resident = sim_resident_blocks(shape->threads, shape->registers, shape->shared);
  uint64_t wave = (uint64_t)(resident ? resident : 1) * SIM_MULTIPROCESSORS, waves = shape->blocks / wave;
  uint64_t rest = shape->blocks % wave;
  double ns = (double)waves * wave_ns(wave, shape, work);
  if (rest)
    ns += wave_ns(rest, shape, work);
  ns = longer(ns, SIM_SHORTEST_NS);
  return ns < LONGEST_NS ? (uint64_t)ns : (uint64_t)LONGEST_NS;
}
