/* Memory pools: what pools.c (memory) and pool_api.c (handles, attributes) share. All under sim_ranges_lock. */
#ifndef SIM_POOLS_H
#define SIM_POOLS_H

#include "sim/memory/memory.h"

enum { SIM_POOL_HANDLE = 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */ };

struct chunk;

struct CUmemPoolHandle_st {
  bool standard;             /* a device's default pool: cannot be destroyed */
  bool destroyed;            /* lives on until its last block is free */
  bool exportable, imported; /* pool_ipc.c. Nothing is allocated from an imported one */
  CUmemLocation location;
  uint64_t reserved, reserved_high, used, used_high, threshold, max;
  int reuse[3];
  CUmemAccess_flags access[SIM_MAX_DEVICES];
  struct chunk *chunks;
  struct CUmemPoolHandle_st *next;
};

/* ---- pools.c */
bool sim_pool_known(CUmemoryPool handle); /* made and not destroyed */
void sim_pool_start(struct CUmemPoolHandle_st *pool, CUmemLocation location, uint64_t max);
/* Ends a destroyed pool that nothing uses any more: forgets and frees it. */
void sim_pool_end(struct CUmemPoolHandle_st *pool);
/* Gives back chunks that hold nothing, as long as `keep` bytes stay reserved. */
void sim_pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep);

CUdevice sim_pool_device(const struct CUmemPoolHandle_st *pool); /* 0 for host memory */
/* A block of a pool, for work on a stream; a full device gets further tries. INVALID_VALUE: no such pool. Unlocked. */
CUresult sim_pool_take(struct CUmemPoolHandle_st *pool, uint64_t bytes, struct sim_stream *stream,
                       CUdeviceptr *address);
/* Frees a block once the stream gets there. Unlocked. */
CUresult sim_pool_fade(struct sim_stream *stream, CUdeviceptr address);

/* Where a block lies in the file behind its device's memory; fd -1: nowhere. */
void sim_pool_block_place(const void *block, int *fd, uint64_t *offset);

/* ---- pool_api.c */
CUmemoryPool sim_pool_current(CUdevice device);

#endif
