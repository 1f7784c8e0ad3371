/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Reads what an ioctl asks NVIDIA's driver for, from the memory of the calling process. */
#ifndef GS_GUARD_ASKED_H
#define GS_GUARD_ASKED_H

#include "guard/kernel.h"

#define FIRST_LARGE (2ULL << 20)
#define MOST_BYTES (1ULL << 48)                            /* any driver refuses more, and sums of it do not overflow */
#define HEAP_VIRTUAL 0x80000                               /* a flag: address space only */
#define HEAP_LOCATION(attributes) ((attributes) >> 25 & 3) /* 0 is device memory */

/* Memory that the driver takes for `bytes`: it has pages of 64 KiB and of 2 MiB. */
INLINE uint64_t rounded(uint64_t bytes) {
  uint64_t page = bytes >= FIRST_LARGE ? FIRST_LARGE : 1 << 16;
  return bytes > MOST_BYTES ? MOST_BYTES : (bytes + page - 1) & ~(page - 1);
}

INLINE int is_memory(const struct gs_guard_layout *lay, uint32_t class) {
#pragma unroll
  for (int i = 0; i < GS_GUARD_CLASSES; i++)
    if (lay->classes[i] == class)
      return 1;
  return 0;
}

/* Reads what an allocation asks for. 0: no device memory. 1: *bytes of it, or a free through the heap ioctl (kind is
 * then GS_ESCAPE_FREE). -1: it cannot be read. */
INLINE int asked(const struct gs_guard_layout *lay, struct gs_attempt *attempt, uint64_t *bytes) {
  uint64_t size = 0;
  if (attempt->kind == GS_ESCAPE_ALLOC) {
    struct gs_alloc_head head;
    if (bpf_probe_read_user(&head, sizeof head, (void *)attempt->at))
      return -1;
    attempt->client = head.client;
    attempt->parent = head.parent;
    attempt->object = head.object;
    attempt->class = head.class;
    attempt->parameters = head.parameters;
    if (!is_memory(lay, head.class))
      return 0;
    if (bpf_probe_read_user(&size, sizeof size, (void *)(head.parameters + lay->memory_size)))
      return -1;
    *bytes = rounded(size);
    return 1;
  }
  uint32_t head[2], function, flags, attributes = 0, height, pitch;
  if (bpf_probe_read_user(head, sizeof head, (void *)attempt->at) ||
      bpf_probe_read_user(&function, 4, (void *)(attempt->at + lay->heap_function)) ||
      bpf_probe_read_user(&flags, 4, (void *)(attempt->at + lay->heap_flags)) ||
      bpf_probe_read_user(&attempt->object, 4, (void *)(attempt->at + lay->heap_handle)))
    return -1;
  attempt->client = head[0];
  attempt->parent = head[1];
  attempt->class = function;
  if (function == lay->heap_free) {
    attempt->kind = GS_ESCAPE_FREE;
    return 1;
  }
#pragma unroll
  for (int i = 0; i < GS_GUARD_HEAPS; i++) {
    const struct gs_guard_heap *heap = &lay->heaps[i];
    if (!heap->function || heap->function != function)
      continue;
    if (bpf_probe_read_user(&attributes, 4, (void *)(attempt->at + heap->attributes)) ||
        bpf_probe_read_user(&size, 8, (void *)(attempt->at + heap->size)))
      return -1;
    if (flags & HEAP_VIRTUAL || HEAP_LOCATION(attributes))
      return 0;
    if (heap->height) {
      if (bpf_probe_read_user(&height, 4, (void *)(attempt->at + heap->height)) ||
          bpf_probe_read_user(&pitch, 4, (void *)(attempt->at + heap->pitch)))
        return -1;
      if (size < (uint64_t)height * pitch)
        size = (uint64_t)height * pitch;
    }
    *bytes = rounded(size);
    return 1;
  }
  return 0;
}

/* Fills in what an attempt is about. 0: it does not concern the guard. */
INLINE int understood(const struct gs_guard_layout *lay, struct gs_attempt *attempt) {
  if (attempt->kind == GS_ESCAPE_FREE || attempt->kind == GS_ESCAPE_DUP) {
    uint32_t head[5] = {};
    if (bpf_probe_read_user(head, attempt->kind == GS_ESCAPE_FREE ? 12 : 20, (void *)attempt->at))
      return 0;
    attempt->client = head[0];
    attempt->parent = head[1];
    attempt->object = head[2];
    attempt->source_client = head[3];
    attempt->source = head[4];
    return 1;
  }
  /* What is not memory yet may be memory by the time the driver reads it. */
  attempt->known = asked(lay, attempt, &attempt->bytes);
  return 1;
}

#endif
