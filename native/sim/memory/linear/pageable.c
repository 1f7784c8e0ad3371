/* Plain memory of the program on a device that can use it (HMM or ATS; GPUSHARE_SIM_PAGEABLE=1 in the program's
 * environment). Pages that were moved to a device take memory there, without an allocation by the program, until they
 * are moved back or the process ends. Migration on first touch is not simulated. */
#include <stdlib.h>
#include <string.h>

#include "sim/memory/memory.h"

struct piece {
  uint64_t base, end;
  CUdevice device;
};

static struct { /* under sim_ranges_lock */
  struct piece *piece;
  size_t count, room;
} moved;

bool sim_pageable(void) {
  const char *word = getenv("GPUSHARE_SIM_PAGEABLE");
  return word && strcmp(word, "1") == 0;
}

static bool add(uint64_t base, uint64_t end, CUdevice device) {
  if (moved.count == moved.room) {
    size_t room = moved.room ? 2 * moved.room : 16;
    struct piece *more = realloc(moved.piece, room * sizeof *more);
    if (!more)
      return false;
    moved.piece = more;
    moved.room = room;
  }
  moved.piece[moved.count++] = (struct piece){base, end, device};
  return true;
}

/* Moves [base, end) back to the host from wherever its parts are. False: no memory for the list. */
static bool take_back(uint64_t base, uint64_t end) {
  for (size_t i = 0; i < moved.count; i++) {
    struct piece whole = moved.piece[i];
    uint64_t from = whole.base > base ? whole.base : base, to = whole.end < end ? whole.end : end;
    if (from >= to)
      continue;
    if (whole.base < from && to < whole.end && !add(to, whole.end, whole.device))
      return false;
    if (whole.base < from)
      moved.piece[i].end = from;
    else if (to < whole.end)
      moved.piece[i].base = to;
    else
      moved.piece[i--] = moved.piece[--moved.count];
    sim_memory_release(whole.device, to - from);
  }
  return true;
}

void sim_pageable_move(CUdeviceptr address, size_t bytes, CUdevice device) {
  uint64_t base = address / SIM_PAGE * SIM_PAGE, end = sim_round_up(address + bytes, SIM_PAGE);
  sim_ranges_lock();
  if (take_back(base, end) && device >= 0 && sim_memory_reserve(device, end - base) == CUDA_SUCCESS &&
      !add(base, end, device))
    sim_memory_release(device, end - base);
  sim_ranges_unlock();
}
