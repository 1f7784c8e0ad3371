/* Stream-ordered allocation: cuMemAllocAsync and cuMemFreeAsync. */
#include "sim/memory/pools/pools.h"

/* handle NULL: use the current pool of the stream's device. */
static CUresult allocate(CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle, CUstream stream_handle) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(stream_handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!dptr || bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_ranges_lock();
  CUmemoryPool pool = handle ? handle : sim_pool_current(sim_stream_ctx(stream)->device);
  bool valid = sim_pool_known(pool) && !pool->imported;
  CUdevice device = valid ? sim_pool_device(pool) : 0;
  sim_ranges_unlock();
  if (!valid)
    return CUDA_ERROR_INVALID_VALUE;
  if (sim_stream_capturing(stream))
    return sim_graph_mem_capture(stream, device, bytes, dptr);
  return sim_pool_take(pool, bytes, stream, dptr);
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
  return allocate(dptr, bytesize, NULL, hStream);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  return pool ? allocate(dptr, bytesize, pool, hStream) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_async(CUdeviceptr address, CUstream handle) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  struct sim_range *range = sim_range_at(address);
  enum sim_range_kind kind = range ? range->kind : SIM_RANGE_REGISTERED;
  sim_ranges_unlock();
  if (kind == SIM_RANGE_GRAPH)
    return sim_graph_mem_free_in_order(stream, address);
  if (sim_stream_capturing(stream))
    return CUDA_ERROR_INVALID_VALUE; /* during a capture only allocations of the same graph can be freed */
  if (kind == SIM_RANGE_DEVICE || kind == SIM_RANGE_MANAGED || kind == SIM_RANGE_IMPORTED)
    return sim_memory_free_in_order(stream, address);
  return sim_pool_fade(stream, address);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) { return free_async(dptr, hStream); }
