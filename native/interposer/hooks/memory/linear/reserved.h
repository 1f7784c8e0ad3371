/* An allocation of device memory that is being made: what it has reserved, until the books have it. */
#ifndef GPUSHARE_HOOKS_RESERVED_H
#define GPUSHARE_HOOKS_RESERVED_H

#include "interposer/memory/books/life.h"
#include "interposer/memory/pools/reserve.h"

enum {
  GS_PITCH_ROUND =
      512 /* the largest row alignment of current devices; corrected from the pitch that the driver chose */
};

struct gs_reserved {
  int ordinal; /* GS_NO_DEVICE: the driver refuses the call, whatever it takes */
  uint64_t bytes;
  uint32_t kind; /* gs_allocation.kind */
  struct gs_maker maker;
};

/* To be called before the driver. Without a current context, or if the arguments are wrong whatever their size
 * (plausible is false), the error is left to the driver. *away: it is refused because the grant's room is away, and may be
 * tried again when that is there. */
CUresult gs_reserved_begin(struct gs_reserved *reserved, uint64_t bytes, bool plausible, bool *away);
/* The same, waiting for the room; to be called outside the passage. */
CUresult gs_reserved_await(struct gs_reserved *reserved, uint64_t bytes, bool plausible, struct gs_patience *patience);
/* The driver has answered. Returns result. */
CUresult gs_reserved_end(const struct gs_reserved *reserved, CUresult result, uint64_t address);

/* The driver took other bytes than were reserved. False: the rest does not fit. */
bool gs_reserved_correct(struct gs_reserved *reserved, uint64_t bytes);

#endif
