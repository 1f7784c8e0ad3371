/* Memory of another process, which is charged for it: no byte is charged twice. */
#include <sys/eventfd.h>
#include <unistd.h>

#include "rows.h"

enum { POSIX_FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, PEER_ACCESS = 1 /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */ };

/* ---- pools ---- */

/* A pool that may be exported, or an ordinary one if the driver does not support that. */
static CUmemoryPool exportable(struct rows *r) {
  CUmemPoolProps how = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                        .handleTypes = POSIX_FD,
                        .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemoryPool made = NULL;
  context(r);
  if (cuMemPoolCreate(&made, &how) == CUDA_SUCCESS)
    return made;
  how.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  need(r, cuMemPoolCreate(&made, &how), "a pool");
  return made;
}

void row_cuMemPoolExportToShareableHandle(struct rows *r) {
  CUmemoryPool made = exportable(r);
  int fd = -1;
  r->tentative = true;
  if (done(r, start(r)->cuMemPoolExportToShareableHandle(&fd, made, POSIX_FD, 0))) {
    expect(r, fd >= 0, "no descriptor");
    close(fd);
  }
  need(r, cuMemPoolDestroy(made), "destroy the pool");
}

void row_cuMemPoolExportPointer(struct rows *r) {
  CUmemoryPool made = exportable(r);
  CUmemPoolPtrExportData about = {{0}}, nothing = {{0}};
  CUdeviceptr at = 0;
  need(r, cuMemAllocFromPoolAsync(&at, BYTES, made, NULL), "memory of the pool");
  settle(r);
  r->tentative = true;
  if (done(r, start(r)->cuMemPoolExportPointer(&about, at)))
    expect(r, memcmp(&about, &nothing, sizeof about) != 0, "nothing was exported");
  need(r, cuMemFreeAsync(at, NULL), "free it");
  settle(r);
  need(r, cuMemPoolDestroy(made), "destroy the pool");
}

void row_cuMemPoolImportFromShareableHandle(struct rows *r) {
  struct exporter other = exporter_start(r, "pool");
  CUmemoryPool theirs = NULL;
  context(r);
  r->tentative = other.result != CUDA_SUCCESS;
  if (done(r, start(r)->cuMemPoolImportFromShareableHandle(&theirs, (void *)(intptr_t)other.fd, POSIX_FD, 0))) {
    meet(r, "allocated");
    need(r, cuMemPoolDestroy(theirs), "let go of the pool");
    meet(r, "freed");
  }
  exporter_end(&other);
}

void row_cuMemPoolImportPointer(struct rows *r) {
  struct exporter other = exporter_start(r, "pool");
  CUmemPoolPtrExportData about;
  CUmemoryPool theirs = NULL;
  CUdeviceptr at = 0;
  context(r);
  memcpy(&about, other.bytes, sizeof about);
  r->tentative = other.result != CUDA_SUCCESS;
  if (!r->tentative)
    need(r, cuMemPoolImportFromShareableHandle(&theirs, (void *)(intptr_t)other.fd, POSIX_FD, 0), "their pool");
  if (done(r, start(r)->cuMemPoolImportPointer(&at, theirs, &about))) {
    meet(r, "allocated");
    holds(r, at, pattern(), BYTES);
    need(r, cuMemFree_v2(at), "let go of the memory");
    need(r, cuMemPoolDestroy(theirs), "let go of the pool");
    meet(r, "freed");
  }
  exporter_end(&other);
}

/* ---- handles between processes ---- */

void row_cuIpcOpenMemHandle(struct rows *r) {
  struct exporter other = exporter_start(r, "memory");
  CUipcMemHandle handle;
  CUdeviceptr at = 0;
  context(r);
  memcpy(&handle, other.bytes, sizeof handle);
  r->tentative = other.result != CUDA_SUCCESS;
  if (done(r, start(r)->cuIpcOpenMemHandle(&at, handle, PEER_ACCESS))) {
    meet(r, "allocated");
    holds(r, at, pattern(), BYTES);
    need(r, cuIpcCloseMemHandle(at), "close the handle");
    meet(r, "freed");
  }
  exporter_end(&other);
}

void row_cuIpcOpenMemHandle_v2(struct rows *r) {
  struct exporter other = exporter_start(r, "memory");
  CUipcMemHandle handle;
  CUdeviceptr at = 0;
  context(r);
  memcpy(&handle, other.bytes, sizeof handle);
  r->tentative = other.result != CUDA_SUCCESS;
  if (done(r, start(r)->cuIpcOpenMemHandle_v2(&at, handle, PEER_ACCESS))) {
    meet(r, "allocated");
    holds(r, at, pattern(), BYTES);
    need(r, cuIpcCloseMemHandle(at), "close the handle");
    meet(r, "freed");
  }
  exporter_end(&other);
}

/* ---- memory and semaphores of others (graphics): layouts of cuda.h, with room for newer ones ---- */

union external_memory {
  struct {
    int type; /* 1: opaque descriptor */
    union {
      int fd;
      void *room[2];
    } handle;
    unsigned long long size;
    unsigned flags;
  } about;
  uint64_t room[32];
};

union external_buffer {
  struct {
    unsigned long long offset, size;
    unsigned flags;
  } about;
  uint64_t room[32];
};

/* The process's own physical memory and a descriptor of it. */
static union external_memory ours_to_import(struct rows *r, CUmemGenericAllocationHandle *ours) {
  const CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .requestedHandleTypes = POSIX_FD,
                                   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  union external_memory about = {.about = {.type = 1, .size = GRANULE}};
  context(r);
  need(r, cuMemCreate(ours, GRANULE, &how, 0), "physical memory");
  need(r, cuMemExportToShareableHandle(&about.about.handle.fd, *ours, POSIX_FD, 0), "a descriptor");
  r->tentative = true;
  return about;
}

/* The same memory, imported as if it were another process's; NULL if the driver refuses. */
static CUexternalMemory external(struct rows *r, CUmemGenericAllocationHandle *ours) {
  union external_memory about = ours_to_import(r, ours);
  const void *description = &about;
  CUexternalMemory found = NULL;
  /* otherwise the driver owns it */
  if (cuImportExternalMemory(&found, description) != CUDA_SUCCESS)
    close(about.about.handle.fd);
  return found;
}

static void let_external_go(struct rows *r, CUexternalMemory found, CUmemGenericAllocationHandle ours) {
  if (found)
    need(r, cuDestroyExternalMemory(found), "let go of the memory");
  need(r, cuMemRelease(ours), "release it");
  meet(r, "freed");
}

void row_cuImportExternalMemory(struct rows *r) {
  CUmemGenericAllocationHandle ours = 0;
  CUexternalMemory found = NULL;
  union external_memory about = ours_to_import(r, &ours);
  const void *description = &about;
  /* otherwise the driver owns it */
  if (!done(r, start(r)->cuImportExternalMemory(&found, description)))
    close(about.about.handle.fd);
  meet(r, "allocated");
  let_external_go(r, found, ours);
}

void row_cuExternalMemoryGetMappedBuffer(struct rows *r) {
  union external_buffer part = {.about = {.size = GRANULE}};
  CUmemGenericAllocationHandle ours = 0;
  CUexternalMemory found = external(r, &ours);
  CUdeviceptr at = 0;
  const void *description = &part;
  if (done(r, start(r)->cuExternalMemoryGetMappedBuffer(&at, found, description))) {
    meet(r, "allocated");
    put(r, at, pattern(), BYTES);
    holds(r, at, pattern(), BYTES);
    need(r, cuMemFree_v2(at), "unmap it");
  }
  let_external_go(r, found, ours);
}

void row_cuExternalMemoryGetMappedMipmappedArray(struct rows *r) {
  struct {
    unsigned long long offset;
    CUDA_ARRAY3D_DESCRIPTOR about;
    unsigned levels;
    uint64_t room[16];
  } part = {.about = {.Width = 64, .Height = 64, .Format = 0x20, .NumChannels = 1}, .levels = 1};
  CUmemGenericAllocationHandle ours = 0;
  CUexternalMemory found = external(r, &ours);
  CUmipmappedArray array = NULL;
  const void *description = &part;
  if (done(r, start(r)->cuExternalMemoryGetMappedMipmappedArray(&array, found, description))) {
    meet(r, "allocated");
    need(r, cuMipmappedArrayDestroy(array), "unmap it");
  }
  let_external_go(r, found, ours);
}

/* Signalled already: a wait for it is over at once. */
static CUexternalSemaphore semaphore(struct rows *r) {
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC description = {.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD};
  CUexternalSemaphore found = NULL;
  context(r);
  description.handle.fd = eventfd(1, EFD_CLOEXEC);
  need(r, cuImportExternalSemaphore(&found, &description), "a semaphore");
  return found;
}

void row_cuSignalExternalSemaphoresAsync(struct rows *r) {
  CUexternalSemaphore one = semaphore(r);
  uint64_t how[32] = {1};
  done(r, start(r)->cuSignalExternalSemaphoresAsync(&one, (const void *)how, 1, stream(r)));
}

void row_cuSignalExternalSemaphoresAsync_ptsz(struct rows *r) {
  CUexternalSemaphore one = semaphore(r);
  uint64_t how[32] = {1};
  done(r, start(r)->cuSignalExternalSemaphoresAsync_ptsz(&one, (const void *)how, 1, NULL));
}

void row_cuWaitExternalSemaphoresAsync(struct rows *r) {
  CUexternalSemaphore one = semaphore(r);
  uint64_t how[32] = {1};
  done(r, start(r)->cuWaitExternalSemaphoresAsync(&one, (const void *)how, 1, stream(r)));
}

void row_cuWaitExternalSemaphoresAsync_ptsz(struct rows *r) {
  CUexternalSemaphore one = semaphore(r);
  uint64_t how[32] = {1};
  done(r, start(r)->cuWaitExternalSemaphoresAsync_ptsz(&one, (const void *)how, 1, NULL));
}
