/* Ranges with memory of their own: allocation, lookup and release. */
#include "sim/memory/memory.h"

/* 0 bytes need no request to the engine. */
static CUresult reserve(CUdevice device, uint64_t bytes) {
  return bytes ? sim_memory_reserve(device, bytes) : CUDA_SUCCESS;
}

static void release(CUdevice device, uint64_t bytes) {
  if (bytes)
    sim_memory_release(device, bytes);
}

CUresult sim_memory_new(struct sim_ctx *ctx, CUdevice device, enum sim_range_kind kind, uint64_t bytes,
                        uint64_t charged, unsigned flags, bool low, CUdeviceptr *address) {
  struct sim_range range = {.bytes = bytes,
                            .charged = charged,
                            .kind = kind,
                            .device = device,
                            .ctx = ctx ? sim_ctx_owner(ctx) : NULL,
                            .flags = flags};
  CUresult result = reserve(device, charged);
  if (result != CUDA_SUCCESS)
    return result;
  result = sim_pages_new(device, bytes, low, &range.pages);
  if (result != CUDA_SUCCESS) {
    release(device, charged);
    return result;
  }
  range.base = (uint64_t)(uintptr_t)range.pages.at;
  sim_ranges_lock();
  struct sim_range *kept = sim_range_add(&range);
  bool destroyed = range.ctx && range.ctx->barred;
  sim_ranges_unlock();
  if (!kept) {
    sim_pages_free(&range.pages, false);
    release(device, charged);
    return destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = range.base;
  return CUDA_SUCCESS;
}

void sim_memory_forget(struct sim_range *range) {
  sim_ranges_lock();
  struct sim_range gone = *range;
  sim_range_remove(range);
  sim_ranges_unlock();
  bool kept = sim_charge_end(&gone.block, gone.device, gone.charged);
  if (gone.kind != SIM_RANGE_REGISTERED) /* registered pages belong to the caller */
    sim_pages_free(&gone.pages, kept);
}

void *sim_memory_host(CUdeviceptr address, size_t bytes) {
  void *at = NULL;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(address);
  if (range && sim_range_covers(range, address, bytes))
    at = (void *)(uintptr_t)address; /* device addresses are host addresses */
  sim_ranges_unlock();
  return at;
}

bool sim_memory_mapped(const void *at) {
  sim_ranges_lock();
  struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)at);
  bool mapped = range && range->kind == SIM_RANGE_MAPPED;
  sim_ranges_unlock();
  return mapped;
}

static struct sim_range *module_range(CUdeviceptr address, uint64_t id) {
  struct sim_range *range = sim_range_at(address);
  return range && range->kind == SIM_RANGE_MODULE && range->id == id ? range : NULL;
}

CUresult sim_memory_module_alloc(struct sim_ctx *ctx, size_t bytes, CUdeviceptr *address, uint64_t *id) {
  CUresult result = sim_memory_new(ctx, ctx->device, SIM_RANGE_MODULE, bytes, 0, 0, false, address);
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  *id = sim_range_at(*address)->id;
  sim_ranges_unlock();
  return CUDA_SUCCESS;
}

bool sim_memory_module_alive(CUdeviceptr address, uint64_t id) {
  sim_ranges_lock();
  bool alive = module_range(address, id) != NULL;
  sim_ranges_unlock();
  return alive;
}

void sim_memory_module_free(CUdeviceptr address, uint64_t id) {
  sim_ranges_lock();
  struct sim_range *range = module_range(address, id);
  if (range)
    range->dying = true;
  sim_ranges_unlock();
  if (range)
    sim_memory_forget(range);
}

void sim_memory_array_free(CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = sim_range_at(address);
  range->dying = true;
  sim_ranges_unlock();
  sim_memory_forget(range);
}
