/* Memory pools: shared by pools.c (memory) and pool_api.c (handles, attributes). Requires sim_ranges_lock unless noted
 * otherwise. */
#ifndef SIM_POOLS_H
#define SIM_POOLS_H

#include "sim/memory/memory.h"

enum { SIM_POOL_HANDLE = 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */ };

struct chunk;

struct CUmemPoolHandle_st {
  bool standard;             /* the device's default pool; it cannot be destroyed */
  bool destroyed;            /* destroyed by the program, but blocks are still allocated */
  bool exportable, imported; /* pool_ipc.c; an imported pool does not allocate */
  uint64_t identity;         /* shared by an exported pool and its imports; 0: never exported */
  CUmemLocation location;
  uint64_t reserved, reserved_high, used, used_high, threshold, max;
  int reuse[3];
  CUmemAccess_flags access[SIM_MAX_DEVICES];
  struct chunk *chunks;
  struct CUmemPoolHandle_st *next;
};

/* ---- pools.c */
bool sim_pool_known(CUmemoryPool handle); /* created and not yet destroyed */
void sim_pool_start(struct CUmemPoolHandle_st *pool, CUmemLocation location, uint64_t max);
/* Frees a destroyed pool that is no longer used. */
void sim_pool_end(struct CUmemPoolHandle_st *pool);
/* Releases empty chunks while at least `keep` bytes stay reserved. */
void sim_pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep);

CUdevice sim_pool_device(const struct CUmemPoolHandle_st *pool); /* 0 for host memory */
/* Allocates a block for work on a stream; retries if the device is full. INVALID_VALUE: no such pool. Call without
 * locks. */
CUresult sim_pool_take(struct CUmemPoolHandle_st *pool, uint64_t bytes, struct sim_stream *stream,
                       CUdeviceptr *address);
/* Frees a block in stream order. Call without locks. */
CUresult sim_pool_fade(struct sim_stream *stream, CUdeviceptr address);

/* Offset of a block in the file behind its device's memory; *fd is -1 if it is in no file. *shared: the engine's block
 * that keeps the whole chunk's memory for importers. */
CUresult sim_pool_block_place(void *block, int *fd, uint64_t *offset, struct sim_block *shared);

/* ---- pool_api.c */
CUmemoryPool sim_pool_current(CUdevice device);

#endif
