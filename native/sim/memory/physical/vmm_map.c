/* Virtual memory management: reserved address ranges, and mapping of physical memory. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "sim/memory/physical/vmm.h"
#include "sim/model/model.h"

/* Keeps the addresses reserved, without the memory that was behind them. Work that still uses them accesses meaningless
 * pages instead of raising a signal. If the kernel has no memory for that mapping, the old pages remain. */
static void reserve_again(const struct sim_pages *pages) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  void *at = mmap(pages->at, pages->bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  (void)at;
}

struct reservation {
  uint64_t base, bytes;
  struct reservation *next;
};

/* Guarded by sim_ranges_lock. */
static struct {
  struct reservation *reservations;
} all;

enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READ_WRITE = 3 };

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Reserves `bytes` of address space at a multiple of alignment, at `hint` if that address is free. */
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

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
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
  CUresult result = CUDA_SUCCESS;
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

/* ---- mappings ---------------------------------------------------------------------------------------------------- */

static bool reserved(uint64_t base, uint64_t bytes) {
  for (const struct reservation *each = all.reservations; each; each = each->next)
    if (base >= each->base && base - each->base < each->bytes && bytes <= each->bytes - (base - each->base))
      return true;
  return false;
}

/* A multicast object has no memory of its own, and what is stored through its addresses goes nowhere. */
static CUresult map(uint64_t base, uint64_t bytes, struct physical *physical) {
  enum { OWN = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE };
  struct sim_range range = {.base = base,
                            .bytes = bytes,
                            .pages = {.at = (void *)(uintptr_t)base, .bytes = bytes, .fd = -1},
                            .kind = SIM_RANGE_MAPPED,
                            .device = physical->multicast ? __builtin_ctz(physical->multicast->devices)
                                                          : sim_physical_device(&physical->prop),
                            .owner = physical};
  void *at = physical->multicast
                 ? mmap(range.pages.at, bytes, PROT_READ | PROT_WRITE, OWN, -1, 0)
                 : mmap(range.pages.at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                        physical->pages.fd, (off_t)physical->pages.offset);
  if (at == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!sim_range_add(&range)) {
    reserve_again(&range.pages);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  physical->mappings++;
  return CUDA_SUCCESS;
}

/* The table is changed at this time for the device, too: what began or ended before saw it as it was. The driver waits
 * for no work. */
static void change_begin(void) {
  sim_lock();
  sim_advance(sim_now());
  sim_ranges_lock();
}

static void change_end(void) {
  sim_ranges_unlock();
  sim_unlock();
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  CUresult result = CUDA_SUCCESS;
  if (size == 0 || size % SIM_VMM_GRANULARITY || ptr % SIM_VMM_GRANULARITY || offset || flags)
    return CUDA_ERROR_INVALID_VALUE; /* the API has an offset, which must be 0 */
  change_begin();
  struct physical *physical = sim_physical_of(handle);
  if (!physical || size > physical->bytes || !reserved(ptr, size) || sim_range_overlap(ptr, size))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (physical->multicast && physical->multicast->devices == 0)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    result = map(ptr, size, physical);
  change_end();
  if (result == CUDA_SUCCESS)
    sim_spend(sim_info()->map_ns);
  return result;
}

/* True if [base, base + bytes) consists of whole mappings without a gap. */
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
  reserve_again(&range->pages);
  sim_range_remove(range);
  physical->mappings--;
  sim_physical_check(physical);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  CUresult result = CUDA_SUCCESS;
  uint64_t mappings = 0;
  if (size > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_INVALID_VALUE;
  change_begin();
  if (whole_mappings(ptr, size)) {
    for (uint64_t at = ptr; at < ptr + size;) {
      struct sim_range *range = sim_range_at(at);
      at += range->bytes;
      unmap(range);
      mappings++;
    }
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  change_end();
  sim_spend(mappings * sim_info()->unmap_ns);
  return result;
}

/* The bit of a location in struct sim_range.access; 0: no such device. */
static uint32_t access_bit(const CUmemLocation *location) {
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    return SIM_ACCESS_HOST;
  return sim_device_valid(location->id) ? 1u << location->id : 0;
}

/* Access is given or taken as a whole: memory that may be read may be written. Locations that are not named keep
 * theirs. */
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
  CUresult result = CUDA_SUCCESS;
  uint64_t mappings = 0;
  if (!desc || count == 0 || size > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_INVALID_VALUE;
  uint32_t named = 0, given = 0;
  for (size_t i = 0; i < count; i++) {
    if (desc[i].flags != ACCESS_NONE && desc[i].flags != ACCESS_READ && desc[i].flags != ACCESS_READ_WRITE)
      return CUDA_ERROR_INVALID_VALUE;
    uint32_t bit = access_bit(&desc[i].location);
    if (bit == 0)
      return CUDA_ERROR_INVALID_DEVICE;
    named |= bit;
    given = desc[i].flags == ACCESS_NONE ? given & ~bit : given | bit;
  }
  change_begin();
  if (whole_mappings(ptr, size)) {
    for (uint64_t at = ptr; at < ptr + size;) {
      struct sim_range *range = sim_range_at(at);
      range->access = (range->access & ~named) | given;
      at += range->bytes;
      mappings++;
    }
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  change_end();
  sim_spend(mappings * sim_info()->access_ns);
  return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(ptr);
  if (!flags || !location || !range || range->kind != SIM_RANGE_MAPPED)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    *flags = range->access & access_bit(location) ? ACCESS_READ_WRITE : ACCESS_NONE;
  sim_ranges_unlock();
  return result;
}
