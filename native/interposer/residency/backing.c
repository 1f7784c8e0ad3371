/* The memory behind movable addresses. */
#include "interposer/residency/backing.h"

#include "interposer/memory/books/charge.h"
#include "interposer/memory/books/life.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/process/device.h"
#include "interposer/process/passage/passage.h"
#include "interposer/residency/tables.h"

enum {
  STEP = 2 << 20, /* of addresses and of memory, where the driver does not ask for more */
  PIECE = 1 << 30 /* most bytes of one handle: mapping costs by the handle, not by the byte */
};

/* What the driver answered, once; a fork has the same driver. */
static uint64_t driver_step; /* granularity; 0: not asked yet */
static uint32_t refused;     /* 1: it cannot map memory */

static CUmemAllocationProp properties(int ordinal) {
  int capable = 0;
  CUdevice device = gs_device_of(ordinal);
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  /* memory of cuMemAlloc can be given to a network card, too */
  if (gs_real.cuDeviceGetAttribute(&capable, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device) ==
          CUDA_SUCCESS &&
      capable)
    prop.allocFlags.gpuDirectRDMACapable = 1;
  return prop;
}

CUresult gs_movable_unmap(const struct gs_movable *movable) {
  return gs_real.cuMemUnmap(movable->address, movable->bytes);
}

CUresult gs_movable_map(const struct gs_movable *movable) {
  CUmemAllocationProp prop = properties(movable->ordinal);
  CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = CUDA_SUCCESS;
  uint64_t done = 0;
  while (done < movable->bytes && result == CUDA_SUCCESS) {
    uint64_t bytes = movable->bytes - done < PIECE ? movable->bytes - done : PIECE;
    CUmemGenericAllocationHandle handle;
    result = gs_real.cuMemCreate(&handle, bytes, &prop, 0);
    if (result != CUDA_SUCCESS)
      break;
    result = gs_real.cuMemMap(movable->address + done, bytes, 0, handle, 0);
    gs_real.cuMemRelease(handle); /* the mapping keeps the memory */
    if (result == CUDA_SUCCESS)
      done += bytes;
  }
  if (result == CUDA_SUCCESS)
    result = gs_real.cuMemSetAccess(movable->address, movable->bytes, &access, 1);
  if (result != CUDA_SUCCESS && done)
    gs_real.cuMemUnmap(movable->address, done);
  return result;
}

/* ---- making ---- */

bool gs_movable_wanted(uint64_t bytes) {
  return gs_passage() && bytes > GS_MOVABLE_ABOVE && bytes <= UINT64_MAX / 2 && /* rounded up it is still a size */
         !__atomic_load_n(&refused, __ATOMIC_RELAXED);
}

uint64_t gs_movable_bytes(uint64_t asked) {
  uint64_t known = __atomic_load_n(&driver_step, __ATOMIC_RELAXED);
  return gs_round_up(asked, known ? known : STEP);
}

bool gs_movable_ready(int ordinal) {
  size_t least = 0;
  int supported = 0;
  if (__atomic_load_n(&driver_step, __ATOMIC_RELAXED))
    return true;
  CUmemAllocationProp prop = properties(ordinal);
  if (gs_real.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                   prop.location.id) != CUDA_SUCCESS ||
      !supported || gs_real.cuMemGetAllocationGranularity(&least, &prop, 0 /* minimum */) != CUDA_SUCCESS) {
    __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
    return false;
  }
  __atomic_store_n(&driver_step, gs_round_up(least, STEP), __ATOMIC_RELAXED);
  return true;
}

static CUresult back_addresses(struct gs_movable *made) {
  CUdeviceptr address = 0;
  CUresult result = gs_real.cuMemAddressReserve(&address, made->bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS)
    return result;
  made->address = address;
  result = gs_movable_map(made);
  if (result == CUDA_SUCCESS && !gs_movable_add(made)) {
    gs_movable_unmap(made);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS)
    gs_real.cuMemAddressFree(address, made->bytes);
  return result;
}

CUresult gs_movable_make(struct gs_movable made, uint64_t *address) {
  made.bytes = gs_movable_bytes(made.asked);
  made.number = gs_next_call();
  made.host = GS_NO_PLACE;
  CUresult result = back_addresses(&made);
  if (result == CUDA_SUCCESS)
    *address = made.address;
  return result;
}

/* ---- ending ---- */

static void give_up(const struct gs_movable *movable) {
  if (movable->where != GS_ON_HOST)
    gs_movable_unmap(movable);
  gs_real.cuMemAddressFree(movable->address, movable->bytes);
}

void gs_movable_abandon(uint64_t address, uint64_t number) {
  struct gs_movable gone;
  if (gs_movable_take(address, number, &gone))
    give_up(&gone);
}

void gs_movable_end(uint64_t address, uint64_t number) {
  struct gs_movable gone;
  if (!gs_movable_take(address, number, &gone))
    return;
  give_up(&gone);
  gs_give_back(gone.ordinal, gone.bytes + gone.proxied);
}
