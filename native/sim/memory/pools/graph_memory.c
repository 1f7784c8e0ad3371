/* Memory of graph allocation nodes: the address exists for the life of the graph; memory from the device's graph pool
 * backs it from the launch that allocates until the work that frees it. Freed memory stays reserved for later launches
 * of any graph until it is trimmed. */
#include <string.h>

#include "sim/memory/memory.h"

/* Guarded by sim_ranges_lock. Multiples of SIM_VMM_GRANULARITY, because graphs map physical pages at fixed
 * addresses. */
static struct {
  uint64_t used, reserved, high_used, high_reserved;
} pool[SIM_MAX_DEVICES];

static struct sim_range *graph_range(CUdeviceptr address) {
  struct sim_range *range = sim_range_at(address);
  return range && range->kind == SIM_RANGE_GRAPH ? range : NULL;
}

static void raise_highs(CUdevice device) {
  if (pool[device].used > pool[device].high_used)
    pool[device].high_used = pool[device].used;
  if (pool[device].reserved > pool[device].high_reserved)
    pool[device].high_reserved = pool[device].reserved;
}

CUresult sim_graph_mem_reserve(CUdevice device, size_t bytes, CUdeviceptr *address) {
  if (bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_OUT_OF_MEMORY;
  return sim_memory_new(NULL, device, SIM_RANGE_GRAPH, bytes, 0, 0, false, address);
}

/* Grows the pool until this many bytes are reserved and unused. */
static CUresult grow(CUdevice device, uint64_t bytes) {
  uint64_t spare = pool[device].reserved - pool[device].used;
  if (bytes <= spare)
    return CUDA_SUCCESS;
  CUresult result = sim_memory_reserve(device, bytes - spare);
  if (result == CUDA_SUCCESS)
    pool[device].reserved += bytes - spare;
  return result;
}

static CUresult attach(struct sim_range *range) {
  CUdevice device = range->device;
  uint64_t bytes = sim_round_up(range->bytes, SIM_VMM_GRANULARITY);
  CUresult result = grow(device, bytes);
  if (result != CUDA_SUCCESS)
    return result;
  pool[device].used += bytes;
  range->attached = bytes;
  raise_highs(device);
  return CUDA_SUCCESS;
}

static void detach(struct sim_range *range) {
  pool[range->device].used -= range->attached;
  range->attached = 0;
  range->opens = 0;
}

CUresult sim_graph_mem_commit(CUdeviceptr address, bool freed_inside, bool auto_free) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = graph_range(address);
  if (!range || (range->unfreed && !auto_free))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (range->opens == 0)
    result = attach(range);
  if (result == CUDA_SUCCESS) {
    range->opens = freed_inside ? range->opens + 1 : 1;
    range->unfreed = !freed_inside;
  }
  sim_ranges_unlock();
  return result;
}

void sim_graph_mem_uncommit(CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = graph_range(address);
  bool last = range && range->opens && --range->opens == 0;
  if (last)
    detach(range);
  bool gone = last && range->nodeless;
  if (gone)
    range->dying = true;
  sim_ranges_unlock();
  if (gone)
    sim_memory_forget(range);
}

bool sim_graph_mem_free(CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = graph_range(address);
  bool live = range && range->unfreed;
  if (live)
    range->unfreed = false;
  sim_ranges_unlock();
  return live;
}

void sim_graph_mem_destroy(CUdeviceptr address) {
  sim_ranges_lock();
  struct sim_range *range = graph_range(address);
  bool live = range && range->opens;
  if (live)
    range->nodeless = true;
  else if (range)
    range->dying = true;
  sim_ranges_unlock();
  if (range && !live)
    sim_memory_forget(range);
}

void sim_graph_mem_sum(CUdeviceptr address, uint64_t sums[SIM_MAX_DEVICES]) {
  sim_ranges_lock();
  struct sim_range *range = graph_range(address);
  if (range && range->attached == 0)
    sums[range->device] += sim_round_up(range->bytes, SIM_VMM_GRANULARITY);
  sim_ranges_unlock();
}

CUresult sim_graph_mem_grow(CUdevice device, uint64_t bytes) {
  sim_ranges_lock();
  CUresult result = grow(device, bytes);
  raise_highs(device);
  sim_ranges_unlock();
  return result;
}

void sim_graph_mem_pool_sum(CUdevice device, struct sim_sum *sum) { sum->bytes += pool[device].reserved; }

void sim_graph_mem_trim(CUdevice device) {
  sim_ranges_lock();
  uint64_t spare = pool[device].reserved - pool[device].used;
  pool[device].reserved -= spare;
  if (spare)
    sim_memory_release(device, spare);
  sim_ranges_unlock();
}

/* ---- attributes of a device's graph pool ------------------------------------------------------------------------- */

static CUresult check(CUdevice device, CUgraphMem_attribute attr, const void *value) {
  if (!sim_device_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  return value && attr >= CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT && attr <= CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
  CUresult result = check(device, attr, value);
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  uint64_t found = attr == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT       ? pool[device].used
                   : attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH        ? pool[device].high_used
                   : attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? pool[device].reserved
                                                                    : pool[device].high_reserved;
  sim_ranges_unlock();
  memcpy(value, &found, sizeof found);
  return CUDA_SUCCESS;
}

/* Only the high-water marks can be changed: setting one to 0 resets it to the current value. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
  uint64_t wanted;
  CUresult result = check(device, attr, value);
  if (result != CUDA_SUCCESS)
    return result;
  memcpy(&wanted, value, sizeof wanted);
  if (wanted != 0 || attr == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
    pool[device].high_used = pool[device].used;
  else
    pool[device].high_reserved = pool[device].reserved;
  sim_ranges_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  if (!sim_device_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_graph_mem_trim(device);
  return CUDA_SUCCESS;
}
