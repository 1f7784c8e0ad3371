/* Device memory: cuMemAlloc and its variants, internal allocations of the driver, and release of a context's memory. */
#include <string.h>

#include "sim/memory/memory.h"

/* Checks common to all allocations: initialisation, a current context, no conflicting capture, a plausible size. */
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
  bool pages = kind == SIM_RANGE_DEVICE && bytes > SIM_ALLOC_PAGE / 2; /* managed memory is placed in smaller pieces */
  uint64_t charged = sim_round_up(bytes, pages ? SIM_ALLOC_PAGE : SIM_ALLOC_ROUND);
  return sim_memory_new(ctx, ctx->device, kind, bytes, charged, flags, low, address);
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

/* Removes a range that is marked dying from the table and frees what it holds, whether it is a pool block or not. */
static void forget(struct sim_range *range) {
  if (range->kind != SIM_RANGE_POOL) {
    sim_memory_forget(range);
    return;
  }
  sim_ranges_lock();
  sim_pool_free_now(range);
  sim_ranges_unlock();
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
  range->dying = !graph; /* the address of a graph's memory is backed again at the next launch */
  sim_ranges_unlock();
  if (ctx)
    sim_ctx_wait(ctx);
  else
    sim_device_wait(device);
  if (graph)
    sim_graph_mem_uncommit(address);
  else
    forget(range);
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  CUresult result = sim_capture_guard();
  if (result != CUDA_SUCCESS || dptr == 0)
    return result;
  return sim_memory_free(dptr);
}

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

/* ---- destruction of a context ------------------------------------------------------------------------------------ */

static bool dies_with(const struct sim_range *range, const struct sim_ctx *ctx) {
  return range->ctx == ctx && !range->dying &&
         (range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_MANAGED || range->kind == SIM_RANGE_MODULE ||
          range->kind == SIM_RANGE_IPC || range->kind == SIM_RANGE_EXTERNAL || range->kind == SIM_RANGE_HOST ||
          range->kind == SIM_RANGE_REGISTERED || range->kind == SIM_RANGE_IMPORTED || range->kind == SIM_RANGE_POOL);
}

void sim_memory_ctx_destroyed(struct sim_ctx *ctx) {
  struct sim_range *range;
  sim_ranges_lock();
  ctx->barred = true;
  sim_ranges_unlock();
  do {
    sim_ranges_lock();
    for (range = sim_range_next(0); range && !dies_with(range, ctx); range = sim_range_next(range->base + 1))
      ;
    if (range)
      range->dying = true;
    sim_ranges_unlock();
    if (range)
      forget(range);
  } while (range);
  sim_arrays_ctx_destroyed(ctx);
  sim_textures_ctx_destroyed(ctx);
  sim_pools_ctx_destroyed(ctx);
  sim_graph_mem_trim(ctx->device);
}
