/* External memory of other interfaces. The only kind that can be simulated is memory that this or another process
 * exported (cuMemExportToShareableHandle). It stays charged to the process that created it, and lives at least as long
 * as this object and every buffer mapped from it. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/memory/physical/vmm.h"

struct external {
  uint32_t magic;
  int exported; /* the program's descriptor, owned by this object since the import */
  int fd;       /* the memory */
  struct sim_block block;
  uint64_t bytes;
  CUdevice device;
  struct external *next;
};
enum { EXTERNAL_MAGIC = 0x65787465, DEDICATED = 1 /* CUDA_EXTERNAL_MEMORY_DEDICATED */ };

static struct external *externals; /* guarded by sim_ranges_lock */

CUresult cuImportExternalMemory(CUexternalMemory *extMem_out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  if (!extMem_out || !desc || desc->flags & ~(unsigned)DEDICATED)
    return CUDA_ERROR_INVALID_VALUE;
  if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
    return CUDA_ERROR_NOT_SUPPORTED;
  struct external made = {.magic = EXTERNAL_MAGIC, .exported = desc->handle.fd};
  result = sim_physical_file(made.exported, &made.block, &made.fd, &made.bytes, &made.device);
  if (result != CUDA_SUCCESS)
    return result;
  struct external *kept = malloc(sizeof *kept);
  if (!kept || desc->size > made.bytes) {
    free(kept);
    close(made.fd);
    sim_block_drop(&made.block);
    return desc->size > made.bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_ranges_lock();
  made.next = externals;
  *kept = made;
  externals = kept;
  sim_ranges_unlock();
  *extMem_out = (CUexternalMemory)kept;
  return CUDA_SUCCESS;
}

/* The link that refers to the object; NULL: no such handle. Requires sim_ranges_lock. */
static struct external **find(CUexternalMemory handle) {
  for (struct external **at = &externals; *at; at = &(*at)->next)
    if (*at == (struct external *)handle)
      return at;
  return NULL;
}

void sim_externals_sum(CUdevice device, struct sim_sum *sum) {
  for (const struct external *each = externals; each; each = each->next)
    sum->holds += each->device == device;
}

static CUresult map(const struct external *external, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc, struct sim_ctx *ctx,
                    CUdeviceptr *address) {
  uint64_t mapped = sim_round_up(desc->size, SIM_PAGE);
  void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, external->fd, (off_t)desc->offset);
  if (at == MAP_FAILED || sim_block_hold(&external->block) != CUDA_SUCCESS) {
    if (at != MAP_FAILED)
      munmap(at, mapped);
    return CUDA_ERROR_MAP_FAILED;
  }
  const struct sim_range range = {.base = (uint64_t)(uintptr_t)at,
                                  .bytes = desc->size,
                                  .pages = {.at = at, .bytes = mapped, .fd = -1},
                                  .block = external->block,
                                  .kind = SIM_RANGE_EXTERNAL,
                                  .device = external->device,
                                  .ctx = sim_ctx_owner(ctx)};
  if (!sim_range_add(&range)) {
    munmap(at, mapped);
    sim_block_drop(&external->block);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = range.base;
  return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  if (!devPtr || !bufferDesc || bufferDesc->flags || bufferDesc->size == 0 || bufferDesc->offset % SIM_PAGE)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  struct external **at = find(extMem);
  if (!at)
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (bufferDesc->offset > (*at)->bytes || bufferDesc->size > (*at)->bytes - bufferDesc->offset)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    result = map(*at, bufferDesc, ctx, devPtr);
  sim_ranges_unlock();
  return result;
}

/* Buffers mapped from the object remain until they are freed. */
CUresult cuDestroyExternalMemory(CUexternalMemory extMem) {
  sim_ranges_lock();
  struct external **at = find(extMem), *gone = at ? *at : NULL;
  if (gone)
    *at = gone->next;
  sim_ranges_unlock();
  if (!gone)
    return CUDA_ERROR_INVALID_HANDLE;
  close(gone->exported);
  close(gone->fd);
  sim_block_drop(&gone->block);
  free(gone);
  return CUDA_SUCCESS;
}
