/* Memory pools: handles, attributes, access rights, and each device's current pool. */
#include <stdlib.h>
#include <string.h>

#include "sim/memory/pools/pools.h"

/* Guarded by sim_ranges_lock. */
static struct {
  struct CUmemPoolHandle_st standard[SIM_MAX_DEVICES];
  CUmemoryPool current[SIM_MAX_DEVICES]; /* NULL: the default pool */
} all;

static CUmemoryPool standard_pool(CUdevice device) {
  struct CUmemPoolHandle_st *pool = &all.standard[device];
  if (!pool->standard) {
    sim_pool_start(pool, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device}, 0);
    pool->standard = true;
  }
  return pool;
}

CUmemoryPool sim_pool_current(CUdevice device) {
  CUmemoryPool standard = standard_pool(device);
  return all.current[device] ? all.current[device] : standard;
}

static CUresult pool_of_device(CUmemoryPool *out, CUdevice device, CUmemoryPool (*choose)(CUdevice)) {
  if (!sim_device_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  *out = choose(device);
  sim_ranges_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
  return pool_of_device(pool_out, dev, standard_pool);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) { return pool_of_device(pool, dev, sim_pool_current); }

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  CUresult result = CUDA_SUCCESS;
  if (!sim_device_valid(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_ranges_lock();
  if (!sim_pool_known(pool) || pool->imported || pool->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      pool->location.id != dev)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    all.current[dev] = pool;
  sim_ranges_unlock();
  return result;
}

/* Since CUDA 13.0 pools are found by location; only locations on devices are supported here. */
static CUresult at_location(const CUmemLocation *location, CUmemAllocationType type) {
  if (!location)
    return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type) {
  CUresult result = at_location(location, type);
  return result == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool_out, location->id) : result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
  CUresult result = at_location(location, type);
  return result == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, location->id) : result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  CUresult result = at_location(location, type);
  return result == CUDA_SUCCESS ? cuDeviceSetMemPool(location->id, pool) : result;
}

static CUresult check_properties(const CUmemPoolProps *props) {
  if (!props)
    return CUDA_ERROR_INVALID_VALUE;
  bool shared = props->handleTypes == SIM_POOL_HANDLE;
  if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE && !(shared && props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                                                         props->location.type == CU_MEM_LOCATION_TYPE_DEVICE))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_NOT_SUPPORTED; /* managed memory always resides on the device here */
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && props->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
    return CUDA_ERROR_INVALID_VALUE;
  switch (props->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return sim_device_valid(props->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
  CUresult result = pool ? check_properties(poolProps) : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS)
    return result;
  struct CUmemPoolHandle_st *made = malloc(sizeof *made);
  if (!made)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_ranges_lock();
  sim_pool_start(made, poolProps->location, poolProps->maxSize);
  made->exportable = poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  sim_ranges_unlock();
  *pool = made;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  if (!sim_pool_known(pool) || pool->standard) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    for (CUdevice device = 0; device < SIM_MAX_DEVICES; device++)
      if (all.current[device] == pool)
        all.current[device] = NULL;
    pool->destroyed = true;
    if (pool->used == 0)
      sim_pool_end(pool);
  }
  sim_ranges_unlock();
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  if (sim_pool_known(pool))
    sim_pool_trim(pool, minBytesToKeep);
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

static CUresult set_attribute(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attr, const void *value) {
  uint64_t wide;
  if (attr >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
      attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    memcpy(&pool->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES], value, sizeof(int));
    return CUDA_SUCCESS;
  }
  memcpy(&wide, value, sizeof wide);
  if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    pool->threshold = wide;
  else if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && wide == 0)
    pool->reserved_high = pool->reserved;
  else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH && wide == 0)
    pool->used_high = pool->used;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static CUresult get_attribute(const struct CUmemPoolHandle_st *pool, CUmemPool_attribute attr, void *value) {
  if (attr >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
      attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    memcpy(value, &pool->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES], sizeof(int));
    return CUDA_SUCCESS;
  }
  const uint64_t *from = attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD      ? &pool->threshold
                         : attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? &pool->reserved
                         : attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH    ? &pool->reserved_high
                         : attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT     ? &pool->used
                         : attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH        ? &pool->used_high
                                                                        : NULL;
  if (!from)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(value, from, sizeof *from);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
  sim_ranges_lock();
  CUresult result = value && sim_pool_known(pool) ? set_attribute(pool, attr, value) : CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
  sim_ranges_lock();
  CUresult result = value && sim_pool_known(pool) ? get_attribute(pool, attr, value) : CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

static bool access_valid(const struct CUmemPoolHandle_st *pool, const CUmemAccessDesc *desc) {
  bool own = pool->location.type == CU_MEM_LOCATION_TYPE_DEVICE && pool->location.id == desc->location.id;
  return desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE && sim_device_valid(desc->location.id) &&
         (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
          desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) &&
         !(own && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE); /* a device cannot lose access to its own pool */
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  if (!map || count == 0 || !sim_pool_known(pool))
    result = CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
    if (!access_valid(pool, &map[i]))
      result = CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
    pool->access[map[i].location.id] = map[i].flags;
  sim_ranges_unlock();
  return result;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  if (!flags || !location || !sim_pool_known(memPool) || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
      !sim_device_valid(location->id))
    result = CUDA_ERROR_INVALID_VALUE;
  else
    *flags = memPool->access[location->id];
  sim_ranges_unlock();
  return result;
}
