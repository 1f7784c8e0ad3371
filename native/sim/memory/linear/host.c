/* Pinned and registered host memory, and pointer attributes. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "sim/memory/memory.h"

enum {
  HOST_FLAGS = 7 /* portable, mapped, write-combined */,
  REGISTER_FLAGS = 15 /* portable, mapped, I/O, read-only */
};

/* Takes the time to pin this much memory. */
static void pin(uint64_t bytes) {
  uint64_t rate = sim_info()->pin_bytes_per_us;
  if (rate)
    sim_spend(bytes * 1000 / rate);
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result == CUDA_SUCCESS)
    result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  if (!pp || bytesize == 0 || (Flags & ~(unsigned)HOST_FLAGS))
    return CUDA_ERROR_INVALID_VALUE;
  if (bytesize > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t bytes = sim_round_up(bytesize, SIM_PAGE);
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pin(bytes);
  struct sim_range range = {.base = (uint64_t)(uintptr_t)at,
                            .bytes = bytesize,
                            .pages = {.at = at, .bytes = bytes, .fd = -1},
                            .kind = SIM_RANGE_HOST,
                            .device = ctx->device,
                            .ctx = sim_ctx_owner(ctx),
                            .flags = Flags | 2u /* with unified addresses all pinned memory is mapped */};
  sim_ranges_lock();
  struct sim_range *kept = sim_range_add(&range);
  sim_ranges_unlock();
  if (!kept) {
    munmap(at, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pp = at;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }

CUresult cuMemAllocHost(void **pp, unsigned int bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }

/* Finds host memory of one kind that starts at p, waits for work that may use it, and removes it from the table. */
static bool take_out(void *p, enum sim_range_kind kind, struct sim_range *gone) {
  sim_ranges_lock();
  struct sim_range *range = sim_range_at((uint64_t)(uintptr_t)p);
  if (range && range->kind != kind)
    range = NULL;
  if (range)
    range->dying = true;
  sim_ranges_unlock();
  if (!range)
    return false;
  sim_ctx_wait(range->ctx);
  sim_ranges_lock();
  *gone = *range;
  sim_range_remove(range);
  sim_ranges_unlock();
  return true;
}

CUresult cuMemFreeHost(void *p) {
  struct sim_range gone;
  CUresult result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  if (!take_out(p, SIM_RANGE_HOST, &gone))
    return CUDA_ERROR_INVALID_VALUE;
  munmap(gone.pages.at, gone.pages.bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result == CUDA_SUCCESS)
    result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  if (!p || bytesize == 0 || bytesize > SIM_ADDRESS_SPACE || (Flags & ~(unsigned)REGISTER_FLAGS))
    return CUDA_ERROR_INVALID_VALUE;
  struct sim_range range = {.base = (uint64_t)(uintptr_t)p,
                            .bytes = bytesize,
                            .pages = {.fd = -1},
                            .kind = SIM_RANGE_REGISTERED,
                            .device = ctx->device,
                            .ctx = sim_ctx_owner(ctx),
                            .flags = Flags | 2u};
  sim_ranges_lock();
  struct sim_range *other = sim_range_overlap(range.base, range.bytes);
  if (other)
    result = other->kind == SIM_RANGE_REGISTERED || other->kind == SIM_RANGE_HOST
                 ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                 : CUDA_ERROR_INVALID_VALUE;
  else if (!sim_range_add(&range))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  sim_ranges_unlock();
  if (result == CUDA_SUCCESS)
    pin(bytesize);
  return result;
}

CUresult cuMemHostUnregister(void *p) {
  struct sim_range gone;
  CUresult result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  if (!p)
    return CUDA_ERROR_INVALID_VALUE;
  return take_out(p, SIM_RANGE_REGISTERED, &gone) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

static bool is_host(const struct sim_range *range) {
  return range->kind == SIM_RANGE_HOST || range->kind == SIM_RANGE_REGISTERED;
}

bool sim_memory_pinned(const void *at, size_t bytes) {
  uint64_t address = (uint64_t)(uintptr_t)at;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(address);
  bool pinned = range && is_host(range) && bytes <= range->bytes - (address - range->base);
  sim_ranges_unlock();
  return pinned;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  if (!pdptr || !p || Flags || !sim_memory_pinned(p, 1))
    return CUDA_ERROR_INVALID_VALUE;
  *pdptr = (uint64_t)(uintptr_t)p;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)p);
  if (!pFlags || !range || range->kind != SIM_RANGE_HOST)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    *pFlags = range->flags;
  sim_ranges_unlock();
  return result;
}

/* ---- pointer attributes ------------------------------------------------------------------------------------------ */

enum { UNKNOWN_DEVICE = -2 }; /* result of cuPointerGetAttributes for an unknown pointer */

static void put_u64(void *data, uint64_t value) { memcpy(data, &value, sizeof value); }

static void put_u32(void *data, uint32_t value) { memcpy(data, &value, sizeof value); }

static void put_flag(void *data, bool value) { *(unsigned char *)data = value; }

static bool of_device(const struct sim_range *range) { return range && !is_host(range); }

static bool shows_context(const struct sim_range *range) {
  return range && range->ctx && range->kind != SIM_RANGE_POOL; /* memory of pools and cuMemMap belongs to no context */
}

/* By the device of the current context, if there is one. */
static bool reached(const struct sim_range *range) {
  struct sim_ctx *ctx = sim_ctx_current();
  return ctx == NULL || sim_range_reached(sim_ctx_owner(ctx), range);
}

/* range is NULL if the driver does not know the address. */
static CUresult attribute_of(const struct sim_range *range, CUdeviceptr ptr, CUpointer_attribute attribute,
                             void *data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: put_u64(data, shows_context(range) ? (uint64_t)(uintptr_t)range->ctx : 0); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      put_u32(data, !range ? 0 : is_host(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: put_u64(data, range ? ptr : 0); break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      put_u64(data, !range || is_host(range) || range->kind == SIM_RANGE_MANAGED ? ptr : 0);
      break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: put_flag(data, range && (range->flags & SIM_SYNC_MEMOPS)); break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: put_u64(data, range ? range->id : 0); break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: put_flag(data, range && range->kind == SIM_RANGE_MANAGED); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: put_u32(data, (uint32_t)(range ? range->device : UNKNOWN_DEVICE)); break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      put_flag(data, range && range->kind == SIM_RANGE_DEVICE && range->pages.fd >= 0);
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: put_u64(data, range ? range->base : 0); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: put_u64(data, range ? range->bytes : 0); break;
    case CU_POINTER_ATTRIBUTE_MAPPED: put_flag(data, range != NULL); break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      put_u64(data, range && range->kind == SIM_RANGE_MAPPED ? (uint64_t)sim_physical_handle_types(range->owner) : 0);
      break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: put_flag(data, false); break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      put_u32(data, range && reached(range) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0);
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      put_u64(data, range && range->kind == SIM_RANGE_POOL ? (uint64_t)(uintptr_t)sim_pool_of_block(range->owner) : 0);
      break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: put_u64(data, of_device(range) ? range->bytes : 0); break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: put_u64(data, of_device(range) ? range->base : 0); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      put_u64(data, !range ? 0 : range->kind == SIM_RANGE_MAPPED ? sim_physical_id(range->owner) : range->id);
      break;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: put_flag(data, false); break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (!data)
    return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
    return CUDA_ERROR_NOT_SUPPORTED;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(ptr);
  CUresult result = range || attribute == CU_POINTER_ATTRIBUTE_MAPPED ? attribute_of(range, ptr, attribute, data)
                                                                      : CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr ptr) {
  CUresult result = CUDA_SUCCESS;
  if (numAttributes == 0 || !attributes || !data)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(ptr);
  for (unsigned i = 0; i < numAttributes && result == CUDA_SUCCESS; i++)
    result = data[i] ? attribute_of(range, ptr, attributes[i], data[i]) : CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(ptr);
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !of_device(range))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (*(const unsigned *)value)
    range->flags |= SIM_SYNC_MEMOPS;
  else
    range->flags &= ~SIM_SYNC_MEMOPS;
  sim_ranges_unlock();
  return result;
}
