/* The table of all address ranges known to the driver, and the pages behind device memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "sim/memory/memory.h"

#ifndef MAP_32BIT
#define LOW_FIRST UINT64_C(0x10000000)
#define LOW_END (UINT64_C(1) << 32)
#define LOW_STEP UINT64_C(0x1000000)
#endif

/* Sorted by base, without overlaps. An array is sufficient: programs have thousands of ranges, not millions, and look
 * them up much more often than they create them. */
static struct {
  pthread_mutex_t lock;
  struct sim_range **sorted;
  size_t count, room;
  uint64_t ids;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The file behind each device's memory. It has its own lock, which is taken last. */
static struct {
  pthread_mutex_t lock;
  struct {
    int fd;        /* 0: not created yet, -1: could not be created */
    uint64_t next; /* offsets are not reused; freed parts are punched out of the file */
  } device[SIM_MAX_DEVICES];
} files = {.lock = PTHREAD_MUTEX_INITIALIZER};

void sim_ranges_lock(void) { pthread_mutex_lock(&all.lock); }

void sim_ranges_unlock(void) { pthread_mutex_unlock(&all.lock); }

uint64_t sim_round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/* The number of ranges that start at or before address. */
static size_t rank_of(uint64_t address) {
  size_t low = 0, high = all.count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (all.sorted[middle]->base <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct sim_range *sim_range_even_dying(uint64_t address) {
  size_t rank = rank_of(address);
  if (rank == 0)
    return NULL;
  struct sim_range *range = all.sorted[rank - 1];
  return address - range->base < range->bytes ? range : NULL;
}

struct sim_range *sim_range_find(uint64_t address) {
  struct sim_range *range = sim_range_even_dying(address);
  return range && !range->dying ? range : NULL;
}

struct sim_range *sim_range_at(uint64_t base) {
  struct sim_range *range = sim_range_find(base);
  return range && range->base == base ? range : NULL;
}

struct sim_range *sim_range_overlap(uint64_t base, uint64_t bytes) {
  size_t rank = rank_of(base);
  if (rank > 0 && base - all.sorted[rank - 1]->base < all.sorted[rank - 1]->bytes)
    return all.sorted[rank - 1];
  return rank < all.count && all.sorted[rank]->base - base < bytes ? all.sorted[rank] : NULL;
}

struct sim_range *sim_range_next(uint64_t base) {
  size_t rank = base == 0 ? 0 : rank_of(base - 1);
  return rank < all.count ? all.sorted[rank] : NULL;
}

bool sim_range_covers(const struct sim_range *range, uint64_t address, uint64_t bytes) {
  if (range->kind != SIM_RANGE_MAPPED)
    return bytes <= range->bytes - (address - range->base);
  while (range && range->kind == SIM_RANGE_MAPPED && range->access) {
    uint64_t end = range->base + range->bytes;
    if (bytes <= end - address)
      return true;
    range = sim_range_at(end);
  }
  return false;
}

struct sim_range *sim_range_add(const struct sim_range *range) {
  if (range->ctx && range->ctx->barred)
    return NULL;
  if (all.count == all.room) {
    size_t room = all.room ? 2 * all.room : 64;
    struct sim_range **grown = realloc(all.sorted, room * sizeof *grown);
    if (!grown)
      return NULL;
    all.sorted = grown;
    all.room = room;
  }
  struct sim_range *kept = malloc(sizeof *kept);
  if (!kept)
    return NULL;
  *kept = *range;
  kept->id = ++all.ids;
  size_t rank = rank_of(range->base);
  memmove(all.sorted + rank + 1, all.sorted + rank, (all.count - rank) * sizeof *all.sorted);
  all.sorted[rank] = kept;
  all.count++;
  return kept;
}

void sim_range_remove(struct sim_range *range) {
  size_t rank = rank_of(range->base);
  memmove(all.sorted + rank - 1, all.sorted + rank, (all.count - rank) * sizeof *all.sorted);
  all.count--;
  free(range);
}

void sim_ranges_sum(CUdevice device, struct sim_sum *sum) {
  for (size_t i = 0; i < all.count; i++)
    if (all.sorted[i]->device == device)
      sim_sum_add(sum, &all.sorted[i]->block, all.sorted[i]->charged);
}

static bool file_size_unlimited(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

/* Never returns descriptor 0, which means "not created yet". */
static int file_new(void) {
  int fd = memfd_create("gpushare-sim-device", MFD_CLOEXEC);
  if (fd != 0)
    return fd;
  fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
  close(0);
  return fd;
}

/* Reserves `bytes` in the device's file and returns its descriptor, with the position in *offset. -1 if a file is not
 * possible: growing it beyond RLIMIT_FSIZE would raise SIGXFSZ in the program. */
static int file_piece(CUdevice device, uint64_t bytes, uint64_t *offset) {
  if (!file_size_unlimited())
    return -1;
  pthread_mutex_lock(&files.lock);
  if (files.device[device].fd == 0)
    files.device[device].fd = file_new();
  int fd = files.device[device].fd;
  uint64_t next = files.device[device].next;
  if (fd > 0 && ftruncate(fd, (off_t)(next + bytes)) == 0) {
    *offset = next;
    files.device[device].next = next + bytes;
  } else {
    fd = -1;
  }
  pthread_mutex_unlock(&files.lock);
  return fd;
}

/* Maps memory below 4 GiB, for calls with 32-bit pointers. Only x86 has a flag for this; elsewhere a free address is
 * passed as a hint. */
static void *map_low(uint64_t bytes, int flags, int fd, off_t offset) {
#ifdef MAP_32BIT
  return mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_32BIT, fd, offset);
#else
  for (uintptr_t hint = LOW_FIRST; hint + bytes <= LOW_END; hint += LOW_STEP) {
    void *at = mmap((void *)hint, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
    if (at == MAP_FAILED || (uintptr_t)at + bytes <= LOW_END)
      return at;
    munmap(at, bytes);
  }
  errno = ENOMEM;
  return MAP_FAILED;
#endif
}

static void *map_anywhere(uint64_t bytes, int flags, int fd, off_t offset) {
  return mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
}

CUresult sim_pages_new(CUdevice device, uint64_t bytes, bool low, struct sim_pages *pages) {
  void *(*map)(uint64_t, int, int, off_t) = low ? map_low : map_anywhere;
  uint64_t offset = 0;
  bytes = sim_round_up(bytes, SIM_PAGE);
  int fd = file_piece(device, bytes, &offset);
  void *at = fd >= 0 ? map(bytes, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset)
                     : map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *pages = (struct sim_pages){.at = at, .bytes = bytes, .fd = fd, .offset = offset};
  return CUDA_SUCCESS;
}

/* Memory that was freed while work was queued stays mapped until no work is queued: using it is the program's mistake,
 * but on a real device that does not end the process. Guarded by files.lock. */
static struct grave {
  void *at;
  uint64_t bytes;
  struct grave *next;
} *graves;

/* Checks only the first and the last page: memory is mapped and unmapped as a whole. */
bool sim_memory_present(const void *at, size_t bytes) {
  unsigned char resident;
  const uintptr_t page = (uintptr_t)getpagesize(), from = (uintptr_t)at;
  uintptr_t first = from / page * page, last = (from + bytes - 1) / page * page;
  return bytes == 0 || (mincore((void *)first, 1, &resident) == 0 && mincore((void *)last, 1, &resident) == 0);
}

static void unmap(void *at, uint64_t bytes) {
  struct grave *grave = sim_idle() ? NULL : malloc(sizeof *grave), *done = NULL;
  pthread_mutex_lock(&files.lock);
  if (grave) {
    *grave = (struct grave){at, bytes, graves};
    graves = grave;
  } else {
    munmap(at, bytes);
    done = sim_idle() ? graves : NULL;
    graves = done ? NULL : graves;
  }
  pthread_mutex_unlock(&files.lock);
  for (struct grave *next; done; done = next) {
    next = done->next;
    munmap(done->at, done->bytes);
    free(done);
  }
}

void sim_pages_free(const struct sim_pages *pages, bool kept) {
  int saved = errno;
  unmap(pages->at, pages->bytes);
  if (pages->fd >= 0 && !kept)
    fallocate(pages->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)pages->offset, (off_t)pages->bytes);
  errno = saved;
}
