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

/* ---- memory and semaphores of others (graphics) ---- */

/* The process's own physical memory and a descriptor of it. */
static CUDA_EXTERNAL_MEMORY_HANDLE_DESC ours_to_import(struct rows *r, CUmemGenericAllocationHandle *ours) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC about = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = GRANULE};
  *ours = physical(r, POSIX_FD);
  need(r, cuMemExportToShareableHandle(&about.handle.fd, *ours, POSIX_FD, 0), "a descriptor");
  return about;
}

/* The same memory, imported as if it were another process's. */
static CUexternalMemory external(struct rows *r, CUmemGenericAllocationHandle *ours) {
  const CUDA_EXTERNAL_MEMORY_HANDLE_DESC about = ours_to_import(r, ours);
  CUexternalMemory found = NULL;
  need(r, cuImportExternalMemory(&found, &about), "import it"); /* the driver owns the descriptor */
  return found;
}

static void let_external_go(struct rows *r, CUexternalMemory found, CUmemGenericAllocationHandle ours) {
  need(r, cuDestroyExternalMemory(found), "let go of the memory");
  need(r, cuMemRelease(ours), "release it");
  meet(r, "freed");
}

void row_cuImportExternalMemory(struct rows *r) {
  CUmemGenericAllocationHandle ours = 0;
  CUexternalMemory found = NULL;
  const CUDA_EXTERNAL_MEMORY_HANDLE_DESC about = ours_to_import(r, &ours);
  done(r, start(r)->cuImportExternalMemory(&found, &about));
  meet(r, "allocated");
  let_external_go(r, found, ours);
}

void row_cuExternalMemoryGetMappedBuffer(struct rows *r) {
  const CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.size = GRANULE};
  CUmemGenericAllocationHandle ours = 0;
  CUexternalMemory found = external(r, &ours);
  CUdeviceptr at = 0;
  if (done(r, start(r)->cuExternalMemoryGetMappedBuffer(&at, found, &part))) {
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
  r->tentative = true;
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
  done(r, start(r)->cuSignalExternalSemaphoresAsync(&one, (const void *)how, 1, given(r)));
}

void row_cuWaitExternalSemaphoresAsync(struct rows *r) {
  CUexternalSemaphore one = semaphore(r);
  uint64_t how[32] = {1};
  done(r, start(r)->cuWaitExternalSemaphoresAsync(&one, (const void *)how, 1, given(r)));
}
