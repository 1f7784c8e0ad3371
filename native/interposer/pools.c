/* Memory pools. A pool's memory is what it has reserved from the device, not what the program holds of it: the charge follows
 * the driver's own figure. Before an allocation the most it can make the pool grow is reserved; after it, the growth is known. */
#include "books.h"
#include "device.h"

enum {
  POOL_STEP = 33554432, /* drivers grow a pool by multiples of 32 MiB */
  POOL_RESERVED_CURRENT = 5, /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
  POOL_USED_CURRENT = 7,
  POOL_DESTROYED = 1, /* gs_entry.flags: ends with its last block */
  POOLS_AT_ONCE = 64
};

static uint64_t attribute(CUmemoryPool pool, int which) {
  cuuint64_t value = 0;
  return gs_real.cuMemPoolGetAttribute(pool, which, &value) == CUDA_SUCCESS ? value : 0;
}

/* ---- with the device's pool lock held --------------------------------------------------------------------------------------- */

static uint64_t charged_for(CUmemoryPool pool) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, (uintptr_t)pool);
  uint64_t bytes = entry ? entry->bytes : 0;
  gs_book_unlock();
  return bytes;
}

/* Makes the charge of a pool what it has reserved. spare: bytes reserved beforehand for its growth, used up first and the rest
 * given back. False: the pool grew by more than the grant has; the charge is then short until it shrinks. */
static bool settle(CUmemoryPool pool, int ordinal, uint64_t spare) {
  uint64_t reserved = attribute(pool, POOL_RESERVED_CURRENT), charged = charged_for(pool) + spare;
  bool fits = reserved <= charged || gs_reserve(ordinal, reserved - charged) == 0;
  uint64_t keep = fits ? reserved : charged;
  if (keep < charged)
    gs_give_back(ordinal, charged - keep);
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, (uintptr_t)pool);
  if (entry)
    entry->bytes = keep;
  gs_book_unlock();
  return fits;
}

static void settle_device(int ordinal) {
  uint64_t pools[POOLS_AT_ONCE];
  unsigned count = 0;
  uint32_t at = 0;
  gs_book_lock();
  for (struct gs_entry *entry; count < POOLS_AT_ONCE && (entry = gs_book_next(GS_BOOK_POOL, &at));)
    if (entry->ordinal == ordinal && !(entry->flags & POOL_DESTROYED))
      pools[count++] = entry->key;
  gs_book_unlock();
  for (unsigned i = 0; i < count; i++)
    settle((CUmemoryPool)(uintptr_t)pools[i], ordinal, 0);
}

/* Reserves for the growth that `bytes` more may cause. Gives what was reserved; 0 where the pool has room without growing.
 * False: neither. */
static bool prepare(CUmemoryPool pool, CUstream stream, int ordinal, uint64_t bytes, uint64_t *spare) {
  uint64_t bound = bytes > UINT64_MAX - POOL_STEP ? UINT64_MAX : (bytes + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
  *spare = bound;
  if (gs_reserve(ordinal, bound) == 0)
    return true;
  settle_device(ordinal);
  if (gs_reserve(ordinal, bound) == 0)
    return true;
  *spare = 0;
  if (attribute(pool, POOL_RESERVED_CURRENT) >= attribute(pool, POOL_USED_CURRENT) + bytes)
    return true;
  /* what was freed but is still in use by queued work comes back by waiting, as drivers do when a device is full */
  if (gs_real.cuStreamSynchronize(stream) == CUDA_SUCCESS && gs_real.cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS) {
    settle_device(ordinal);
    *spare = bound;
    if (gs_reserve(ordinal, bound) == 0)
      return true;
    *spare = 0;
    return attribute(pool, POOL_RESERVED_CURRENT) >= attribute(pool, POOL_USED_CURRENT) + bytes;
  }
  return false;
}

/* ---- which pool -------------------------------------------------------------------------------------------------------------- */

/* The entry's ordinal: GS_NO_DEVICE for pools whose memory is not this grant's to pay. A pool first seen here is a device's
 * default pool or was imported. */
static int pool_ordinal(CUmemoryPool pool) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, (uintptr_t)pool);
  int ordinal = entry ? entry->ordinal : GS_NO_DEVICE;
  gs_book_unlock();
  if (entry)
    return ordinal;
  for (CUdevice device = 0; device < GS_MAX_DEVICES && ordinal == GS_NO_DEVICE; device++) {
    CUmemoryPool standard;
    int candidate = gs_device_ordinal(device);
    if (candidate != GS_NO_DEVICE && gs_real.cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS && standard == pool)
      ordinal = candidate;
  }
  gs_book_lock();
  if (!gs_book_find(GS_BOOK_POOL, (uintptr_t)pool)) {
    gs_book_add(&(struct gs_entry){.key = (uintptr_t)pool, .kind = GS_BOOK_POOL, .ordinal = ordinal});
    if (ordinal != GS_NO_DEVICE)
      __atomic_fetch_add(&gs_process->pools[ordinal], 1, __ATOMIC_RELAXED);
  }
  gs_book_unlock();
  return ordinal;
}

static void block_made(CUdeviceptr address, CUmemoryPool pool) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, (uintptr_t)pool);
  if (entry)
    entry->count++;
  gs_book_add(&(struct gs_entry){.key = address, .kind = GS_BOOK_BLOCK, .ordinal = GS_NO_DEVICE, .link = (uintptr_t)pool});
  gs_book_unlock();
}

void gs_pool_block_freed(uint64_t address) {
  struct gs_entry block, ended = {.ordinal = GS_NO_DEVICE};
  if (!gs_book_take(GS_BOOK_BLOCK, address, &block))
    return;
  gs_book_lock();
  struct gs_entry *pool = gs_book_find(GS_BOOK_POOL, block.link);
  if (pool && pool->count > 0 && --pool->count == 0 && (pool->flags & POOL_DESTROYED)) {
    ended = *pool;
    gs_book_remove(pool);
  }
  gs_book_unlock();
  gs_give_back(ended.ordinal, ended.bytes);
}

void gs_memory_synced(int ordinal) {
  if (ordinal < 0 || __atomic_load_n(&gs_process->pools[ordinal], __ATOMIC_RELAXED) == 0)
    return;
  uint32_t *lock = &gs_process->pool_lock[ordinal], free = 0;
  if (!__atomic_compare_exchange_n(lock, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return; /* whoever holds it settles */
  settle_device(ordinal);
  gs_unlock(lock);
}

void gs_pools_context_gone(int ordinal) { gs_memory_synced(ordinal); }

/* ---- handlers ---------------------------------------------------------------------------------------------------------------- */

struct request {
  CUdeviceptr *address;
  size_t bytes;
  CUmemoryPool pool;
  CUstream stream;
  /* the driver's function, with the pool or, where the program named none, without */
  CUresult (*plain)(CUdeviceptr *address, size_t bytes, CUstream stream);
  CUresult (*from)(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);
};

static CUresult call(const struct request *request) {
  if (request->from)
    return request->from(request->address, request->bytes, request->pool, request->stream);
  return request->plain(request->address, request->bytes, request->stream);
}

/* A stream that captures gets a graph's allocation node: its memory comes with the graph's launch. */
static bool captures(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = gs_real.cuStreamIsCapturing(stream, &status);
  if (result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_NOT_SUPPORTED)
    return false; /* a driver that knows no captures */
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult allocate(struct request *request) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? call(request) : result;
  int device = gs_stream_device(request->stream);
  if (captures(request->stream) || (!request->pool && device == GS_NO_DEVICE))
    return call(request);
  if (!request->pool && gs_real.cuDeviceGetMemPool(&request->pool, gs_device_of(device)) != CUDA_SUCCESS)
    return call(request);
  if (!gs_book_room(2))
    return CUDA_ERROR_OUT_OF_MEMORY;
  int ordinal = pool_ordinal(request->pool);
  if (ordinal == GS_NO_DEVICE)
    return call(request);
  uint64_t spare;
  uint32_t *lock = &gs_process->pool_lock[ordinal];
  gs_lock(lock);
  result = prepare(request->pool, request->stream, ordinal, request->bytes, &spare) ? call(request) : CUDA_ERROR_OUT_OF_MEMORY;
  bool fits = settle(request->pool, ordinal, spare);
  if (result == CUDA_SUCCESS && !fits) {
    /* its free blocks were too small after all, and it grew over the limit */
    gs_real.cuMemFreeAsync(*request->address, request->stream);
    gs_real.cuStreamSynchronize(request->stream);
    gs_real.cuMemPoolTrimTo(request->pool, 0);
    settle(request->pool, ordinal, 0);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result == CUDA_SUCCESS)
    block_made(*request->address, request->pool);
  gs_unlock(lock);
  return result;
}

/* The _ptsz functions mean the calling thread's stream by NULL. */
static CUstream per_thread(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

CUresult gs_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
  return allocate(&(struct request){dptr, bytesize, NULL, hStream, gs_real.cuMemAllocAsync, NULL});
}

CUresult gs_cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
  return allocate(&(struct request){dptr, bytesize, NULL, per_thread(hStream), gs_real.cuMemAllocAsync_ptsz, NULL});
}

CUresult gs_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  return allocate(&(struct request){dptr, bytesize, pool, hStream, NULL, gs_real.cuMemAllocFromPoolAsync});
}

CUresult gs_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  return allocate(&(struct request){dptr, bytesize, pool, per_thread(hStream), NULL, gs_real.cuMemAllocFromPoolAsync_ptsz});
}

static CUresult free_async(CUdeviceptr address, CUstream stream, CUresult (*free)(CUdeviceptr address, CUstream stream)) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? free(address, stream) : result;
  struct gs_entry entry;
  bool ours = gs_book_take(GS_BOOK_POINTER, address, &entry);
  result = free(address, stream);
  if (ours && result == CUDA_SUCCESS)
    gs_give_back(entry.ordinal, entry.bytes);
  else if (ours)
    gs_book_put(&entry);
  else if (result == CUDA_SUCCESS)
    gs_pool_block_freed(address);
  return result;
}

CUresult gs_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) { return free_async(dptr, hStream, gs_real.cuMemFreeAsync); }

CUresult gs_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return free_async(dptr, hStream, gs_real.cuMemFreeAsync_ptsz);
}

CUresult gs_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolCreate(pool, poolProps) : result;
  if (!gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemPoolCreate(pool, poolProps);
  if (result != CUDA_SUCCESS)
    return result;
  bool device = poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  int ordinal = device ? gs_device_ordinal(poolProps->location.id) : GS_NO_DEVICE;
  gs_book_put(&(struct gs_entry){.key = (uintptr_t)*pool, .kind = GS_BOOK_POOL, .ordinal = ordinal});
  if (ordinal != GS_NO_DEVICE)
    __atomic_fetch_add(&gs_process->pools[ordinal], 1, __ATOMIC_RELAXED);
  return result;
}

CUresult gs_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle, CUmemAllocationHandleType handleType,
                                               unsigned long long flags) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags) : result;
  if (!gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags);
  if (result == CUDA_SUCCESS) /* the exporter pays */
    gs_book_put(&(struct gs_entry){.key = (uintptr_t)*pool_out, .kind = GS_BOOK_POOL, .ordinal = GS_NO_DEVICE});
  return result;
}

CUresult gs_cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemPoolDestroy(pool) : result;
  struct gs_entry ended = {.ordinal = GS_NO_DEVICE};
  int ordinal = pool_ordinal(pool);
  uint32_t *lock = ordinal == GS_NO_DEVICE ? NULL : &gs_process->pool_lock[ordinal];
  if (lock)
    gs_lock(lock);
  result = gs_real.cuMemPoolDestroy(pool);
  if (result == CUDA_SUCCESS) {
    gs_book_lock();
    struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, (uintptr_t)pool);
    if (entry && entry->count == 0) {
      ended = *entry;
      gs_book_remove(entry);
    } else if (entry) {
      entry->flags |= POOL_DESTROYED;
    }
    gs_book_unlock();
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
