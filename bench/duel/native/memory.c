/* Memory over the limit: two threads on one object, objects that are shared, and ends. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "duel.h"

enum { BLOCK = 64 * MIB, CHUNK = 32 * MIB };

static CUmemAllocationProp device_memory(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return prop;
}

static CUdeviceptr address(void) {
  CUdeviceptr at;
  MUST(cuMemAddressReserve(&at, BLOCK, 0, 0, 0));
  return at;
}

/* ---- races: one thread begins a round, another takes part in it ---- */

static uint32_t turn;
static void (*against)(void);

static void *opponent(void *unused) {
  MUST(cuCtxSetCurrent(duel.context));
  for (uint32_t seen = 0;; seen++) {
    while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) == seen) {
    }
    against();
  }
  return unused;
}

static size_t free_now(void) {
  size_t free_bytes, total;
  MUST(cuMemGetInfo_v2(&free_bytes, &total));
  return free_bytes;
}

/* Nearly all of the limit is taken before, so that little that is not charged shows. */
static void race(void (*other)(void)) {
  CUdeviceptr at;
  while (free_now() > 4 * (size_t)BLOCK)
    MUST(cuMemAlloc_v2(&at, BLOCK));
  against = other;
  thread(opponent, NULL);
  begin();
}

/* The opponent acts in the next few microseconds, sooner or later by the round. */
static void go(void) {
  static volatile unsigned spent;
  unsigned rounds = __atomic_add_fetch(&turn, 1, __ATOMIC_RELEASE);
  for (unsigned i = 0; i < rounds % 64 * 8; i++)
    spent++;
}

static CUmemGenericAllocationHandle handle;
static CUdeviceptr mapped;

/* Not handed to MUST: over the limit, or in the wrong moment, they fail, and that is right. */
static bool made(CUmemGenericAllocationHandle *out) {
  CUmemAllocationProp prop = device_memory();
  if (cuMemCreate(out, BLOCK, &prop, 0) == CUDA_SUCCESS)
    return true;
  sleep_ns(MS);
  return false;
}

static void release_handle(void) { cuMemRelease(handle); }

/* What got mapped while its handle was released stays, where nothing was charged for it; else the next round begins
 * with the same memory. */
static void release_map(void) {
  CUdeviceptr at = address();
  race(release_handle);
  for (;;) {
    size_t before = free_now();
    if (!made(&handle))
      continue;
    go();
    if (cuMemMap(at, BLOCK, 0, handle, 0) != CUDA_SUCCESS)
      continue;
    sleep_ns(50 * US);
    if (free_now() >= before)
      at = address();
    else
      MUST(cuMemUnmap(at, BLOCK));
  }
}

static void unmap(void) { cuMemUnmap(mapped, BLOCK); }

/* The handle of a mapping is retained while it is unmapped; then it is all that keeps the memory. */
static void retain_unmap(void) {
  mapped = address();
  race(unmap);
  for (;;) {
    CUmemGenericAllocationHandle retained;
    size_t before = free_now();
    if (!made(&handle))
      continue;
    MUST(cuMemMap(mapped, BLOCK, 0, handle, 0));
    MUST(cuMemRelease(handle));
    go();
    bool has = cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)mapped) == CUDA_SUCCESS;
    sleep_ns(50 * US);
    cuMemUnmap(mapped, BLOCK);
    if (has && free_now() < before)
      MUST(cuMemRelease(retained));
  }
}

static CUmemoryPool pool;
static void destroy_pool(void) { cuMemPoolDestroy(pool); }

static CUmemoryPool new_pool(void) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
  CUmemoryPool made_pool;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemPoolCreate(&made_pool, &props));
  return made_pool;
}

/* An allocation from a pool that is being destroyed. */
static void pool_destroy(void) {
  CUstream stream = new_stream();
  race(destroy_pool);
  for (;;) {
    CUdeviceptr at;
    size_t before = free_now();
    pool = new_pool();
    go();
    bool has = cuMemAllocFromPoolAsync(&at, BLOCK, pool, stream) == CUDA_SUCCESS;
    sleep_ns(50 * US);
    if (has && free_now() < before) {
      MUST(cuMemFreeAsync(at, stream));
      MUST(cuStreamSynchronize(stream));
    }
  }
}

/* ---- shares of one object ---- */

/* Exported, imported in the same process, the original released, the import mapped. */
static void export_import(void) {
  begin();
  for (;;) {
    CUmemGenericAllocationHandle import;
    CUdeviceptr at;
    int file;
    if (!made(&handle))
      continue;
    MUST(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemImportFromShareableHandle(&import, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    MUST(cuMemRelease(handle));
    at = address();
    MUST(cuMemMap(at, BLOCK, 0, import, 0));
    MUST(cuMemRelease(import));
  }
}

/* Many references of one handle, then as many releases but one; the mapping goes first. */
static void references(void) {
  begin();
  for (;;) {
    CUmemGenericAllocationHandle again;
    CUdeviceptr at = address();
    if (!made(&handle)) {
      MUST(cuMemAddressFree(at, BLOCK));
      continue;
    }
    MUST(cuMemMap(at, BLOCK, 0, handle, 0));
    for (int i = 0; i < 3; i++)
      MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
    MUST(cuMemUnmap(at, BLOCK));
    for (int i = 0; i < 3; i++)
      MUST(cuMemRelease(handle));
  }
}

/* ---- in the order of streams ---- */

/* Freed in a stream that is held back: the memory is still there when the next is taken. */
static void async_free(void) {
  CUstream stream = new_stream(), other = new_stream();
  begin();
  for (;;) {
    CUdeviceptr at;
    if (cuMemAllocAsync(&at, BLOCK, stream) == CUDA_SUCCESS) {
      spin(stream, 2 * MS);
      MUST(cuMemFreeAsync(at, stream));
    }
    if (cuMemAllocAsync(&at, BLOCK / 2, other) == CUDA_SUCCESS)
      MUST(cuMemFreeAsync(at, other));
    CUdeviceptr plain;
    if (cuMemAlloc_v2(&plain, BLOCK) == CUDA_SUCCESS && cuMemAlloc_v2(&at, BLOCK) == CUDA_SUCCESS)
      MUST(cuMemFree_v2(plain));
  }
}

/* Graphs whose memory comes when they are launched. */
static void graph_memory(void) {
  CUstream stream = new_stream();
  begin();
  for (;;) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = BLOCK};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec instance;
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    if (cuGraphInstantiateWithFlags(&instance, graph, 0) == CUDA_SUCCESS)
      cuGraphLaunch(instance, stream);
    cuStreamSynchronize(stream);
    cuGraphDestroy(graph);
  }
}

/* ---- every way at once ---- */

static void *takes(void *number) {
  uintptr_t kind = (uintptr_t)number;
  MUST(cuCtxSetCurrent(duel.context));
  CUstream stream = new_stream();
  for (;;) {
    CUdeviceptr at = 0;
    CUarray array = NULL;
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 4096, .Height = 4096, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    switch (kind % 4) {
      case 0: cuMemAlloc_v2(&at, CHUNK); break;
      case 1: cuMemAllocManaged(&at, CHUNK, 1); break;
      case 2: cuMemAllocAsync(&at, CHUNK, stream); break;
      default: cuArray3DCreate_v2(&array, &shape);
    }
    sleep_ns(50 * US);
    if (at)
      cuMemFree_v2(at);
    if (array)
      cuArrayDestroy(array);
  }
  return NULL;
}

static void fill_up(void) {
  CUdeviceptr at;
  while (cuMemAlloc_v2(&at, BLOCK) == CUDA_SUCCESS) {
  }
}

static void every_way(void) {
  CUdeviceptr at;
  size_t free_bytes, total;
  MUST(cuMemGetInfo_v2(&free_bytes, &total));
  for (size_t left = free_bytes; left > 4 * (size_t)BLOCK; left -= BLOCK)
    MUST(cuMemAlloc_v2(&at, BLOCK));
  for (uintptr_t i = 0; i < 8; i++)
    thread(takes, (void *)i);
  begin();
  for (;;)
    sleep_ns(1000 * (uint64_t)MS);
}

/* ---- processes ---- */

static void child(bool dies) {
  if (fork() != 0)
    return;
  start(0);
  fill_up();
  if (dies)
    kill(getpid(), SIGKILL);
  for (;;)
    fill_up();
}

/* Four processes fill the grant at once, and each is killed and replaced. */
static void processes(void) {
  for (int i = 0; i < 4; i++)
    child(true);
  begin();
  for (;;)
    if (wait(NULL) > 0)
      child(true);
}

/* Contexts take memory by themselves. */
static void contexts(void) {
  begin();
  for (;;) {
    CUcontext context;
    if (cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS)
      sleep_ns(MS);
    fill_up();
  }
}

/* Kernels' stacks and heaps are the driver's to take. */
static void limits(void) {
  CUdeviceptr at;
  begin();
  for (size_t bytes = 1024;; bytes = bytes < 64 * 1024 ? bytes * 2 : 1024) {
    while (cuMemAlloc_v2(&at, CHUNK) == CUDA_SUCCESS) {
    }
    cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes);
    cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, bytes * 8192);
    cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, bytes * 4096);
    cuMemFree_v2(at);
  }
}

/* No memory for the books of allocations: what cannot be written down must not be given. */
static void no_books(void) {
  grow_heap();
  /* room for the addresses of the limit itself, so that the driver can give what it is asked for */
  struct rlimit limit = {address_space() + (UINT64_C(6) << 30), RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
  begin();
  for (;;) {
    CUdeviceptr at;
    if (cuMemAlloc_v2(&at, 64 * 1024) != CUDA_SUCCESS)
      sleep_ns(MS);
  }
}

const struct evasion memory_evasions[] = {
    {.name = "release-map", .about = "cuMemRelease against cuMemMap of one handle", .run = release_map},
    {.name = "retain-unmap", .about = "cuMemRetainAllocationHandle against cuMemUnmap", .run = retain_unmap},
    {.name = "pool-destroy", .about = "cuMemPoolDestroy against cuMemAllocFromPoolAsync", .run = pool_destroy},
    {.name = "export-import",
     .about = "exported, imported in the same process, released, mapped",
     .run = export_import},
    {.name = "references", .about = "a handle with many references, mapped and unmapped", .run = references},
    {.name = "async-free", .about = "memory freed in streams that still run", .run = async_free},
    {.name = "graph-memory", .about = "graphs that allocate and never free", .run = graph_memory},
    {.name = "every-way", .about = "eight threads, four kinds of memory, near the limit", .run = every_way},
    {.name = "memory-processes",
     .about = "four processes fill the grant and are killed, again and again",
     .run = processes,
     .bare = true},
    {.name = "contexts", .about = "contexts in what is left", .run = contexts},
    {.name = "limits", .about = "stacks and heaps in what is left", .run = limits},
    {.name = "no-books", .about = "many small blocks while the address space may not grow", .run = no_books},
    {0},
};
