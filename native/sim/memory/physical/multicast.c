/* Multicast objects. A binding keeps the bound memory alive. Addresses can be mapped, but stores through them are not
 * modelled. */
#include <stdlib.h>

#include "sim/memory/physical/vmm.h"

/* The helper functions below require sim_ranges_lock. */
static CUdevice device_of(const struct binding *binding) { return sim_physical_device(&binding->memory->prop); }

static struct physical *object_of(CUmemGenericAllocationHandle handle) {
  struct physical *object = sim_physical_of(handle);
  return object && object->multicast ? object : NULL;
}

static CUresult check(const CUmulticastObjectProp *prop) {
  if (!prop || prop->numDevices == 0 || prop->numDevices > sim_info()->ndevices || prop->size == 0 || prop->flags ||
      prop->size % SIM_VMM_GRANULARITY || prop->size > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_INVALID_VALUE;
  return prop->handleTypes ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option) {
  if (!granularity || option < 0 || option > 1 || !prop || prop->numDevices == 0 || prop->flags)
    return CUDA_ERROR_INVALID_VALUE;
  *granularity = SIM_VMM_GRANULARITY;
  return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop) {
  CUresult result = mcHandle ? check(prop) : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS)
    return result;
  struct multicast *multicast = calloc(1, sizeof *multicast);
  if (!multicast)
    return CUDA_ERROR_OUT_OF_MEMORY;
  multicast->team = prop->numDevices;
  const struct physical made = {.bytes = prop->size, .multicast = multicast, .pages = {.fd = -1}};
  result = sim_physical_add(&made, mcHandle);
  if (result != CUDA_SUCCESS)
    free(multicast);
  return result;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mcHandle, CUdevice dev) {
  CUresult result = CUDA_SUCCESS;
  if (!sim_device_valid(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_ranges_lock();
  struct physical *object = object_of(mcHandle);
  struct multicast *multicast = object ? object->multicast : NULL;
  if (!multicast || multicast->devices & 1u << dev ||
      (unsigned)__builtin_popcount(multicast->devices) == multicast->team)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    multicast->devices |= 1u << dev;
  sim_ranges_unlock();
  return result;
}

enum { OF_MEMORY = -1 /* dev: use the device of the memory */ };

/* On hardware a call made before all devices were added waits for them. Here it fails, because no other process could
 * add one. */
static CUresult bind(struct physical *object, CUdevice dev, uint64_t offset, struct physical *memory,
                     uint64_t memory_offset, uint64_t bytes) {
  if (!object || !memory || memory->multicast || bytes == 0 || (offset | memory_offset | bytes) % SIM_VMM_GRANULARITY ||
      bytes > object->bytes || offset > object->bytes - bytes || bytes > memory->bytes ||
      memory_offset > memory->bytes - bytes)
    return CUDA_ERROR_INVALID_VALUE;
  struct multicast *multicast = object->multicast;
  CUdevice device = sim_physical_device(&memory->prop);
  if ((unsigned)__builtin_popcount(multicast->devices) < multicast->team)
    return CUDA_ERROR_NOT_READY;
  if (memory->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !(multicast->devices & 1u << device) ||
      (dev != OF_MEMORY && dev != device))
    return CUDA_ERROR_INVALID_DEVICE;
  for (const struct binding *each = multicast->bindings; each; each = each->next)
    if (device_of(each) == device && offset < each->offset + each->bytes && each->offset < offset + bytes)
      return CUDA_ERROR_INVALID_VALUE;
  struct binding *made = malloc(sizeof *made);
  if (!made)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *made = (struct binding){offset, bytes, memory, multicast->bindings};
  multicast->bindings = made;
  memory->bound++;
  return CUDA_SUCCESS;
}

static CUresult bind_memory(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags) {
  if (flags)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  CUresult result = bind(object_of(mcHandle), dev, mcOffset, sim_physical_of(memHandle), memOffset, size);
  sim_ranges_unlock();
  return result;
}

static CUresult bind_address(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, CUdeviceptr memptr,
                             size_t size, unsigned long long flags) {
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  if (flags)
    return result;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(memptr);
  if (range && range->kind == SIM_RANGE_MAPPED && memptr % SIM_VMM_GRANULARITY == 0 &&
      size <= range->bytes - (memptr - range->base))
    result = bind(object_of(mcHandle), dev, mcOffset, range->owner, 0, size);
  sim_ranges_unlock();
  return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags) {
  return bind_memory(mcHandle, OF_MEMORY, mcOffset, memHandle, memOffset, size, flags);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                               unsigned long long flags) {
  return sim_device_valid(dev) ? bind_memory(mcHandle, dev, mcOffset, memHandle, memOffset, size, flags)
                               : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
                             unsigned long long flags) {
  return bind_address(mcHandle, OF_MEMORY, mcOffset, memptr, size, flags);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                CUdeviceptr memptr, size_t size, unsigned long long flags) {
  return sim_device_valid(dev) ? bind_address(mcHandle, dev, mcOffset, memptr, size, flags) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size) {
  bool found = false;
  if (!sim_device_valid(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  if (size > SIM_ADDRESS_SPACE || mcOffset > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  struct physical *object = object_of(mcHandle);
  struct binding **at = object ? &object->multicast->bindings : NULL;
  while (at && *at) {
    if (device_of(*at) != dev || (*at)->offset < mcOffset || (*at)->offset + (*at)->bytes > mcOffset + size) {
      at = &(*at)->next;
      continue;
    }
    sim_binding_end(at);
    found = true;
  }
  sim_ranges_unlock();
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
