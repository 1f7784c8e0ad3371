/* The daemon's own record of a usage page: which slots it gave to which processes, and how much memory the devices
 * have. The page has the slots too, but tenants can write it: only a generation is read back from there, after a
 * restart of the daemon (gs_slot_claim). */
#ifndef GS_SEATS_H
#define GS_SEATS_H

#ifndef GS_CFFI
#include <stdint.h>

#include "page/gs_page.h"
#endif

struct gs_seat {
  uint32_t taken;      /* 1: a process has the slot; stored last, so the other words are whole when it is read */
  uint32_t generation; /* of the slot, as reported to the process */
  int32_t pid;         /* host pid */
  uint64_t since_ns;   /* the process used no device through this slot before this time, CLOCK_MONOTONIC */
};

struct gs_seats {
  uint64_t capacity_bytes[16]; /* GS_MAX_DEVICES; memory of each device; 0: unknown */
  struct gs_seat seat[1024];   /* GS_MAX_SLOTS */
};

#endif
