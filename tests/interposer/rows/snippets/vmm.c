/* Physical memory, address ranges, mappings. Physical memory is charged until its last handle and its last mapping are
 * gone. */
#include <unistd.h>

#include "rows.h"

enum { READ_WRITE = 3, POSIX_FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };

static CUmemAllocationProp on_device_memory(CUmemAllocationHandleType handles) {
  return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .requestedHandleTypes = handles,
                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
}

static CUdeviceptr space(struct rows *r) {
  CUdeviceptr at = 0;
  context(r);
  need(r, cuMemAddressReserve(&at, GRANULE, 0, 0, 0), "address space");
  return at;
}

/* Mapped memory that is not writable yet: makes it writable and writes to it. */
static void usable(struct rows *r, CUdeviceptr at) {
  const CUmemAccessDesc mine = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, READ_WRITE};
  need(r, cuMemSetAccess(at, GRANULE, &mine, 1), "access");
  put(r, at, pattern(), BYTES);
  holds(r, at, pattern(), BYTES);
}

static void map(struct rows *r, CUdeviceptr at, CUmemGenericAllocationHandle what) {
  need(r, cuMemMap(at, GRANULE, 0, what, 0), "a mapping");
}

static void unmap(struct rows *r, CUdeviceptr at) {
  need(r, cuMemUnmap(at, GRANULE), "unmap it");
  need(r, cuMemAddressFree(at, GRANULE), "give back the address space");
}

void row_cuMemCreate(struct rows *r) {
  const CUmemAllocationProp how = on_device_memory(CU_MEM_HANDLE_TYPE_NONE);
  CUmemGenericAllocationHandle made = 0;
  context(r);
  if (!done(r, start(r)->cuMemCreate(&made, GRANULE, &how, 0)))
    return;
  meet(r, "allocated");
  CUdeviceptr at = space(r);
  map(r, at, made);
  usable(r, at);
  unmap(r, at);
  need(r, cuMemRelease(made), "release it");
  meet(r, "freed");
}

void row_cuMemRelease(struct rows *r) {
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  CUdeviceptr at = space(r);
  map(r, at, made);
  done(r, start(r)->cuMemRelease(made));
  meet(r, "allocated"); /* by the mapping */
  usable(r, at);
  unmap(r, at);
  meet(r, "freed");
}

void row_cuMemMap(struct rows *r) {
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  CUdeviceptr at = space(r);
  done(r, start(r)->cuMemMap(at, GRANULE, 0, made, 0));
  meet(r, "allocated");
  usable(r, at);
  unmap(r, at);
  need(r, cuMemRelease(made), "release it");
  meet(r, "freed");
}

void row_cuMemUnmap(struct rows *r) {
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  CUdeviceptr at = space(r);
  map(r, at, made);
  need(r, cuMemRelease(made), "release it");
  meet(r, "allocated");
  done(r, start(r)->cuMemUnmap(at, GRANULE));
  meet(r, "freed"); /* the last reference to the memory is gone */
  need(r, cuMemAddressFree(at, GRANULE), "give back the address space");
}

void row_cuMemRetainAllocationHandle(struct rows *r) {
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_NONE), again = 0;
  CUdeviceptr at = space(r);
  map(r, at, made);
  done(r, start(r)->cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
  expect(r, again == made, "another handle");
  need(r, cuMemRelease(made), "release the first");
  unmap(r, at);
  meet(r, "allocated"); /* by the second */
  need(r, cuMemRelease(again), "release the second");
  meet(r, "freed");
}

void row_cuMemImportFromShareableHandle(struct rows *r) {
  CUmemGenericAllocationHandle made = physical(r, POSIX_FD), same_memory = 0;
  int fd = -1;
  need(r, cuMemExportToShareableHandle(&fd, made, POSIX_FD, 0), "a descriptor");
  if (done(r, start(r)->cuMemImportFromShareableHandle(&same_memory, (void *)(intptr_t)fd, POSIX_FD))) {
    CUdeviceptr first = space(r), second = space(r);
    map(r, first, made);
    map(r, second, same_memory);
    meet(r, "allocated"); /* charged once */
    usable(r, first);
    const CUmemAccessDesc mine = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, READ_WRITE};
    need(r, cuMemSetAccess(second, GRANULE, &mine, 1), "access");
    holds(r, second, pattern(), BYTES);
    unmap(r, first);
    unmap(r, second);
    need(r, cuMemRelease(same_memory), "release the imported");
  }
  close(fd);
  need(r, cuMemRelease(made), "release it");
  meet(r, "freed");
}

void row_cuMemAddressReserve(struct rows *r) {
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  CUdeviceptr at = 0;
  done(r, start(r)->cuMemAddressReserve(&at, GRANULE, 0, 0, 0));
  meet(r, "allocated"); /* only physical memory */
  map(r, at, made);
  usable(r, at);
  unmap(r, at);
  need(r, cuMemRelease(made), "release it");
  meet(r, "freed");
}

void row_cuMemAddressFree(struct rows *r) {
  CUdeviceptr at = space(r);
  meet(r, "allocated");
  done(r, start(r)->cuMemAddressFree(at, GRANULE));
  meet(r, "freed");
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuMemAddressFree(at, GRANULE));
}

void row_cuMemSetAccess(struct rows *r) {
  const CUmemAccessDesc mine = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, READ_WRITE};
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  CUdeviceptr at = space(r);
  map(r, at, made);
  done(r, start(r)->cuMemSetAccess(at, GRANULE, &mine, 1));
  usable(r, at);
  unmap(r, at);
  need(r, cuMemRelease(made), "release it");
}

void row_cuMemGetAccess(struct rows *r) {
  const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  CUdeviceptr at = space(r);
  unsigned long long flags = 0;
  map(r, at, made);
  usable(r, at);
  done(r, start(r)->cuMemGetAccess(&flags, &here, at));
  expect(r, flags == READ_WRITE, "other rights");
  unmap(r, at);
  need(r, cuMemRelease(made), "release it");
}

/* Layout of cuda.h for a tile of a sparse array mapped to physical memory, with extra room. */
union tile {
  struct {
    int resource_type;
    void *resource[8];
  } about;
  uint64_t room[64];
};

void row_cuMemMapArrayAsync(struct rows *r) {
  union tile none = {.room = {0}};
  void *list = &none;
  CUstream on = given(r);
  r->tentative = true; /* no sparse array to map into */
  done(r, start(r)->cuMemMapArrayAsync(list, 1, on));
}

void row_cuMulticastCreate(struct rows *r) {
  struct {
    unsigned devices;
    size_t size;
    unsigned long long handles, flags;
  } about = {1, GRANULE, POSIX_FD, 0};
  CUmemGenericAllocationHandle made = 0;
  const void *description = &about;
  context(r);
  r->tentative = true; /* needs devices connected by a switch */
  if (done(r, start(r)->cuMulticastCreate(&made, description))) {
    meet(r, "allocated");
    need(r, cuMemRelease(made), "release it");
    meet(r, "freed");
  }
}
