/* The ring buffer through which the BPF programs report events to user space. */
#ifndef GS_GUARD_RING_H
#define GS_GUARD_RING_H

#include <stddef.h>
#include <stdint.h>
#include "guard/gs_guard.h"
#include "page/gs_err.h"

#define GS_RING_BYTES (64 << 10)

struct gs_ring {
  void *consumer, *producer; /* mapped; NULL where it is not open */
  size_t page;
};

int gs_ring_open(struct gs_ring *ring, int map, struct gs_err *err);
void gs_ring_close(struct gs_ring *ring);
int gs_ring_read(struct gs_ring *ring, struct gs_guard_event *out, uint32_t count);

#endif
