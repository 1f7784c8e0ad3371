/* Virtual memory management: physical handles (cuMemCreate), reserved addresses, and mappings of the one into the other.
 *
 * A physical handle is a piece of a memfd, its own where it may be exported, so that an importing process maps the same bytes.
 * It lives, and is charged, until its last handle and its last mapping are gone; an imported one is charged to the process that
 * made it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

struct physical {
  uint64_t id, bytes, charged;
  unsigned handles, mappings;
  CUmemAllocationProp prop;
  struct sim_pages pages; /* `at` is a mapping nobody uses where the pages are a piece of the device's file */
  bool own_file;
  struct physical *next;
};

struct reservation {
  uint64_t base, bytes;
  struct reservation *next;
};

/* Under sim_ranges_lock. */
static struct {
  struct physical *physicals;
  struct reservation *reservations;
  uint64_t ids;
} all;

/* Behind the bytes of an exported file: what an importer must know. */
struct trailer {
  uint64_t magic, bytes;
  uint32_t engine_device, reserved; /* of memory on a device: CUDA ordinals differ between processes */
  CUmemAllocationProp prop;
};
#define TRAILER_MAGIC 0x6773566d6d310001ull

enum {
  ACCESS_NONE = 0,
  ACCESS_READ = 1,
  ACCESS_READ_WRITE = 3,
  GRANULARITY_RECOMMENDED = 1
};

uint64_t sim_physical_id(const void *physical) { return ((const struct physical *)physical)->id; }

int sim_physical_handle_types(const void *physical) { return ((const struct physical *)physical)->prop.requestedHandleTypes; }

static struct physical *physical_of(CUmemGenericAllocationHandle handle) {
  for (struct physical *each = all.physicals; each; each = each->next)
    if ((uint64_t)(uintptr_t)each == handle)
      return each->handles ? each : NULL;
  return NULL;
}

static bool on_device(const CUmemAllocationProp *prop) { return prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE; }

static CUdevice device_of(const CUmemAllocationProp *prop) { return on_device(prop) ? prop->location.id : 0; }

static CUresult check_properties(const CUmemAllocationProp *prop) {
  if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return sim_device_valid(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
  CUresult result = sim_ready();
  if (result == CUDA_SUCCESS)
    result = granularity && option >= 0 && option <= GRANULARITY_RECOMMENDED ? check_properties(prop) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *granularity = SIM_VMM_GRANULARITY;
  return result;
}

/* ---- physical memory --------------------------------------------------------------------------------------------------------- */

static CUresult own_pages(uint64_t bytes, const CUmemAllocationProp *prop, struct sim_pages *pages) {
  const struct trailer trailer = {
      .magic = TRAILER_MAGIC, .bytes = bytes, .engine_device = sim_engine_device(device_of(prop)), .prop = *prop};
  int fd = memfd_create("gpushare-sim-vmm", MFD_CLOEXEC);
  if (fd < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (ftruncate(fd, (off_t)bytes) < 0 || pwrite(fd, &trailer, sizeof trailer, (off_t)bytes) != (ssize_t)sizeof trailer) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pages = (struct sim_pages){.bytes = bytes, .fd = fd};
  return CUDA_SUCCESS;
}

static void physical_free(struct physical *physical) {
  struct physical **link = &all.physicals;
  while (*link != physical)
    link = &(*link)->next;
  *link = physical->next;
  if (physical->own_file)
    close(physical->pages.fd);
  else
    sim_pages_free(&physical->pages);
  if (physical->charged)
    sim_memory_release(device_of(&physical->prop), physical->charged);
  free(physical);
}

static void physical_check(struct physical *physical) {
  if (physical->handles == 0 && physical->mappings == 0)
    physical_free(physical);
}

static CUresult physical_add(const struct physical *made, CUmemGenericAllocationHandle *handle) {
  struct physical *kept = malloc(sizeof *kept);
  if (!kept)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *kept = *made;
  sim_ranges_lock();
  kept->id = ++all.ids;
  kept->handles = 1;
  kept->next = all.physicals;
  all.physicals = kept;
  sim_ranges_unlock();
  *handle = (uint64_t)(uintptr_t)kept;
  return CUDA_SUCCESS;
}

static CUresult physical_new(struct physical *made, CUmemGenericAllocationHandle *handle) {
  CUresult result = made->own_file ? own_pages(made->bytes, &made->prop, &made->pages)
                                   : sim_pages_new(device_of(&made->prop), made->bytes, false, &made->pages);
  if (result != CUDA_SUCCESS)
    return result;
  if (!made->own_file && made->pages.fd < 0)
    result = CUDA_ERROR_OUT_OF_MEMORY; /* private pages cannot be mapped elsewhere */
  if (result == CUDA_SUCCESS)
    result = physical_add(made, handle);
  if (result == CUDA_SUCCESS)
    return result;
  if (made->own_file)
    close(made->pages.fd);
  else
    sim_pages_free(&made->pages);
  return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  CUresult result = sim_ready();
  if (result == CUDA_SUCCESS)
    result = handle && !flags ? check_properties(prop) : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS)
    return result;
  if (size == 0 || size % SIM_VMM_GRANULARITY)
    return CUDA_ERROR_INVALID_VALUE;
  if (size > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct physical made = {.bytes = size,
                          .charged = on_device(prop) ? size : 0,
                          .prop = *prop,
                          .own_file = prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE};
  if (made.charged)
    result = sim_memory_reserve(device_of(prop), made.charged);
  if (result != CUDA_SUCCESS)
    return result;
  result = physical_new(&made, handle);
  if (result != CUDA_SUCCESS && made.charged)
    sim_memory_release(device_of(prop), made.charged);
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  struct physical *physical = physical_of(handle);
  if (physical) {
    physical->handles--;
    physical_check(physical);
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  sim_ranges_unlock();
  return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
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
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  struct physical *physical = physical_of(handle);
  if (prop && physical)
    *prop = physical->prop;
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (!shareableHandle || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  struct physical *physical = physical_of(handle);
  if (!physical || !(physical->prop.requestedHandleTypes & handleType)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    int fd = fcntl(physical->pages.fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
      result = CUDA_ERROR_OPERATING_SYSTEM;
    else
      memcpy(shareableHandle, &fd, sizeof fd);
  }
  sim_ranges_unlock();
  return result;
}

/* Makes the ordinal this process's own. */
static bool localise(struct trailer *trailer) {
  if (!on_device(&trailer->prop))
    return true;
  for (CUdevice device = 0; sim_device_valid(device); device++) {
    if (sim_engine_device(device) == trailer->engine_device) {
      trailer->prop.location.id = device;
      return true;
    }
  }
  return false;
}

/* A file that cuMemExportToShareableHandle made, in whatever process. */
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

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  struct trailer trailer;
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  int fd = (int)(intptr_t)osHandle; /* the descriptor itself, in a pointer's clothes */
  if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !read_trailer(fd, &trailer))
    return CUDA_ERROR_INVALID_VALUE;
  fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (fd < 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  const struct physical made = {
      .bytes = trailer.bytes, .prop = trailer.prop, .pages = {.bytes = trailer.bytes, .fd = fd}, .own_file = true};
  result = physical_add(&made, handle);
  if (result != CUDA_SUCCESS)
    close(fd);
  return result;
}

/* ---- addresses --------------------------------------------------------------------------------------------------------------- */

/* Reserves `bytes` of address space at a multiple of alignment, at `hint` if that is free. */
static void *reserve_space(uint64_t bytes, uint64_t alignment, uint64_t hint) {
  enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };
  if (hint && hint % alignment == 0) {
    void *at = mmap((void *)(uintptr_t)hint, bytes, PROT_NONE, FLAGS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != MAP_FAILED && (uint64_t)(uintptr_t)at == hint)
      return at;
    if (at != MAP_FAILED)
      munmap(at, bytes);
  }
  uint8_t *wide = mmap(NULL, bytes + alignment, PROT_NONE, FLAGS, -1, 0);
  if (wide == MAP_FAILED)
    return NULL;
  uint8_t *at = (uint8_t *)(uintptr_t)sim_round_up((uint64_t)(uintptr_t)wide, alignment);
  if (at > wide)
    munmap(wide, (size_t)(at - wide));
  munmap(at + bytes, (size_t)(wide + bytes + alignment - (at + bytes)));
  return at;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (!ptr || size == 0 || size % SIM_VMM_GRANULARITY || flags || (alignment & (alignment - 1)))
    return CUDA_ERROR_INVALID_VALUE;
  if (size > SIM_ADDRESS_SPACE || alignment > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (alignment < SIM_VMM_GRANULARITY)
    alignment = SIM_VMM_GRANULARITY;
  struct reservation *made = malloc(sizeof *made);
  if (!made)
    return CUDA_ERROR_OUT_OF_MEMORY;
  void *at = reserve_space(size, alignment, addr);
  if (!at) {
    free(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  made->base = (uint64_t)(uintptr_t)at;
  made->bytes = size;
  sim_ranges_lock();
  made->next = all.reservations;
  all.reservations = made;
  sim_ranges_unlock();
  *ptr = made->base;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  struct reservation *gone = NULL;
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  struct reservation **link = &all.reservations;
  while (*link && ((*link)->base != ptr || (*link)->bytes != size))
    link = &(*link)->next;
  if (!*link || sim_range_overlap(ptr, size)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    gone = *link;
    *link = gone->next;
  }
  sim_ranges_unlock();
  if (gone) {
    munmap((void *)(uintptr_t)gone->base, gone->bytes);
    free(gone);
  }
  return result;
}

/* ---- mappings ---------------------------------------------------------------------------------------------------------------- */

static bool reserved(uint64_t base, uint64_t bytes) {
  for (const struct reservation *each = all.reservations; each; each = each->next)
    if (base >= each->base && base - each->base < each->bytes && bytes <= each->bytes - (base - each->base))
      return true;
  return false;
}

static CUresult map(uint64_t base, uint64_t bytes, uint64_t offset, struct physical *physical) {
  struct sim_range range = {.base = base,
                            .bytes = bytes,
                            .pages = {.at = (void *)(uintptr_t)base, .bytes = bytes, .fd = -1},
                            .kind = SIM_RANGE_MAPPED,
                            .device = device_of(&physical->prop),
                            .owner = physical};
  void *at = mmap(range.pages.at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, physical->pages.fd,
                  (off_t)(physical->pages.offset + offset));
  if (at == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!sim_range_add(&range)) {
    mmap(range.pages.at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  physical->mappings++;
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (size == 0 || size % SIM_VMM_GRANULARITY || ptr % SIM_VMM_GRANULARITY || offset % SIM_VMM_GRANULARITY || flags)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  struct physical *physical = physical_of(handle);
  if (!physical || offset > physical->bytes || size > physical->bytes - offset || !reserved(ptr, size) ||
      sim_range_overlap(ptr, size))
    result = CUDA_ERROR_INVALID_VALUE;
  else
    result = map(ptr, size, offset, physical);
  sim_ranges_unlock();
  return result;
}

/* Whether [base, base + bytes) is made of whole mappings without a gap. */
static bool whole_mappings(uint64_t base, uint64_t bytes) {
  uint64_t at = base;
  while (at < base + bytes) {
    struct sim_range *range = sim_range_at(at);
    if (!range || range->kind != SIM_RANGE_MAPPED || range->bytes > base + bytes - at)
      return false;
    at += range->bytes;
  }
  return bytes > 0;
}

static void unmap(struct sim_range *range) {
  struct physical *physical = range->owner;
  mmap(range->pages.at, range->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  sim_range_remove(range);
  physical->mappings--;
  physical_check(physical);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (size > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_INVALID_VALUE;
  for (CUdevice device = 0; sim_device_valid(device); device++)
    sim_device_wait(device); /* queued work may touch the mapping */
  sim_ranges_lock();
  if (whole_mappings(ptr, size)) {
    for (uint64_t at = ptr; at < ptr + size;) {
      struct sim_range *range = sim_range_at(at);
      at += range->bytes;
      unmap(range);
    }
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  sim_ranges_unlock();
  return result;
}

/* Access is one word per mapping: all devices of the simulator reach all memory alike. */
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (!desc || count == 0 || size > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_INVALID_VALUE;
  bool readable = false;
  for (size_t i = 0; i < count; i++) {
    if (desc[i].flags != ACCESS_NONE && desc[i].flags != ACCESS_READ && desc[i].flags != ACCESS_READ_WRITE)
      return CUDA_ERROR_INVALID_VALUE;
    if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !sim_device_valid(desc[i].location.id))
      return CUDA_ERROR_INVALID_DEVICE;
    readable = readable || desc[i].flags != ACCESS_NONE;
  }
  sim_ranges_lock();
  if (whole_mappings(ptr, size)) {
    for (uint64_t at = ptr; at < ptr + size;) {
      struct sim_range *range = sim_range_at(at);
      range->readable = readable;
      at += range->bytes;
    }
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  sim_ranges_unlock();
  return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
  CUresult result = sim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(ptr);
  if (!flags || !location || !range || range->kind != SIM_RANGE_MAPPED)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    *flags = range->readable ? ACCESS_READ_WRITE : ACCESS_NONE;
  sim_ranges_unlock();
  return result;
}
