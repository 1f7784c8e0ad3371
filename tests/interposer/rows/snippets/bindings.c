/* What keeps memory alive other than its handle: exports to other processes, and bindings to multicast objects. */
#include <unistd.h>

#include "rows.h"

void row_cuMemExportToShareableHandle(struct rows *r) {
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int fd = -1;
  done(r, start(r)->cuMemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  expect(r, fd >= 0, "no descriptor");
  meet(r, "allocated");
  close(fd);
  need(r, cuMemRelease(made), "release it");
  meet(r, "freed");
}

void row_cuIpcGetMemHandle(struct rows *r) {
  CUipcMemHandle name, nothing = {{0}};
  CUdeviceptr at = 0;
  memset(&name, 0, sizeof name);
  context(r);
  need(r, cuMemAlloc_v2(&at, BYTES), "memory");
  done(r, start(r)->cuIpcGetMemHandle(&name, at));
  expect(r, memcmp(&name, &nothing, sizeof name) != 0, "no name");
  meet(r, "allocated");
  need(r, cuMemFree_v2(at), "free it");
  meet(r, "freed");
}

void row_cuIpcCloseMemHandle(struct rows *r) {
  struct exporter other = exporter_start(r, "memory");
  CUipcMemHandle handle;
  CUdeviceptr at = 0;
  context(r);
  memcpy(&handle, other.bytes, sizeof handle);
  need(r, cuIpcOpenMemHandle_v2(&at, handle, 1), "their memory");
  meet(r, "allocated");
  done(r, start(r)->cuIpcCloseMemHandle(at));
  expect(r, cuMemFree_v2(at) != CUDA_SUCCESS, "it is still there");
  meet(r, "freed");
  exporter_end(&other);
}

/* ---- multicast ---- */

static CUmemGenericAllocationHandle team(struct rows *r) {
  const CUmulticastObjectProp how = {.numDevices = 1, .size = 4 * GRANULE};
  CUmemGenericAllocationHandle made = 0;
  context(r);
  need(r, cuMulticastCreate(&made, &how), "a multicast object");
  return made;
}

static CUmemGenericAllocationHandle whole_team(struct rows *r) {
  CUmemGenericAllocationHandle made = team(r);
  need(r, cuMulticastAddDevice(made, r->device), "the device in it");
  return made;
}

void row_cuMulticastAddDevice(struct rows *r) {
  CUmemGenericAllocationHandle made = team(r);
  done(r, start(r)->cuMulticastAddDevice(made, r->device));
  need(r, cuMemRelease(made), "release it");
}

/* The binding alone keeps the memory, and the object the binding. */
static void bound(struct rows *r, CUmemGenericAllocationHandle made, CUmemGenericAllocationHandle memory_) {
  need(r, cuMemRelease(memory_), "release the memory");
  meet(r, "allocated");
  need(r, cuMemRelease(made), "and what keeps it");
  meet(r, "freed");
}

void row_cuMulticastBindMem_v2(struct rows *r) {
  CUmemGenericAllocationHandle made = whole_team(r), memory_ = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  done(r, start(r)->cuMulticastBindMem_v2(made, r->device, 0, memory_, 0, GRANULE, 0));
  bound(r, made, memory_);
}

static CUdeviceptr mapped(struct rows *r, CUmemGenericAllocationHandle memory_) {
  CUdeviceptr at = 0;
  need(r, cuMemAddressReserve(&at, GRANULE, 0, 0, 0), "addresses");
  need(r, cuMemMap(at, GRANULE, 0, memory_, 0), "map it");
  return at;
}

static void unmapped(struct rows *r, CUdeviceptr at) {
  need(r, cuMemUnmap(at, GRANULE), "unmap it");
  need(r, cuMemAddressFree(at, GRANULE), "free the addresses");
}

void row_cuMulticastBindAddr_v2(struct rows *r) {
  CUmemGenericAllocationHandle made = whole_team(r), memory_ = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  CUdeviceptr at = mapped(r, memory_);
  done(r, start(r)->cuMulticastBindAddr_v2(made, r->device, 0, at, GRANULE, 0));
  unmapped(r, at);
  bound(r, made, memory_);
}

void row_cuMulticastUnbind(struct rows *r) {
  CUmemGenericAllocationHandle made = whole_team(r), memory_ = physical(r, CU_MEM_HANDLE_TYPE_NONE);
  need(r, cuMulticastBindMem(made, 0, memory_, 0, GRANULE, 0), "bind it");
  need(r, cuMemRelease(memory_), "release the memory");
  meet(r, "allocated");
  done(r, start(r)->cuMulticastUnbind(made, r->device, 0, GRANULE));
  meet(r, "freed");
  need(r, cuMemRelease(made), "release the object");
}

/* ---- external memory ---- */

void row_cuDestroyExternalMemory(struct rows *r) {
  CUmemGenericAllocationHandle made = physical(r, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC about = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = GRANULE};
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.size = BYTES};
  CUexternalMemory imported = NULL;
  CUdeviceptr at = 0;
  need(r, cuMemExportToShareableHandle(&about.handle.fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
       "a descriptor");
  need(r, cuImportExternalMemory(&imported, &about), "import it");
  need(r, cuExternalMemoryGetMappedBuffer(&at, imported, &part), "a buffer of it");
  meet(r, "allocated");
  need(r, cuMemFree_v2(at), "free the buffer");
  done(r, start(r)->cuDestroyExternalMemory(imported));
  need(r, cuMemRelease(made), "release the memory");
  meet(r, "freed");
}
