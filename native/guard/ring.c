#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard/ring.h"

/* include/uapi/linux/bpf.h: a record's header is its length with two flag bits. */
#define BUSY (1u << 31)
#define DISCARDED (1u << 30)
#define HEAD 8

int gs_ring_open(struct gs_ring *ring, int map, struct gs_err *err) {
  ring->page = (size_t)sysconf(_SC_PAGESIZE);
  void *consumer = mmap(NULL, ring->page, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
  if (consumer == MAP_FAILED)
    return gs_fail(err, -errno, "the guard's events cannot be mapped: %s", strerror(errno));
  ring->consumer = consumer;
  /* The data is mapped twice in a row, so that no record is split. */
  void *producer = mmap(NULL, ring->page + 2 * GS_RING_BYTES, PROT_READ, MAP_SHARED, map, (off_t)ring->page);
  if (producer == MAP_FAILED)
    return gs_fail(err, -errno, "the guard's events cannot be mapped: %s", strerror(errno));
  ring->producer = producer;
  return 0;
}

void gs_ring_close(struct gs_ring *ring) {
  if (ring->producer)
    munmap(ring->producer, ring->page + 2 * GS_RING_BYTES);
  if (ring->consumer)
    munmap(ring->consumer, ring->page);
  ring->producer = ring->consumer = NULL;
}

int gs_ring_read(struct gs_ring *ring, struct gs_guard_event *out, uint32_t count) {
  uint64_t *consumer = ring->consumer;
  const char *data = (const char *)ring->producer + ring->page;
  uint64_t at = __atomic_load_n(consumer, __ATOMIC_ACQUIRE);
  uint64_t end = __atomic_load_n((uint64_t *)ring->producer, __ATOMIC_ACQUIRE);
  int found = 0;
  while (at < end && (uint32_t)found < count) {
    const uint32_t *record = (const uint32_t *)(data + (at & (GS_RING_BYTES - 1)));
    uint32_t length = __atomic_load_n(record, __ATOMIC_ACQUIRE);
    if (length & BUSY)
      break;
    uint32_t bytes = length & ~(BUSY | DISCARDED);
    if (!(length & DISCARDED) && bytes == sizeof *out)
      memcpy(&out[found++], (const char *)record + HEAD, sizeof *out);
    at += (bytes + HEAD + 7) & ~7ULL;
    __atomic_store_n(consumer, at, __ATOMIC_RELEASE);
  }
  return found;
}
