/* Memory hints are validated. Managed memory is not moved, because all memory is equally close; it is charged to its
 * device for as long as it lives. Plain memory of the program takes memory on the device that it is moved to
 * (pageable.c). */
#include "sim/memory/memory.h"

/* Performs the checks of a real driver. */
static CUresult hint(CUdeviceptr address, size_t bytes, bool *plain) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(address);
  bool fits = range && bytes > 0 && bytes <= range->bytes - (address - range->base);
  *plain = !range && address && bytes > 0 && bytes < SIM_ADDRESS_SPACE && sim_pageable();
  if (!*plain && (!fits || range->kind != SIM_RANGE_MANAGED))
    result = CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

/* The device of a location's memory; -1: the host. */
static CUdevice place_of(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
}

static bool location_valid(CUmemLocation location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    return sim_device_valid(location.id);
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

enum { CPU_DEVICE = -1, ADVISE_FIRST = 1, ADVISE_LAST = 6 };

/* Plain memory moves to its preferred location at once: a program that gives this advice goes on to touch it there. */
static CUresult advise(CUdeviceptr address, size_t bytes, int advice, CUdevice device) {
  bool plain;
  if (advice < ADVISE_FIRST || advice > ADVISE_LAST)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = hint(address, bytes, &plain);
  if (result == CUDA_SUCCESS && plain && advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION &&
      (device == CPU_DEVICE || sim_device_valid(device)))
    sim_pageable_move(address, bytes, device);
  return result;
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  CUresult result = advise(devPtr, count, advice, device);
  if (result == CUDA_SUCCESS && device != CPU_DEVICE && !sim_device_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  return result;
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
  return advise(devPtr, count, advice, place_of(location)); /* half of the kinds of advice ignore the location */
}

static void nothing(void *payload) { (void)payload; }

/* Submits an empty item, so that capture rules and completion apply as to other work. */
static CUresult order(CUstream handle) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  const struct sim_op op = {.resource = SIM_INSTANT, .run = nothing, .node_type = SIM_NODE_NONE};
  return sim_submit(stream, &op);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation to, CUstream stream) {
  bool plain;
  CUresult result = hint(address, bytes, &plain);
  if (result == CUDA_SUCCESS && !location_valid(to))
    result = CUDA_ERROR_INVALID_DEVICE;
  if (result == CUDA_SUCCESS)
    result = order(stream);
  if (result == CUDA_SUCCESS && plain)
    sim_pageable_move(address, bytes, place_of(to));
  return result;
}

static CUmemLocation location_of(CUdevice device) {
  return device == CPU_DEVICE ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0}
                              : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
  return prefetch(devPtr, count, location_of(dstDevice), hStream);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream hStream) {
  return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(devPtr, count, location, hStream);
}

static CUresult hint_batch(const CUdeviceptr *addresses, const size_t *sizes, size_t count, unsigned long long flags,
                           CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  if (!addresses || !sizes || count == 0 || flags)
    return CUDA_ERROR_INVALID_VALUE;
  bool plain;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
    result = hint(addresses[i], sizes[i], &plain);
  return result == CUDA_SUCCESS ? order(stream) : result;
}

static CUresult prefetch_batch(const CUdeviceptr *addresses, const size_t *sizes, size_t count,
                               const CUmemLocation *places, const size_t *starts, size_t nplaces,
                               unsigned long long flags, CUstream stream) {
  if (!places || !starts || nplaces == 0 || nplaces > count || starts[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < nplaces; i++)
    if (!location_valid(places[i]) || starts[i] >= count || (i > 0 && starts[i] <= starts[i - 1]))
      return CUDA_ERROR_INVALID_VALUE;
  CUresult result = hint_batch(addresses, sizes, count, flags, stream);
  for (size_t i = 0, place = 0; i < count && result == CUDA_SUCCESS; i++) {
    bool plain;
    if (place + 1 < nplaces && starts[place + 1] == i)
      place++;
    if (hint(addresses[i], sizes[i], &plain) == CUDA_SUCCESS && plain)
      sim_pageable_move(addresses[i], sizes[i], place_of(places[place]));
  }
  return result;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,
                                 size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
                                 CUstream hStream) {
  return prefetch_batch(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, hStream);
}
CUresult cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, unsigned long long flags,
                                CUstream hStream) {
  return hint_batch(dptrs, sizes, count, flags, hStream);
}
CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,
                                           size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
                                           CUstream hStream) {
  return prefetch_batch(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, hStream);
}

static CUresult attach(CUstream stream, CUdeviceptr address) {
  bool plain;
  CUresult result = hint(address, 1, &plain);
  return result == CUDA_SUCCESS ? order(stream) : result;
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags) {
  (void)length;
  (void)flags;
  return attach(hStream, dptr);
}
