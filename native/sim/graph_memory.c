/* Memory of graph allocation nodes: an address for the life of the graph, bytes in the books from the node that allocates to
 * the one that frees. */
#include <string.h>

#include "memory.h"

/* Under sim_ranges_lock. What is reserved is what is used: nothing is kept between launches. */
static struct {
  uint64_t now, high_used, high_reserved;
} committed[SIM_MAX_DEVICES];

static struct sim_range *graph_range(CUdeviceptr address) {
  struct sim_range *range = sim_range_at(address);
  return range && range->kind == SIM_RANGE_GRAPH ? range : NULL;
}

static void count(CUdevice device, uint64_t more, uint64_t less) {
  committed[device].now += more - less;
  if (committed[device].now > committed[device].high_used)
    committed[device].high_used = committed[device].now;
  if (committed[device].now > committed[device].high_reserved)
    committed[device].high_reserved = committed[device].now;
}

CUresult sim_graph_mem_reserve(CUdevice device, size_t bytes, CUdeviceptr *address) {
  if (bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_OUT_OF_MEMORY;
  return sim_memory_new(NULL, device, SIM_RANGE_GRAPH, bytes, 0, 0, false, address);
}

CUresult sim_graph_mem_commit(CUdeviceptr address) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = graph_range(address);
  if (!range) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (range->charged == 0) {
    uint64_t bytes = sim_round_up(range->bytes, SIM_ALLOC_ROUND);
    result = sim_memory_reserve(range->device, bytes);
    if (result == CUDA_SUCCESS) {
      range->charged = bytes;
      count(range->device, bytes, 0);
    }
  }
  sim_ranges_unlock();
  return result;
}

static void uncommit(struct sim_range *range) {
  sim_memory_release(range->device, range->charged);
  count(range->device, 0, range->charged);
  range->charged = 0;
}

void sim_graph_mem_uncommit(CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = graph_range(address);
  if (range && range->charged)
    uncommit(range);
  sim_ranges_unlock();
}

void sim_graph_mem_destroy(CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = graph_range(address);
  if (range) {
    if (range->charged)
      uncommit(range);
    range->dying = true;
  }
  sim_ranges_unlock();
  if (range)
    sim_memory_forget(range);
}

/* ---- what a device tells about it -------------------------------------------------------------------------------------------- */

enum { GRAPH_USED_CURRENT, GRAPH_USED_HIGH, GRAPH_RESERVED_CURRENT, GRAPH_RESERVED_HIGH };

static CUresult check(CUdevice device, CUgraphMem_attribute attr, const void *value) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (!sim_device_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  return value && attr >= GRAPH_USED_CURRENT && attr <= GRAPH_RESERVED_HIGH ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
  CUresult result = check(device, attr, value);
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  uint64_t found = attr == GRAPH_USED_HIGH       ? committed[device].high_used
                   : attr == GRAPH_RESERVED_HIGH ? committed[device].high_reserved
                                                 : committed[device].now;
  sim_ranges_unlock();
  memcpy(value, &found, sizeof found);
  return CUDA_SUCCESS;
}

/* Only the high marks can be set, and only back to now. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
  uint64_t wanted;
  CUresult result = check(device, attr, value);
  if (result != CUDA_SUCCESS)
    return result;
  memcpy(&wanted, value, sizeof wanted);
  if (wanted != 0 || attr == GRAPH_USED_CURRENT || attr == GRAPH_RESERVED_CURRENT)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  if (attr == GRAPH_USED_HIGH)
    committed[device].high_used = committed[device].now;
  else
    committed[device].high_reserved = committed[device].now;
  sim_ranges_unlock();
  return CUDA_SUCCESS;
}

/* Nothing is kept that could be given back. */
CUresult cuDeviceGraphMemTrim(CUdevice device) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  return sim_device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
