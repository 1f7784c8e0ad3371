/* Memory that other holders may keep after this process stops using it: blocks of the engine (engine/blocks.c). Memory
 * becomes a block when it is first exported; until then only this process holds it. */
#include "sim/memory/memory.h"

CUresult sim_block_make(struct sim_block *block, CUdevice device, uint64_t bytes, int fd) {
  struct sim_reply reply;
  if (block->id)
    return CUDA_SUCCESS;
  if (sim_exchange(SIM_BLOCK_MAKE, sim_engine_device(device), bytes, 0, fd, &reply, NULL))
    return CUDA_ERROR_OPERATING_SYSTEM;
  *block = (struct sim_block){reply.a, reply.b};
  return CUDA_SUCCESS;
}

CUresult sim_block_hold(const struct sim_block *block) {
  struct sim_reply reply;
  return sim_exchange(SIM_BLOCK_HOLD, 0, block->id, block->key, -1, &reply, NULL) ? CUDA_ERROR_INVALID_VALUE
                                                                                  : CUDA_SUCCESS;
}

bool sim_block_drop(const struct sim_block *block) {
  struct sim_reply reply;
  return sim_exchange(SIM_BLOCK_DROP, 0, block->id, 0, -1, &reply, NULL) == 0 && reply.a;
}

CUresult sim_block_export(const struct sim_block *block, int *fd) {
  struct sim_reply reply;
  return sim_exchange(SIM_BLOCK_EXPORT, 0, block->id, 0, -1, &reply, fd) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult sim_block_import(int exported, struct sim_block *block, int *fd) {
  struct sim_reply reply;
  if (exported < 0 || sim_exchange(SIM_BLOCK_IMPORT, 0, 0, 0, exported, &reply, fd))
    return CUDA_ERROR_INVALID_VALUE;
  *block = (struct sim_block){reply.a, reply.b};
  return CUDA_SUCCESS;
}

bool sim_charge_end(const struct sim_block *block, CUdevice device, uint64_t charged) {
  if (block->id)
    return sim_block_drop(block);
  if (charged)
    sim_memory_release(device, charged);
  return false;
}
