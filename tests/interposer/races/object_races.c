/* object_races THREADS CALLS SEED KINDS: threads make random driver calls on objects that they share, including objects
 * that another thread has destroyed or is about to destroy, until they have made CALLS calls in total. Then all objects
 * are destroyed. KINDS has a letter for each kind of object: Handles and mappings, Multicast, Pointers, Blocks of a
 * pool, Arrays, eXternal memory, memory of a Graph (in lower case). Addresses of all kinds are freed by both cuMemFree
 * and cuMemFreeAsync. Linked with -lcuda, independent of gpushare. Prints "calls succeeded refused", waits for a line,
 * and exits. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_api.h"

enum { MIB = 1 << 20, PLACES = 16, FILES = 4, MAPS = 24, THREADS_MAX = 64, FLOAT = 0x20 };
static const size_t SIZE = (size_t)64 * MIB; /* some thirty of them fill the grant */

/* A new object replaces the object in some place, which is then freed: it may have been freed long ago, and its value
 * may name another object by now. Every live object is in a place. */
static uint64_t handles[PLACES], pointers[PLACES], blocks[PLACES / 4], arrays[PLACES / 4], files[FILES];
static CUdeviceptr base;
static CUmemGenericAllocationHandle team;
static CUcontext context;
static uint64_t wanted, calls, succeeded;
static const char *kinds;

static uint64_t look(const uint64_t *place) { return __atomic_load_n(place, __ATOMIC_SEQ_CST); }
static uint64_t swap(uint64_t *place, uint64_t value) { return __atomic_exchange_n(place, value, __ATOMIC_SEQ_CST); }

static bool done(CUresult result) {
  if (result != CUDA_SUCCESS)
    return false;
  __atomic_fetch_add(&succeeded, 1, __ATOMIC_RELAXED);
  return true;
}

static void put_handle(CUresult result, uint64_t *place, const CUmemGenericAllocationHandle *handle) {
  if (done(result))
    cuMemRelease(swap(place, *handle));
}

static void close_file(uint64_t fd) {
  if (fd)
    close((int)fd);
}

static void share(uint64_t *place, uint64_t *file, bool out) {
  CUmemGenericAllocationHandle handle = 0;
  int fd = -1;
  if (!out)
    put_handle(
        cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)look(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        place, &handle);
  else if (done(cuMemExportToShareableHandle(&fd, look(place), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
    close_file(swap(file, (uint64_t)fd));
}

/* Exports the handle, imports it as external memory, and maps a buffer of that. */
static void map_external(uint64_t *pointer, const uint64_t *handle) {
  const CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = SIZE};
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = SIZE};
  CUexternalMemory memory;
  CUdeviceptr address;
  int fd = -1;
  if (cuMemExportToShareableHandle(&fd, look(handle), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
    return;
  from.handle.fd = fd;
  if (cuImportExternalMemory(&memory, &from) != CUDA_SUCCESS) {
    close(fd);
    return;
  }
  if (done(cuExternalMemoryGetMappedBuffer(&address, memory, &whole)))
    cuMemFree_v2(swap(pointer, address));
  cuDestroyExternalMemory(memory);
}

/* Launches a graph that leaves memory allocated, until its address is freed. */
static void launch_graph(uint64_t *pointer) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
      .bytesize = SIZE};
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec executable;
  if (cuGraphCreate(&graph, 0) != CUDA_SUCCESS)
    return;
  if (cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params) == CUDA_SUCCESS &&
      cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS) {
    if (done(cuGraphLaunch(executable, NULL)))
      cuMemFree_v2(swap(pointer, params.dptr));
    cuGraphExecDestroy(executable);
  }
  cuGraphDestroy(graph);
  cuDeviceGraphMemTrim(0);
}

static void plain(unsigned kind, unsigned at) {
  const CUDA_ARRAY3D_DESCRIPTOR box = {
      .Width = 4096, .Height = SIZE / 4096 / 4, .Format = (CUarray_format)FLOAT, .NumChannels = 1};
  uint64_t *pointer = &pointers[at % PLACES], *block = &blocks[at % (PLACES / 4)], *array = &arrays[at % (PLACES / 4)];
  CUdeviceptr address;
  CUarray made;
  switch (kind) {
    case 17:
      if (done(cuMemAlloc_v2(&address, SIZE)))
        cuMemFree_v2(swap(pointer, address));
      return;
    case 18: done(cuMemFree_v2(look(at % 2 ? block : pointer))); return;
    case 19:
      if (done(cuMemAllocAsync(&address, SIZE, NULL)))
        cuMemFreeAsync(swap(block, address), NULL);
      return;
    case 20: done(cuMemFreeAsync(look(at % 2 ? block : pointer), NULL)); return;
    case 21:
      if (done(cuArray3DCreate_v2(&made, &box)))
        cuArrayDestroy((CUarray)(uintptr_t)swap(array, (uintptr_t)made));
      return;
    case 22: done(cuArrayDestroy((CUarray)(uintptr_t)look(array))); return;
    case 23: map_external(pointer, &handles[at / PLACES % PLACES]); return;
    default: launch_graph(pointer); return;
  }
}

static unsigned pick(unsigned *seed) {
  static const char of[] = "hhhhhhhhhhhhhhmmmppbbaaxg"; /* the kinds, by the case numbers below and in plain() */
  unsigned kind;
  do
    kind = (unsigned)rand_r(seed) % (sizeof of - 1);
  while (!strchr(kinds, of[kind]));
  return kind;
}

static void call(unsigned *seed) {
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  unsigned kind = pick(seed), at = (unsigned)rand_r(seed);
  uint64_t *place = &handles[at % PLACES], *file = &files[at / PLACES % FILES];
  CUdeviceptr map = base + at / PLACES % MAPS * SIZE;
  size_t offset = at / PLACES % 8 * SIZE;
  CUmemGenericAllocationHandle handle = 0;
  switch (kind) {
    case 0:
    case 1:
    case 2: put_handle(cuMemCreate(&handle, SIZE, &prop, 0), place, &handle); return;
    case 3:
    case 4: done(cuMemRelease(look(place))); return;
    case 5:
    case 6:
    case 7: done(cuMemMap(map, SIZE, 0, look(place), 0)); return;
    case 8:
    case 9: done(cuMemUnmap(map, SIZE)); return;
    case 10: put_handle(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)map), place, &handle); return;
    case 11: share(place, file, true); return;
    case 12: share(place, file, false); return;
    case 13: close_file(swap(file, 0)); return;
    case 14: done(cuMulticastBindMem(team, offset, look(place), 0, SIZE, 0)); return;
    case 15: done(cuMulticastBindAddr(team, offset, map, SIZE, 0)); return;
    case 16: done(cuMulticastUnbind(team, 0, offset, SIZE)); return;
    default: plain(kind, at); return;
  }
}

static void *race(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  cuCtxSetCurrent(context);
  while (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) < wanted)
    call(&seed);
  return NULL;
}

static void end_all(void) {
  size_t available, total;
  for (int i = 0; i < PLACES; i++)
    while (cuMemRelease(handles[i]) == CUDA_SUCCESS)
      ;
  for (int i = 0; i < PLACES; i++)
    cuMemFree_v2(pointers[i]);
  for (int i = 0; i < PLACES / 4; i++) {
    cuMemFreeAsync(blocks[i], NULL);
    cuArrayDestroy((CUarray)(uintptr_t)arrays[i]);
  }
  for (int i = 0; i < FILES; i++)
    close_file(files[i]);
  for (unsigned i = 0; i < MAPS; i++)
    cuMemUnmap(base + i * SIZE, SIZE);
  cuMemRelease(team);
  cuCtxSynchronize();
  cuDeviceGraphMemTrim(0);
  cuMemGetInfo_v2(&available, &total); /* makes the interposer look for closed descriptors */
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS_MAX];
  int count = argc == 5 ? atoi(argv[1]) : 0;
  if (count <= 0 || count > THREADS_MAX)
    return 2;
  wanted = strtoull(argv[2], NULL, 10);
  kinds = argv[4];
  unsigned seed = (unsigned)strtoul(argv[3], NULL, 10);
  const CUmulticastObjectProp whole = {.numDevices = 1, .size = 8 * SIZE};
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
      cuMemAddressReserve(&base, MAPS * SIZE, 0, 0, 0) || cuMulticastCreate(&team, &whole) ||
      cuMulticastAddDevice(team, 0))
    return 3;
  for (int i = 0; i < count; i++)
    pthread_create(&threads[i], NULL, race, (void *)(uintptr_t)(seed * THREADS_MAX + (unsigned)i + 1));
  for (int i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
  end_all();
  printf("%llu %llu %llu\n", (unsigned long long)wanted, (unsigned long long)succeeded,
         (unsigned long long)(wanted - succeeded));
  fflush(stdout);
  return getchar() == EOF;
}
