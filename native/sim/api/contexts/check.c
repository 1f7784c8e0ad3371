/* Checks the accounts: recomputes the device memory of everything alive in this process and compares it with what the
 * engine charges to the process. */
#include "sim/api/contexts/contexts.h"
#include "sim/api/sim_test.h"
#include "sim/memory/memory.h"
#include "sim/model/model.h"
#include "sim/program/implicit.h"

static void contexts_sum(CUdevice device, struct sim_sum *sum) {
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    if (ctx->device == device)
      sum->bytes += sim_ctx_cost(ctx) + sim_implicit_bytes(ctx);
}

int gs_sim_check(int device, unsigned long long counts[4]) {
  struct sim_reply used, blocks;
  struct sim_sum sum = {0};
  if (sim_ready() != CUDA_SUCCESS || !sim_device_valid(device))
    return -1;
  sim_lock();
  sim_ranges_lock();
  contexts_sum(device, &sum);
  sim_ranges_sum(device, &sum);
  sim_physicals_sum(device, &sum);
  sim_pools_sum(device, &sum);
  sim_graph_mem_pool_sum(device, &sum);
  sim_externals_sum(device, &sum);
  int error = sim_call(SIM_MEM_INFO, device, 0, &used, NULL, 0);
  if (error == 0)
    error = sim_call(SIM_BLOCK_SUMS, device, 0, &blocks, NULL, 0);
  sim_ranges_unlock();
  sim_unlock();
  if (error)
    return -1;
  counts[0] = sum.bytes;
  counts[1] = used.c - blocks.a;
  counts[2] = sum.holds;
  counts[3] = blocks.b;
  return counts[0] == counts[1] && counts[2] == counts[3];
}
