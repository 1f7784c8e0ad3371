/* Device memory: cuMemAlloc and its family, the memory other files of the driver ask for, and what a context leaves
 * behind. */
#include <string.h>

#include "sim/memory/memory.h"

/* Nothing needs no word with the engine. */
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
  sim_ranges_unlock();
  if (!kept) {
    sim_pages_free(&range.pages);
    release(device, charged);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = range.base;
  return CUDA_SUCCESS;
}

/* The common start of all allocations: initialised, a context, no capture in the way, a size that makes sense. */
static CUresult allocation_start(size_t bytes, const void *out, struct sim_ctx **ctx) {
  CUresult result = sim_ctx_need(ctx);
  if (result == CUDA_SUCCESS)
    result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  if (!out || bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  return bytes > SIM_ADDRESS_SPACE ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, enum sim_range_kind kind, unsigned flags, bool low) {
  struct sim_ctx *ctx;
  CUresult result = allocation_start(bytes, address, &ctx);
  if (result != CUDA_SUCCESS)
    return result;
  return sim_memory_new(ctx, ctx->device, kind, bytes, sim_round_up(bytes, SIM_ALLOC_ROUND), flags, low, address);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
  return allocate(dptr, bytesize, SIM_RANGE_DEVICE, 0, false);
}

/* The first interface had 32-bit device pointers. */
CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
  CUdeviceptr address;
  CUresult result = allocate(dptr ? &address : NULL, bytesize, SIM_RANGE_DEVICE, 0, true);
  if (result == CUDA_SUCCESS)
    *dptr = (CUdeviceptr_v1)address;
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
  enum { ATTACH_GLOBAL = 1, ATTACH_HOST = 2 };
  CUresult ready = sim_ready();
  if (ready != CUDA_SUCCESS)
    return ready;
  if (flags != ATTACH_GLOBAL && flags != ATTACH_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  return allocate(dptr, bytesize, SIM_RANGE_MANAGED, flags, false);
}

static CUresult allocate_pitch(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned element,
                               bool low) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  if (!dptr || !pitch || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  if (width > SIM_ADDRESS_SPACE || height > SIM_ADDRESS_SPACE / sim_round_up(width, SIM_PITCH_ROUND))
    return CUDA_ERROR_OUT_OF_MEMORY;
  size_t row = sim_round_up(width, SIM_PITCH_ROUND);
  result = allocate(dptr, row * height, SIM_RANGE_DEVICE, 0, low);
  if (result == CUDA_SUCCESS)
    *pitch = row;
  return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  return allocate_pitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes, false);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                         unsigned int ElementSizeBytes) {
  CUdeviceptr address;
  size_t pitch;
  CUresult result =
      allocate_pitch(dptr ? &address : NULL, pPitch ? &pitch : NULL, WidthInBytes, Height, ElementSizeBytes, true);
  if (result == CUDA_SUCCESS) {
    *dptr = (CUdeviceptr_v1)address;
    *pPitch = (unsigned)pitch;
  }
  return result;
}

void sim_memory_forget(struct sim_range *range) {
  sim_ranges_lock();
  if (range->kind == SIM_RANGE_POOL) {
    sim_pool_free_now(range);
    sim_ranges_unlock();
    return;
  }
  struct sim_range gone = *range;
  sim_range_remove(range);
  sim_ranges_unlock();
  if (gone.kind != SIM_RANGE_REGISTERED) /* the caller's own pages */
    sim_pages_free(&gone.pages);
  release(gone.device, gone.charged);
}

static bool freed_by_cumemfree(const struct sim_range *range) {
  return range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_MANAGED || range->kind == SIM_RANGE_POOL ||
         range->kind == SIM_RANGE_GRAPH || range->kind == SIM_RANGE_IMPORTED || range->kind == SIM_RANGE_EXTERNAL;
}

CUresult sim_memory_free(CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = sim_range_at(address);
  if (!range || !freed_by_cumemfree(range)) {
    sim_ranges_unlock();
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool graph = range->kind == SIM_RANGE_GRAPH;
  if (graph && !range->unfreed) {
    sim_ranges_unlock();
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (graph)
    range->unfreed = false;
  struct sim_ctx *ctx = range->ctx;
  CUdevice device = range->device;
  range->dying = !graph; /* a graph's address comes back with its next launch */
  sim_ranges_unlock();
  if (ctx)
    sim_ctx_wait(ctx);
  else
    sim_device_wait(device);
  if (graph)
    sim_graph_mem_uncommit(address);
  else
    sim_memory_forget(range);
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  CUresult result = sim_ready();
  if (result == CUDA_SUCCESS)
    result = sim_capture_guard();
  if (result != CUDA_SUCCESS || dptr == 0)
    return result;
  return sim_memory_free(dptr);
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) { return cuMemFree_v2(dptr); }

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  struct sim_ctx *ctx;
  uint64_t free_bytes, total_bytes;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  if (!free || !total)
    return CUDA_ERROR_INVALID_VALUE;
  result = sim_memory_info(ctx->device, &free_bytes, &total_bytes);
  if (result == CUDA_SUCCESS) {
    *free = free_bytes;
    *total = total_bytes;
  }
  return result;
}

static unsigned saturated(size_t value) { return value > UINT32_MAX ? UINT32_MAX : (unsigned)value; }

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
  size_t free_bytes, total_bytes;
  CUresult result = cuMemGetInfo_v2(free ? &free_bytes : NULL, total ? &total_bytes : NULL);
  if (result == CUDA_SUCCESS) {
    *free = saturated(free_bytes);
    *total = saturated(total_bytes);
  }
  return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(dptr);
  if (!range || range->kind == SIM_RANGE_REGISTERED) {
    result = CUDA_ERROR_NOT_FOUND;
  } else {
    if (pbase)
      *pbase = range->base;
    if (psize)
      *psize = range->bytes;
  }
  sim_ranges_unlock();
  return result;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *pbase, unsigned int *psize, CUdeviceptr_v1 dptr) {
  CUdeviceptr base;
  size_t bytes;
  CUresult result = cuMemGetAddressRange_v2(&base, &bytes, dptr);
  if (result != CUDA_SUCCESS)
    return result;
  if (pbase)
    *pbase = (CUdeviceptr_v1)base;
  if (psize)
    *psize = saturated(bytes);
  return CUDA_SUCCESS;
}

/* ---- for the other files of the driver --------------------------------------------------------------------------- */

void *sim_memory_host(CUdeviceptr address, size_t bytes) {
  void *at = NULL;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(address);
  if (range && bytes <= range->bytes - (address - range->base) && (range->kind != SIM_RANGE_MAPPED || range->readable))
    at = (void *)(uintptr_t)address; /* device addresses are host addresses */
  sim_ranges_unlock();
  return at;
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

static bool dies_with(const struct sim_range *range, const struct sim_ctx *ctx) {
  return range->ctx == ctx && !range->dying &&
         (range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_MANAGED || range->kind == SIM_RANGE_MODULE ||
          range->kind == SIM_RANGE_IPC || range->kind == SIM_RANGE_EXTERNAL || range->kind == SIM_RANGE_HOST ||
          range->kind == SIM_RANGE_REGISTERED || range->kind == SIM_RANGE_IMPORTED || range->kind == SIM_RANGE_POOL);
}

void sim_memory_ctx_destroyed(struct sim_ctx *ctx) {
  struct sim_range *range;
  do {
    sim_ranges_lock();
    for (range = sim_range_next(0); range && !dies_with(range, ctx); range = sim_range_next(range->base + 1))
      ;
    if (range)
      range->dying = true;
    sim_ranges_unlock();
    if (range)
      sim_memory_forget(range);
  } while (range);
  sim_arrays_ctx_destroyed(ctx);
  sim_pools_ctx_destroyed(ctx);
  sim_graph_mem_trim(ctx->device);
}
