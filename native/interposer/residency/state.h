/* The mover's state, which the files of this room share. In memory that a fork wipes. */
#ifndef GPUSHARE_RESIDENCY_STATE_H
#define GPUSHARE_RESIDENCY_STATE_H

#include "interposer/os/latch.h"
#include "interposer/process/process.h"

enum { GS_SEGMENTS = 4096 };

/* A file of the host pool, mapped at `from` bytes after the first. */
struct gs_host_segment {
  uint64_t from, bytes;
  CUcontext pinned_in; /* the context in which it was pinned; NULL: it is not. Atomic */
};

struct gs_host {
  unsigned char *base; /* NULL: no addresses are reserved yet */
  uint64_t most;       /* of addresses */
  bool owed; /* the daemon may count some as ours: an answer, or what we gave back, can be lost with its sender */
  uint32_t segments;
  struct gs_host_segment segment[GS_SEGMENTS];
};

/* What was published last (fixed.h), and of which slot. */
struct gs_fixed_told {
  const struct gs_slot *slot;
  uint32_t generation;
  uint64_t memory_bytes, movable_bytes, at_ns;
};

/* The mover's own, except what is atomic. */
struct gs_mover {
  bool failed;             /* there is no thread */
  uint32_t exits;          /* 1: the process is exiting */
  struct gs_latch driving; /* held while the thread calls the driver */
  uint32_t word;           /* the residency word that was carried out, or refused */
  bool owes;               /* the daemon does not know yet what is in the slot */
  CUcontext works_in;      /* of its stream and events; NULL: it has none, or they have ended with it. Atomic */
  struct gs_fixed_told told;
  struct gs_host host;
};

#endif
