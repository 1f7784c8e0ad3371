/* Memory pools: to whom they belong and which blocks they have. pool_charge.c charges them. */
#include "hooks.h"
#include "interposer/hooks/pools.h"
#include "interposer/memory/async_free.h"
#include "interposer/memory/charge.h"
#include "interposer/memory/pool_blocks.h"
#include "interposer/memory/pool_growth.h"
#include "interposer/memory/reserve.h"
#include "interposer/time/streams.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"
#include "interposer/memory/pool_charge.h"
#include "interposer/memory/pool_map.h"

/* ---- which pool -------------------------------------------------------------------------------------------------- */

/* Whether it is the device's default pool, of memory of either kind. */
static bool standard_of(CUmemoryPool pool, CUdevice device) {
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool standard;
  if (gs_real.cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS && standard == pool)
    return true;
  return gs_real_has(GS_INDEX_cuMemGetDefaultMemPool) &&
         gs_real.cuMemGetDefaultMemPool(&standard, &location, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_SUCCESS &&
         standard == pool;
}

/* The ordinal in the entry: GS_NO_DEVICE for pools that are not charged to this grant. A pool that is seen here for the
 * first time is a device's default pool or was imported. */
static int pool_ordinal(CUmemoryPool pool) {
  struct gs_pool known;
  int ordinal = GS_NO_DEVICE;
  if (gs_table_copy(&gs_books()->pools, (uintptr_t)pool, &known))
    return known.ordinal;
  for (CUdevice device = 0; device < GS_MAX_DEVICES && ordinal == GS_NO_DEVICE; device++)
    if (gs_device_ordinal(device) != GS_NO_DEVICE && standard_of(pool, device))
      ordinal = gs_device_ordinal(device);
  uint64_t reserved, used;
  /* an invalid pool is left for the driver to report */
  if (gs_pool_figures((uintptr_t)pool, ordinal, &reserved, &used))
    gs_pool_add((uintptr_t)pool, ordinal, 0, reserved);
  return ordinal;
}

/* A pool that is not charged is one of host memory, of another process, or the default pool of a device that is not
 * part of the grant, where no other pool can be created. */
static bool pool_elsewhere(CUmemoryPool pool, CUdevice *device) {
  int count = 0;
  if (gs_real.cuDeviceGetCount(&count) != CUDA_SUCCESS)
    return false;
  for (*device = 0; *device < count; ++*device)
    if (gs_elsewhere(*device) && standard_of(pool, *device))
      return true;
  return false;
}

/* ---- handlers ---------------------------------------------------------------------------------------------------- */

struct request {
  const struct gs_call *call;
  CUdeviceptr *address;
  size_t bytes;
  CUmemoryPool pool;
  CUstream stream;
};

/* A capturing stream gets an allocation node of a graph: its memory is allocated when the graph is launched. */
static bool captures(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = gs_real.cuStreamIsCapturing(stream, &status);
  if (result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_NOT_SUPPORTED)
    return false; /* a driver without stream capture */
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* False: it does not fit, and *result is the error. One allocation at a time, so that the free memory of a pool is not
 * counted twice. The lock is not held during waits. */
static bool within_charge(const struct request *request, int ordinal, CUresult *result) {
  struct gs_growth growth;
  uint64_t pool = (uintptr_t)request->pool;
  bool fits = false;
  *result = CUDA_ERROR_OUT_OF_MEMORY;
  gs_lock(&gs_process->alloc_lock[ordinal]);
  if (gs_growth_begin(&growth, pool, ordinal, request->bytes, request->stream)) {
    *result = gs_call(request->call);
    fits = gs_growth_end(&growth) || *result != CUDA_SUCCESS;
    if (!fits) { /* it grew by more than any known driver does, and over the limit */
      gs_real.cuMemFreeAsync(*request->address, request->stream);
      *result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  if (*result == CUDA_SUCCESS)
    gs_map_made(pool, *request->address, request->bytes, growth.grew, gs_stream_owner(request->stream));
  gs_unlock(&gs_process->alloc_lock[ordinal]);
  return fits;
}

/* Room in the tables for a block, and for a pool or device that it may be the first of. */
static bool room_for_block(void) {
  struct gs_books *books = gs_books();
  return gs_table_room(&books->pools, 1) && gs_table_room(&books->blocks, 1) && gs_table_room(&books->chunks, 1);
}

CUresult gs_do_pool_alloc(const struct gs_call *call, CUdeviceptr *address, size_t bytes, bool named, CUmemoryPool pool,
                          CUstream stream) {
  CUresult result;
  struct request request = {call, address, bytes, pool, stream};
  int device = gs_stream_device(stream);
  if (!address || (named && !pool) || captures(stream) || (!named && device == GS_NO_DEVICE))
    return gs_call(call);
  if (!named && gs_real.cuDeviceGetMemPool(&request.pool, gs_device_of(device)) != CUDA_SUCCESS)
    return gs_call(call);
  if (!room_for_block())
    return CUDA_ERROR_OUT_OF_MEMORY;
  int ordinal = pool_ordinal(request.pool);
  if (ordinal == GS_NO_DEVICE) {
    CUdevice other;
    return bytes > 0 && pool_elsewhere(request.pool, &other) ? gs_refuse_elsewhere(other) : gs_call(call);
  }
  if (!within_charge(&request, ordinal, &result) &&
      gs_growth_make_room((uintptr_t)request.pool, ordinal, bytes, stream))
    within_charge(&request, ordinal, &result);
  return result;
}

CUresult gs_do_free_async(const struct gs_call *call, CUdeviceptr address, CUstream stream) {
  /* removed from the books before the driver frees it: from then on another thread may get the same address */
  struct gs_table *pointers = &gs_books()->pointers;
  struct gs_allocation pointer;
  struct gs_block block;
  bool ours = gs_table_take(pointers, address, &pointer), of_pool = !ours && gs_map_take(address, &block);
  CUresult result = gs_call(call);
  if (ours && result != CUDA_SUCCESS)
    gs_table_put(pointers, &pointer);
  else if (of_pool && result != CUDA_SUCCESS)
    gs_map_put_back(&block);
  else if (ours)
    gs_free_queued(pointer.ordinal, pointer.bytes, stream);
  else if (of_pool)
    gs_pool_block_freed(&block, &stream);
  return result;
}

/* Managed memory may have no preferred location, or one that it can leave: it is charged where it is wanted. */
static int payer(const CUmemLocation *place, bool managed) {
  if (place->type == CU_MEM_LOCATION_TYPE_DEVICE)
    return gs_device_ordinal(place->id);
  int current = managed ? gs_current_device() : GS_NO_DEVICE;
  return managed && current == GS_NO_DEVICE ? 0 : current;
}

CUresult gs_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolCreate(pool, poolProps) : result;
  bool managed = poolProps && poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (pool && managed && gs_managed_refused())
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!gs_table_room(&gs_books()->pools, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemPoolCreate(pool, poolProps);
  if (result != CUDA_SUCCESS)
    return result;
  CUdevice other;
  if (gs_place_elsewhere(&poolProps->location, 1, &other)) {
    gs_real.cuMemPoolDestroy(*pool);
    return gs_refuse_elsewhere(other);
  }
  gs_pool_add((uintptr_t)*pool, payer(&poolProps->location, managed), poolProps->maxSize, 0);
  return result;
}

CUresult gs_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                               CUmemAllocationHandleType handleType, unsigned long long flags) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags)
                                  : result;
  if (!gs_table_room(&gs_books()->pools, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags);
  if (result == CUDA_SUCCESS) /* the exporter pays */
    gs_pool_add((uintptr_t)*pool_out, GS_NO_DEVICE, 0, 0);
  return result;
}

CUresult gs_cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolDestroy(pool) : result;
  struct gs_table *pools = &gs_books()->pools;
  struct gs_pool ended = {.ordinal = GS_NO_DEVICE};
  int ordinal = pool_ordinal(pool);
  uint32_t *lock = ordinal == GS_NO_DEVICE ? NULL : &gs_process->pool_lock[ordinal];
  if (lock) /* the handle may be reused at once for another pool */
    gs_lock(lock);
  result = gs_real.cuMemPoolDestroy(pool);
  if (result == CUDA_SUCCESS) {
    gs_map_forget((uintptr_t)pool);
    gs_table_lock(pools);
    struct gs_pool *known = gs_table_find(pools, (uintptr_t)pool);
    if (known && known->blocks == 0) {
      ended = *known;
      gs_table_remove(pools, known);
    } else if (known) {
      known->destroyed = true;
    }
    gs_table_unlock(pools);
    gs_give_back(ended.ordinal, ended.bytes);
    if (ordinal != GS_NO_DEVICE)
      __atomic_fetch_sub(&gs_process->pools[ordinal], 1, __ATOMIC_RELAXED);
  }
  if (lock)
    gs_unlock(lock);
  return result;
}

CUresult gs_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolTrimTo(pool, minBytesToKeep) : result;
  result = gs_real.cuMemPoolTrimTo(pool, minBytesToKeep);
  if (result == CUDA_SUCCESS)
    gs_memory_synced(pool_ordinal(pool));
  return result;
}

/* Pools by place and kind of memory, since CUDA 13. */
CUresult gs_do_get_pool(const struct gs_call *call, CUmemoryPool *pool, const CUmemLocation *location,
                        CUmemAllocationType type) {
  if (pool && location && type == CU_MEM_ALLOCATION_TYPE_MANAGED && gs_managed_refused())
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!gs_table_room(&gs_books()->pools, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = gs_call(call);
  if (result == CUDA_SUCCESS && type == CU_MEM_ALLOCATION_TYPE_MANAGED && location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    gs_pool_add((uintptr_t)*pool, payer(location, true), 0, 0);
  return result;
}
