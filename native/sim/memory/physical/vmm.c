/* Virtual memory management: physical memory (cuMemCreate).
 *
 * A physical handle is a piece of a memfd. Exportable memory has a memfd of its own, so that an importing process maps
 * the same bytes. The memory exists and is charged until its last handle, mapping and binding to a multicast object are
 * gone, in every process that imported it and in this one, and the last exported descriptor is closed. It is charged to
 * the process that created it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/memory/physical/vmm.h"

/* Stored after the bytes of an exported file: information for the importer. */
struct trailer {
  uint64_t magic, bytes;
  uint32_t engine_device, reserved; /* engine's device number, because CUDA ordinals differ between processes */
  CUmemAllocationProp prop;
};
#define TRAILER_MAGIC 0x6773566d6d310001ull

enum { GRANULARITY_RECOMMENDED = 1 };

static CUresult check_properties(const CUmemAllocationProp *prop) {
  if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return sim_device_valid(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
  CUresult result = granularity && option >= 0 && option <= GRANULARITY_RECOMMENDED ? check_properties(prop)
                                                                                    : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *granularity = SIM_VMM_GRANULARITY;
  return result;
}

/* ---- physical memory --------------------------------------------------------------------------------------------- */

static CUresult own_pages(uint64_t bytes, const CUmemAllocationProp *prop, struct sim_pages *pages) {
  const struct trailer trailer = {.magic = TRAILER_MAGIC,
                                  .bytes = bytes,
                                  .engine_device = sim_engine_device(sim_physical_device(prop)),
                                  .prop = *prop};
  int fd = memfd_create("gpushare-sim-vmm", MFD_CLOEXEC);
  if (fd < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (ftruncate(fd, (off_t)bytes) < 0 ||
      pwrite(fd, &trailer, sizeof trailer, (off_t)bytes) != (ssize_t)sizeof trailer) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pages = (struct sim_pages){.bytes = bytes, .fd = fd};
  return CUDA_SUCCESS;
}

static CUresult physical_new(struct physical *made, CUmemGenericAllocationHandle *handle) {
  CUresult result = made->own_file ? own_pages(made->bytes, &made->prop, &made->pages)
                                   : sim_pages_new(sim_physical_device(&made->prop), made->bytes, false, &made->pages);
  if (result != CUDA_SUCCESS)
    return result;
  if (!made->own_file && made->pages.fd < 0)
    result = CUDA_ERROR_OUT_OF_MEMORY; /* private pages cannot be mapped elsewhere */
  if (result == CUDA_SUCCESS)
    result = sim_physical_add(made, handle);
  if (result == CUDA_SUCCESS)
    return result;
  if (made->own_file)
    close(made->pages.fd);
  else
    sim_pages_free(&made->pages, false);
  return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  CUresult result = handle && !flags ? check_properties(prop) : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS)
    return result;
  if (size == 0 || size % SIM_VMM_GRANULARITY)
    return CUDA_ERROR_INVALID_VALUE;
  if (size > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct physical made = {.bytes = size,
                          .charged = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? size : 0,
                          .prop = *prop,
                          .own_file = prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE};
  if (made.charged)
    result = sim_memory_reserve(sim_physical_device(prop), made.charged);
  if (result != CUDA_SUCCESS)
    return result;
  sim_spend(sim_info()->create_ns);
  result = physical_new(&made, handle);
  if (result != CUDA_SUCCESS && made.charged)
    sim_memory_release(sim_physical_device(prop), made.charged);
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct physical *physical = sim_physical_of(handle);
  if (physical) {
    physical->handles--;
    sim_physical_check(physical);
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  sim_ranges_unlock();
  return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)addr);
  if (handle && range && range->kind == SIM_RANGE_MAPPED) {
    struct physical *physical = range->owner;
    physical->handles++;
    *handle = (uint64_t)(uintptr_t)physical;
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  sim_ranges_unlock();
  return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct physical *physical = sim_physical_of(handle);
  if (prop && physical && !physical->multicast)
    *prop = physical->prop;
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
  CUresult result = CUDA_SUCCESS;
  if (!shareableHandle || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  struct physical *physical = sim_physical_of(handle);
  if (!physical || !(physical->prop.requestedHandleTypes & handleType)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    int fd;
    result =
        sim_block_make(&physical->block, sim_physical_device(&physical->prop), physical->charged, physical->pages.fd);
    if (result == CUDA_SUCCESS)
      result = sim_block_export(&physical->block, &fd);
    if (result == CUDA_SUCCESS)
      memcpy(shareableHandle, &fd, sizeof fd);
  }
  sim_ranges_unlock();
  return result;
}

/* Converts the device number to this process's ordinal. */
static bool localise(struct trailer *trailer) {
  if (trailer->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return true;
  for (CUdevice device = 0; sim_device_valid(device); device++) {
    if (sim_engine_device(device) == trailer->engine_device) {
      trailer->prop.location.id = device;
      return true;
    }
  }
  return false;
}

/* Reads the trailer of a file with exportable memory, of this or another process. */
static bool read_trailer(int fd, struct trailer *trailer) {
  struct stat about;
  off_t at;
  if (fstat(fd, &about) < 0 || about.st_size < (off_t)sizeof *trailer)
    return false;
  at = about.st_size - (off_t)sizeof *trailer;
  return pread(fd, trailer, sizeof *trailer, at) == (ssize_t)sizeof *trailer && trailer->magic == TRAILER_MAGIC &&
         trailer->bytes == (uint64_t)at && trailer->bytes % SIM_VMM_GRANULARITY == 0 && localise(trailer) &&
         check_properties(&trailer->prop) == CUDA_SUCCESS;
}

static CUresult hold_exported(int exported, struct sim_block *block, int *fd, struct trailer *trailer) {
  CUresult result = sim_block_import(exported, block, fd);
  if (result == CUDA_SUCCESS && !read_trailer(*fd, trailer)) {
    close(*fd);
    sim_block_drop(block);
    result = CUDA_ERROR_INVALID_VALUE;
  }
  return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  struct trailer trailer;
  if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  struct physical made = {.own_file = true};
  /* the API passes the descriptor as a pointer value */
  CUresult result = hold_exported((int)(intptr_t)osHandle, &made.block, &made.pages.fd, &trailer);
  if (result != CUDA_SUCCESS)
    return result;
  made.bytes = made.pages.bytes = trailer.bytes;
  made.prop = trailer.prop;
  result = sim_physical_add(&made, handle);
  if (result != CUDA_SUCCESS) {
    sim_block_drop(&made.block);
    close(made.pages.fd);
  }
  return result;
}

CUresult sim_physical_file(int exported, struct sim_block *block, int *fd, uint64_t *bytes, CUdevice *device) {
  struct trailer trailer;
  CUresult result = hold_exported(exported, block, fd, &trailer);
  if (result == CUDA_SUCCESS) {
    *bytes = trailer.bytes;
    *device = sim_physical_device(&trailer.prop);
  }
  return result;
}
