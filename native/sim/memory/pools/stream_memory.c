/* Stream-ordered allocation and release of memory outside pools: memory of graphs and of cuMemAlloc. */
#include <string.h>

#include "sim/memory/memory.h"

static uint64_t address_in(const void *payload) {
  uint64_t address;
  memcpy(&address, payload, sizeof address);
  return address;
}

static void run_graph_uncommit(void *payload) { sim_graph_mem_uncommit(address_in(payload)); }

CUresult sim_graph_mem_capture(struct sim_stream *stream, CUdevice device, size_t bytes, CUdeviceptr *address) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
      .bytesize = bytes};
  CUresult result = sim_graph_mem_reserve(device, bytes, &params.dptr);
  if (result != CUDA_SUCCESS)
    return result;
  const struct sim_op op = {.resource = SIM_INSTANT,
                            .node_type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                            .payload = &params.dptr,
                            .payload_bytes = sizeof params.dptr,
                            .params = &params,
                            .params_bytes = sizeof params};
  result = sim_submit(stream, &op);
  if (result == CUDA_SUCCESS)
    *address = params.dptr;
  else
    sim_graph_mem_destroy(params.dptr);
  return result;
}

CUresult sim_graph_mem_free_in_order(struct sim_stream *stream, CUdeviceptr address) {
  if (!sim_stream_capturing(stream) && !sim_graph_mem_free(address))
    return CUDA_ERROR_INVALID_VALUE;
  const struct sim_op op = {.resource = SIM_INSTANT,
                            .run = run_graph_uncommit,
                            .node_type = CU_GRAPH_NODE_TYPE_MEM_FREE,
                            .payload = &address,
                            .payload_bytes = sizeof address,
                            .params = &address,
                            .params_bytes = sizeof address};
  return sim_submit(stream, &op);
}

static void run_forget(void *payload) {
  struct sim_range *range;
  memcpy(&range, payload, sizeof range);
  sim_memory_forget(range);
}

CUresult sim_memory_free_in_order(struct sim_stream *stream, CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = sim_range_at(address);
  if (range && range->kind != SIM_RANGE_DEVICE && range->kind != SIM_RANGE_MANAGED && range->kind != SIM_RANGE_IMPORTED)
    range = NULL; /* another thread has freed it, and the address is something else now */
  if (range)
    range->dying = true;
  sim_ranges_unlock();
  if (!range)
    return CUDA_ERROR_INVALID_VALUE;
  const struct sim_op op = {.resource = SIM_INSTANT,
                            .run = run_forget,
                            .node_type = SIM_NODE_NONE,
                            .payload = &range,
                            .payload_bytes = sizeof range};
  CUresult result = sim_submit(stream, &op);
  if (result != CUDA_SUCCESS)
    run_forget(&range);
  return CUDA_SUCCESS;
}
