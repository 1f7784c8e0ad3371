/* Kernels that wait for each other across devices and processes, like those of a collective.
 *
 * A PTX kernel whose name begins with ncclDevKernel and that has three 64-bit parameters (ns, key, ranks) occupies its
 * device, sliced like any other kernel, until `ranks` kernels with the same key and ranks have started, each counted
 * once. Then each of them takes ns of its own device's time. The next `ranks` kernels with that key form the next
 * collective, so ranks that run their collectives one after another can use one key for all. A rank that died after it
 * arrived still counts, so a restarted job must use another key. This requires a device that preempts: otherwise a
 * slice could not end while a kernel spins.
 *
 * The counters are in one page that the engine shares with all processes. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/program/images/image.h"

enum { RANKS_MAX = 255, KEY_BITS = 56 };

static struct sim_meeting *meetings; /* under sim_lock until set */

struct payload {
  struct sim_meeting *meeting;
  uint64_t ranks;
  uint64_t awaited; /* number of arrivals to wait for; 0: this kernel has not arrived itself */
};

static bool map_page(void) {
  struct sim_reply reply;
  int fd;
  if (sim_call(SIM_MEETINGS_GET, 0, 0, &reply, &fd, 1) != 0 || fd < 0)
    return false;
  void *at = mmap(NULL, sizeof *meetings * SIM_MEETINGS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED)
    return false;
  meetings = at;
  return true;
}

static struct sim_meeting *find(uint64_t id) {
  sim_lock();
  bool there = meetings || map_page();
  sim_unlock();
  for (uint32_t i = 0; there && i < SIM_MEETINGS; i++) {
    struct sim_meeting *meeting = &meetings[(id * 0x9e3779b97f4a7c15u % SIM_MEETINGS + i) % SIM_MEETINGS];
    uint64_t seen = 0;
    if (__atomic_compare_exchange_n(&meeting->id, &seen, id, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || seen == id)
      return meeting;
  }
  return NULL;
}

static bool meet(void *data) {
  struct payload *rank = data;
  if (rank->awaited == 0)
    rank->awaited = (__atomic_fetch_add(&rank->meeting->arrived, 1, __ATOMIC_ACQ_REL) / rank->ranks + 1) * rank->ranks;
  return __atomic_load_n(&rank->meeting->arrived, __ATOMIC_ACQUIRE) >= rank->awaited;
}

CUresult sim_meeting_op(uint64_t key, uint64_t ranks, struct sim_op *op) {
  static __thread struct payload rank; /* valid until the op is submitted */
  if (ranks == 0 || ranks > RANKS_MAX || key >> KEY_BITS)
    return CUDA_ERROR_INVALID_VALUE;
  rank = (struct payload){find(key << 8 | ranks), ranks, 0};
  if (rank.meeting == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  op->meet = meet;
  op->payload = &rank;
  op->payload_bytes = sizeof rank;
  return CUDA_SUCCESS;
}
