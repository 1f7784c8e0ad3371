/* Legacy inter-process memory handles (cuIpc*). A handle identifies an allocation by its offset in the file behind its
 * process's device memory. The engine passes that file to any process that has the secret in the handle. The bytes stay
 * charged to the process that allocated them for as long as an importer has them open: a driver cannot remove mapped
 * memory, and cuMemFree before cuIpcCloseMemHandle is undefined behaviour only for the program. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "sim/memory/memory.h"

struct handle {
  uint64_t magic, secret[2], offset, bytes;
  struct sim_block block;
  uint8_t unused[8];
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "a handle is 64 bytes");
#define HANDLE_MAGIC 0x6773497063310001ull

/* The secret of each device's file, once it is registered with the engine. Guarded by sim_ranges_lock. */
static struct {
  bool given;
  uint64_t secret[2];
} shared[SIM_MAX_DEVICES];

/* Called with the ranges lock held. This cannot deadlock: the engine answers without needing that lock. */
static CUresult share_file(CUdevice device, int fd) {
  uint64_t secret[2];
  if (shared[device].given)
    return CUDA_SUCCESS;
  if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret ||
      sim_file_put(device, SIM_FILE_PUT, secret, fd) != 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  memcpy(shared[device].secret, secret, sizeof secret);
  shared[device].given = true;
  return CUDA_SUCCESS;
}

CUresult sim_ipc_share(CUdevice device, int fd, uint64_t secret[2]) {
  CUresult result = fd < 0 ? CUDA_ERROR_NOT_SUPPORTED : share_file(device, fd);
  if (result == CUDA_SUCCESS)
    memcpy(secret, shared[device].secret, sizeof shared[device].secret);
  return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
  CUresult result = CUDA_SUCCESS;
  if (!pHandle)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  struct sim_range *range = sim_range_at(dptr);
  if (!range || range->kind != SIM_RANGE_DEVICE)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (range->pages.fd < 0)
    result = CUDA_ERROR_NOT_SUPPORTED;
  else
    result = share_file(range->device, range->pages.fd);
  if (result == CUDA_SUCCESS)
    result = sim_block_make(&range->block, range->device, range->charged, -1);
  if (result == CUDA_SUCCESS) {
    struct handle handle = {
        .magic = HANDLE_MAGIC, .offset = range->pages.offset, .bytes = range->bytes, .block = range->block};
    memcpy(handle.secret, shared[range->device].secret, sizeof handle.secret);
    memcpy(pHandle, &handle, sizeof handle);
  }
  sim_ranges_unlock();
  return result;
}

CUdevice sim_ipc_device(uint32_t engine_device) {
  for (CUdevice device = 0; sim_device_valid(device); device++)
    if (sim_engine_device(device) == engine_device)
      return device;
  return -1;
}

/* If the handle is already open: increments the use count and returns the same address. */
static bool reopen(const struct handle *handle, uint64_t secret_id, CUdeviceptr *address) {
  bool found = false;
  sim_ranges_lock();
  struct sim_range *range = sim_range_next(0);
  while (range && !found) {
    if (range->kind == SIM_RANGE_IPC && !range->dying && range->pages.offset == handle->offset &&
        (uint64_t)(uintptr_t)range->owner == secret_id) {
      range->opens++;
      *address = range->base;
      found = true;
    }
    range = sim_range_next(range->base + 1);
  }
  sim_ranges_unlock();
  return found;
}

static CUresult map_file(const struct handle *handle, int fd, struct sim_ctx *ctx, CUdevice device,
                         CUdeviceptr *address) {
  uint64_t mapped = sim_round_up(handle->bytes, SIM_PAGE);
  void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)handle->offset);
  if (at == MAP_FAILED)
    return CUDA_ERROR_MAP_FAILED;
  const struct sim_range range = {.base = (uint64_t)(uintptr_t)at,
                                  .bytes = handle->bytes,
                                  .pages = {.at = at, .bytes = mapped, .fd = -1, .offset = handle->offset},
                                  .kind = SIM_RANGE_IPC,
                                  .device = device,
                                  .ctx = sim_ctx_owner(ctx),
                                  .opens = 1,
                                  .block = handle->block,
                                  .owner = (void *)(uintptr_t)handle->secret[0]};
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

static CUresult open_handle(const struct handle *handle, struct sim_ctx *ctx, CUdeviceptr *address) {
  uint32_t engine_device;
  int fd, pid;
  if (sim_file_get(handle->secret, &fd, &engine_device, &pid) != 0)
    return CUDA_ERROR_INVALID_VALUE; /* an invalid handle, or its process has ended */
  CUdevice device = sim_ipc_device(engine_device);
  CUresult result = CUDA_SUCCESS;
  if (pid == sim_info()->host_pid)
    result = CUDA_ERROR_INVALID_CONTEXT; /* a process cannot import from itself */
  else if (device < 0)
    result = CUDA_ERROR_INVALID_DEVICE;
  else
    result = sim_block_hold(&handle->block);
  if (result == CUDA_SUCCESS) {
    result = map_file(handle, fd, ctx, device, address);
    if (result != CUDA_SUCCESS)
      sim_block_drop(&handle->block);
  }
  close(fd);
  return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
  enum { LAZY_PEER_ACCESS = 1 };
  struct handle named;
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result == CUDA_SUCCESS)
    result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  memcpy(&named, &handle, sizeof named);
  if (!pdptr || Flags & ~(unsigned)LAZY_PEER_ACCESS || named.magic != HANDLE_MAGIC || named.bytes == 0 ||
      named.bytes > SIM_ADDRESS_SPACE || named.offset > SIM_ADDRESS_SPACE << 8 || named.offset % SIM_PAGE)
    return CUDA_ERROR_INVALID_VALUE;
  return reopen(&named, named.secret[0], pdptr) ? CUDA_SUCCESS : open_handle(&named, ctx, pdptr);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = sim_range_at(dptr);
  if (!range || range->kind != SIM_RANGE_IPC)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (--range->opens > 0)
    range = NULL;
  else
    range->dying = true;
  sim_ranges_unlock();
  if (result != CUDA_SUCCESS || !range)
    return result;
  sim_ctx_wait(range->ctx);
  sim_memory_forget(range);
  return CUDA_SUCCESS;
}
