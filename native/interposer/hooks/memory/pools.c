/* Memory pools: which device they are charged to, and which blocks they have. pool_charge.c charges them. */
#include <errno.h>

#include "hooks.h"
#include "interposer/hooks/memory/pools.h"
#include "interposer/memory/books/charge.h"
#include "interposer/memory/pools/pool_blocks.h"
#include "interposer/memory/pools/pool_growth.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/time/streams/streams.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"
#include "interposer/process/refused.h"
#include "interposer/memory/pools/pool_charge.h"

/* ---- which pool -------------------------------------------------------------------------------------------------- */

/* Whether the pool is the device's default pool, for device memory or for managed memory. */
static bool standard_of(CUmemoryPool pool, CUdevice device) {
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool standard;
  if (gs_real.cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS && standard == pool)
    return true;
  return gs_real_has(GS_INDEX_cuMemGetDefaultMemPool) &&
         gs_real.cuMemGetDefaultMemPool(&standard, &location, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_SUCCESS &&
         standard == pool;
}

static bool room_for_pool(void) {
  return gs_table_room(&gs_books()->pools, 1) && gs_table_room(&gs_books()->pool_handles, 1);
}

/* Adds a pool that the books do not have. It is a device's default pool or was imported: a call that makes a pool holds
 * the lock until the pool is in the books. False: the handle is not a pool's. */
static bool meet(CUmemoryPool pool) {
  struct gs_pool known;
  struct gs_pool_figures figures;
  cuuint64_t threshold = 0;
  int ordinal = GS_NO_DEVICE;
  bool is = true;
  gs_lock(&gs_process->making_pools);
  if (!gs_pool_named((uintptr_t)pool, &known)) {
    for (CUdevice device = 0; device < GS_MAX_DEVICES && ordinal == GS_NO_DEVICE; device++)
      if (gs_device_ordinal(device) != GS_NO_DEVICE && standard_of(pool, device))
        ordinal = gs_device_ordinal(device);
    is = gs_pool_ask(pool, &figures); /* an invalid pool is left for the driver to report */
    if (is && gs_real.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS)
      gs_pool_met((uintptr_t)pool, ordinal, threshold);
    else
      is = false;
  }
  gs_unlock(&gs_process->making_pools);
  return is;
}

/* Whether the pool is the default pool of a device that is not part of the grant, where no other pool can be created.
 * Other pools that are not charged are of host memory or of another process. */
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
  CUmemoryPool handle;
  bool named; /* by the program; else it is the device's current pool */
  CUstream stream;
  uint64_t pool; /* its number, once the allocation is announced */
  int ordinal;
  uint32_t changes; /* counts changes of the device's current pool; read before that was queried */
  struct gs_patience patience;
};

/* A capturing stream gets an allocation node of a graph: its memory is allocated when the graph is launched. */
static bool captures(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (gs_time() && __atomic_load_n(&gs_time()->captures, __ATOMIC_ACQUIRE) == 0)
    return false;
  CUresult result = gs_real.cuStreamIsCapturing(stream, &status);
  if (result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_NOT_SUPPORTED)
    return false; /* a driver without stream capture */
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

enum outcome {
  REFUSED,
  DONE,
  MOVED, /* the driver would take another pool by now */
  AWAY,  /* the grant's room is */
  FULL   /* the driver's device is, and a moment has passed */
};

/* Whether the driver would take another pool by now than the one that was looked at. Holds until the device's lock is
 * released, which a change takes. */
static bool moved(const struct request *request, int ordinal) {
  return !request->named && request->changes != gs_process->pool_changes[ordinal];
}

/* REFUSED: it does not fit, and *result is the error. One allocation at a time, so that it is known which one made a
 * pool grow. The lock is not held during waits. */
static enum outcome within_charge(const struct request *request, CUresult *result) {
  struct gs_growth growth;
  bool fits = false;
  *result = CUDA_ERROR_OUT_OF_MEMORY;
  gs_lock(&gs_process->alloc_lock[request->ordinal]);
  bool other = moved(request, request->ordinal);
  int rc = other ? 0 : gs_growth_begin(&growth, request->pool, request->ordinal, request->bytes);
  if (!other && rc == 0) {
    *result = gs_call(request->call);
    fits = gs_growth_end(&growth) || *result != CUDA_SUCCESS;
    if (!fits) { /* it grew by more than any known driver does, and over the limit */
      gs_real.cuMemFreeAsync(*request->address, request->stream);
      *result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  if (*result == CUDA_SUCCESS)
    gs_block_made(request->pool, *request->address, request->bytes, growth.grown, gs_stream_owner(request->stream));
  gs_unlock(&gs_process->alloc_lock[request->ordinal]);
  return other ? MOVED : rc == -EAGAIN ? AWAY : fits ? DONE : REFUSED;
}

/* The error for a request that does not fit: the driver's, if it would refuse the stream before it looks for memory. */
static CUresult refusal(CUstream stream) {
  CUstreamCaptureStatus status;
  switch (gs_real.cuStreamIsCapturing(stream, &status)) {
    case CUDA_ERROR_INVALID_CONTEXT: return CUDA_ERROR_INVALID_CONTEXT;
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    default: return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

/* False: it is to be tried again, maybe with another pool. */
static bool allocate(struct request *request, CUresult *result) {
  enum outcome outcome = within_charge(request, result);
  if (outcome == REFUSED && gs_growth_make_room(request->pool, request->ordinal, request->bytes, request->stream))
    outcome = within_charge(request, result);
  if (*result != CUDA_SUCCESS)
    gs_pool_unannounce(request->pool);
  if (outcome == AWAY && !gs_room_await(&request->patience))
    outcome = REFUSED;
  if (outcome == DONE && gs_driver_again(*result, request->ordinal, request->bytes, &request->patience))
    outcome = FULL;
  if (outcome == REFUSED)
    *result = refusal(request->stream);
  return outcome == REFUSED || outcome == DONE;
}

static bool current_pool(struct request *request, int device) {
  if (device == GS_NO_DEVICE)
    return false;
  request->changes = __atomic_load_n(&gs_process->pool_changes[device], __ATOMIC_SEQ_CST);
  return gs_real.cuDeviceGetMemPool(&request->handle, gs_device_of(device)) == CUDA_SUCCESS;
}

/* Allocates from a pool that is not charged here. False: another pool has become the current one. */
static bool allocate_free_of_charge(const struct request *request, int device, CUresult *result) {
  CUdevice elsewhere;
  if (request->bytes > 0 && pool_elsewhere(request->handle, &elsewhere)) {
    *result = gs_refuse_elsewhere(elsewhere);
    return true;
  }
  if (request->named) {
    *result = gs_call(request->call);
    return true;
  }
  gs_lock(&gs_process->alloc_lock[device]);
  bool other = moved(request, device);
  if (!other)
    *result = gs_call(request->call);
  gs_unlock(&gs_process->alloc_lock[device]);
  return !other;
}

CUresult gs_do_pool_alloc(const struct gs_call *call, CUdeviceptr *address, size_t bytes, bool named, CUmemoryPool pool,
                          CUstream stream) {
  struct request request = {
      .call = call, .address = address, .bytes = bytes, .handle = pool, .named = named, .stream = stream};
  CUresult result;
  if (!address || (named && !pool) || captures(stream))
    return gs_call(call);
  int device = named ? GS_NO_DEVICE : gs_stream_device(stream);
  for (;;) {
    if (!named && !current_pool(&request, device))
      return gs_call(call);
    switch (gs_pool_announce((uintptr_t)request.handle, &request.pool, &request.ordinal)) {
      case GS_POOL_ANNOUNCED:
        if (allocate(&request, &result))
          return gs_refused(result);
        break;
      case GS_POOL_FREE_OF_CHARGE:
        if (allocate_free_of_charge(&request, device, &result))
          return result;
        break;
      case GS_POOL_FULL_TABLES: return CUDA_ERROR_OUT_OF_MEMORY;
      default:
        if (!room_for_pool())
          return CUDA_ERROR_OUT_OF_MEMORY;
        if (!meet(request.handle) && allocate_free_of_charge(&request, device, &result))
          return result;
    }
  }
}

/* The device that is charged for a pool. Managed memory may have no preferred location, or one that it can leave: it is
 * charged to the preferred device, or else to the current one or, without one, to device 0. */
static int payer(const CUmemLocation *place, bool managed) {
  if (place->type == CU_MEM_LOCATION_TYPE_DEVICE)
    return gs_device_ordinal(place->id);
  int current = managed ? gs_current_device() : GS_NO_DEVICE;
  return managed && current == GS_NO_DEVICE ? 0 : current;
}

/* Threads that see the handle before this call has returned wait for the lock in `meet`. */
static CUresult create(CUmemoryPool *pool, const CUmemPoolProps *props, bool managed) {
  CUdevice other;
  gs_lock(&gs_process->making_pools);
  CUresult result = gs_real.cuMemPoolCreate(pool, props);
  if (result == CUDA_SUCCESS && gs_place_elsewhere(&props->location, 1, &other)) {
    gs_real.cuMemPoolDestroy(*pool);
    result = gs_refuse_elsewhere(other);
  } else if (result == CUDA_SUCCESS) {
    gs_pool_made((uintptr_t)*pool, payer(&props->location, managed), props->maxSize);
  }
  gs_unlock(&gs_process->making_pools);
  return result;
}

CUresult gs_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolCreate(pool, poolProps) : result;
  bool managed = poolProps && poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (pool && managed && gs_managed_refused())
    return CUDA_ERROR_NOT_SUPPORTED;
  return room_for_pool() ? create(pool, poolProps, managed) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gs_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                               CUmemAllocationHandleType handleType, unsigned long long flags) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags)
                                  : result;
  if (!room_for_pool())
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_lock(&gs_process->making_pools);
  result = gs_real.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags);
  if (result == CUDA_SUCCESS) /* the exporter pays */
    gs_pool_made((uintptr_t)*pool_out, GS_NO_DEVICE, 0);
  gs_unlock(&gs_process->making_pools);
  return result;
}

/* Around a call after which another pool may be the device's current one. */
static void begin_change(int ordinal) {
  if (ordinal != GS_NO_DEVICE)
    gs_lock(&gs_process->alloc_lock[ordinal]);
}

static void end_change(int ordinal) {
  if (ordinal == GS_NO_DEVICE)
    return;
  __atomic_fetch_add(&gs_process->pool_changes[ordinal], 1, __ATOMIC_SEQ_CST);
  gs_unlock(&gs_process->alloc_lock[ordinal]);
}

CUresult gs_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuDeviceSetMemPool(dev, pool) : result;
  int ordinal = gs_device_ordinal(dev);
  begin_change(ordinal);
  result = gs_real.cuDeviceSetMemPool(dev, pool);
  end_change(ordinal);
  return result;
}

CUresult gs_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemSetMemPool(location, type, pool) : result;
  bool device = location && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  int ordinal = device ? gs_device_ordinal(location->id) : GS_NO_DEVICE;
  begin_change(ordinal);
  result = gs_real.cuMemSetMemPool(location, type, pool);
  end_change(ordinal);
  return result;
}

CUresult gs_cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result;
  struct gs_pool known;
  struct gs_departure departure;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolDestroy(pool) : result;
  if (!gs_pool_named((uintptr_t)pool, &known))
    return gs_real.cuMemPoolDestroy(pool);
  gs_pool_departs(&departure, &known);
  begin_change(known.ordinal); /* it may be the current one */
  result = gs_real.cuMemPoolDestroy(pool);
  end_change(known.ordinal);
  gs_pool_departed(&departure, result == CUDA_SUCCESS);
  if (result != CUDA_SUCCESS && known.ordinal != GS_NO_DEVICE)
    gs_pool_settle(known.number, known.ordinal);
  return result;
}

CUresult gs_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  CUresult result;
  struct gs_pool known;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolTrimTo(pool, minBytesToKeep) : result;
  bool charged = gs_pool_named((uintptr_t)pool, &known) && known.ordinal != GS_NO_DEVICE;
  result = gs_real.cuMemPoolTrimTo(pool, minBytesToKeep);
  if (charged)
    gs_pool_yielded(&known);
  return result;
}

CUresult gs_do_pool_attribute(const struct gs_call *call, CUmemoryPool pool, CUmemPool_attribute attribute) {
  struct gs_pool known;
  bool charged = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && gs_pool_named((uintptr_t)pool, &known) &&
                 known.ordinal != GS_NO_DEVICE;
  CUresult result = gs_call(call);
  if (charged)
    gs_pool_yielded(&known);
  return result;
}

/* Pools by place and kind of memory, since CUDA 13. */
CUresult gs_do_get_pool(const struct gs_call *call, CUmemoryPool *pool, const CUmemLocation *location,
                        CUmemAllocationType type) {
  if (pool && location && type == CU_MEM_ALLOCATION_TYPE_MANAGED && gs_managed_refused())
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!room_for_pool())
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = gs_call(call);
  if (result == CUDA_SUCCESS && type == CU_MEM_ALLOCATION_TYPE_MANAGED && location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    gs_pool_met((uintptr_t)*pool, payer(location, true), 0);
  return result;
}
