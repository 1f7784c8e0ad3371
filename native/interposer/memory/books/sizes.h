/* The sizes in which a driver takes memory of the device. */
#ifndef GPUSHARE_MEMORY_SIZES_H
#define GPUSHARE_MEMORY_SIZES_H

#include <stdint.h>

enum {
  GS_BLOCK_ROUND = 512,     /* of blocks that share pages: small allocations, arrays, blocks of a pool */
  GS_DEVICE_PAGE = 2097152, /* of everything else */
  GS_POOL_STEP = 33554432   /* a pool grows by multiples of it, and by pages where a step does not fit */
};

/* Rounds up to a multiple; UINT64_MAX if the result would overflow. */
static inline uint64_t gs_round_up(uint64_t bytes, uint64_t multiple) {
  return bytes > UINT64_MAX - multiple ? UINT64_MAX : (bytes + multiple - 1) / multiple * multiple;
}

#endif
