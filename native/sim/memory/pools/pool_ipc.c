/* Sharing pools between processes. A pool's handle is a file that identifies its device. The export data of a pointer
 * gives the block's offset in the file behind the exporter's device memory. The bytes stay charged to the exporter for
 * as long as an importer has a pointer to them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "sim/memory/pools/pools.h"

#define POOL_MAGIC 0x6773506f6f6c0001ull
#define POINTER_MAGIC 0x6773506f696e0001ull

struct pool_file {
  uint64_t magic;
  uint32_t engine_device, unused;
  uint64_t identity;
};

struct pointer {
  uint64_t magic, secret[2], offset, bytes;
  struct sim_block block;
  uint64_t pool; /* its identity */
};
_Static_assert(sizeof(struct pointer) == 64, "CUmemPoolPtrExportData has 64 bytes");

/* Assigns a random identity: one process may import pools of several processes, so identities must differ. */
static bool identify(struct CUmemPoolHandle_st *pool) {
  while (pool->identity == 0)
    if (getrandom(&pool->identity, sizeof pool->identity, 0) != (ssize_t)sizeof pool->identity)
      return false;
  return true;
}

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
                                          unsigned long long flags) {
  CUresult result = CUDA_SUCCESS;
  struct pool_file file = {.magic = POOL_MAGIC};
  sim_ranges_lock();
  if (!handle_out || flags || handleType != SIM_POOL_HANDLE || !sim_pool_known(pool) || !pool->exportable)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (!identify(pool))
    result = CUDA_ERROR_OPERATING_SYSTEM;
  else
    file.engine_device = sim_engine_device(pool->location.id);
  file.identity = result == CUDA_SUCCESS ? pool->identity : 0;
  sim_ranges_unlock();
  if (result != CUDA_SUCCESS)
    return result;
  int fd = memfd_create("gpushare-sim-pool", MFD_CLOEXEC);
  if (fd < 0 || write(fd, &file, sizeof file) != (ssize_t)sizeof file) {
    if (fd >= 0)
      close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  memcpy(handle_out, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle, CUmemAllocationHandleType handleType,
                                            unsigned long long flags) {
  struct pool_file file;
  if (!pool_out || flags || handleType != SIM_POOL_HANDLE ||
      pread((int)(intptr_t)handle, &file, sizeof file, 0) != (ssize_t)sizeof file || file.magic != POOL_MAGIC)
    return CUDA_ERROR_INVALID_VALUE;
  CUdevice device = sim_ipc_device(file.engine_device);
  if (device < 0)
    return CUDA_ERROR_INVALID_DEVICE;
  struct CUmemPoolHandle_st *made = malloc(sizeof *made);
  if (!made)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_ranges_lock();
  sim_pool_start(made, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device}, 0);
  made->imported = true;
  made->identity = file.identity;
  sim_ranges_unlock();
  *pool_out = made;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr) {
  struct pointer pointer = {.magic = POINTER_MAGIC};
  int fd = -1;
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = sim_range_at(ptr);
  if (!shareData_out || !range || range->kind != SIM_RANGE_POOL || !sim_pool_of_block(range->owner)->exportable) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    result = sim_pool_block_place(range->owner, &fd, &pointer.offset, &pointer.block);
    pointer.bytes = range->bytes;
    struct CUmemPoolHandle_st *pool = sim_pool_of_block(range->owner);
    if (result == CUDA_SUCCESS && !identify(pool))
      result = CUDA_ERROR_OPERATING_SYSTEM;
    pointer.pool = pool->identity;
    if (result == CUDA_SUCCESS)
      result = sim_ipc_share(range->device, fd, pointer.secret);
  }
  sim_ranges_unlock();
  if (result == CUDA_SUCCESS)
    memcpy(shareData_out, &pointer, sizeof pointer);
  return result;
}

/* Blocks need not be page-aligned. */
static CUresult map_block(const struct pointer *pointer, int fd, CUdevice device, CUdeviceptr *address) {
  uint64_t inside = pointer->offset % SIM_PAGE, mapped = sim_round_up(inside + pointer->bytes, SIM_PAGE);
  void *at =
      mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)(pointer->offset - inside));
  if (at == MAP_FAILED)
    return CUDA_ERROR_MAP_FAILED;
  struct sim_ctx *ctx = sim_ctx_current();
  const struct sim_range range = {.base = (uint64_t)(uintptr_t)at + inside,
                                  .bytes = pointer->bytes,
                                  .pages = {.at = at, .bytes = mapped, .fd = -1},
                                  .block = pointer->block,
                                  .kind = SIM_RANGE_IMPORTED,
                                  .device = device,
                                  .ctx = ctx ? sim_ctx_owner(ctx) : NULL};
  sim_ranges_lock();
  bool kept = sim_range_add(&range) != NULL;
  sim_ranges_unlock();
  if (!kept) {
    munmap(at, mapped);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = range.base;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData) {
  struct pointer pointer;
  uint32_t engine_device;
  int fd, pid;
  sim_ranges_lock();
  bool imported = sim_pool_known(pool) && pool->imported;
  CUdevice device = imported ? pool->location.id : -1;
  uint64_t identity = imported ? pool->identity : 0;
  sim_ranges_unlock();
  if (!ptr_out || !shareData || !imported)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(&pointer, shareData, sizeof pointer);
  if (pointer.magic != POINTER_MAGIC || pointer.pool != identity || pointer.bytes == 0 ||
      pointer.bytes > SIM_ADDRESS_SPACE || pointer.offset > SIM_ADDRESS_SPACE << 8 ||
      sim_file_get(pointer.secret, &fd, &engine_device, &pid) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = sim_ipc_device(engine_device) == device ? sim_block_hold(&pointer.block) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    result = map_block(&pointer, fd, device, ptr_out);
    if (result != CUDA_SUCCESS)
      sim_block_drop(&pointer.block);
  }
  close(fd);
  return result;
}
