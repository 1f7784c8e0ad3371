/* Internal interface of the simulated driver's memory files.
 *
 * Every address known to the driver lies in exactly one range. Device memory consists of host pages from one sparse
 * memfd per device, so that another process can map the same bytes (IPC) and freed pages return to the system at once.
 *
 * sim_ranges_lock guards the table of ranges and everything attached to it (pools, physical handles, arrays). Take it
 * after sim_lock; never hold it while submitting work or waiting for it. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "sim/model/stream.h"

enum {
  SIM_PAGE = 4096,
  SIM_ALLOC_ROUND = 512,          /* granularity of allocations up to half a page, which share pages */
  SIM_ALLOC_PAGE = 2097152,       /* granularity of larger ones, which take whole pages */
  SIM_PITCH_ROUND = 512,          /* row alignment of cuMemAllocPitch */
  SIM_VMM_GRANULARITY = 2097152,  /* cuMemCreate */
  SIM_POOL_STEP = 33554432,       /* pools grow by multiples of this */
  SIM_DEVICE_BYTES_PER_NS = 1000, /* copies inside a device, 1000 GB/s */
  SIM_FILL_BYTES_PER_NS = 2000,
  SIM_MIN_WORK_NS = 1000 /* minimum duration of a fill or copy */
};
#define SIM_SYNC_MEMOPS (1u << 31) /* in sim_range.flags; set by cuPointerSetAttribute */
#define SIM_ACCESS_HOST (1u << SIM_MAX_DEVICES)
/* upper bound of a requested size, so that the sum of two sizes cannot overflow */
#define SIM_ADDRESS_SPACE (1ull << 47)

enum sim_range_kind {
  SIM_RANGE_DEVICE,    /* cuMemAlloc, cuMemAllocPitch */
  SIM_RANGE_MANAGED,   /* cuMemAllocManaged: charged like device memory */
  SIM_RANGE_MODULE,    /* globals of a module */
  SIM_RANGE_ARRAY,     /* the bytes of an array; their address is not visible to the program */
  SIM_RANGE_GRAPH,     /* memory of a graph's allocation node; the device's graph pool is charged, not the range */
  SIM_RANGE_POOL,      /* a block of a pool; the pool is charged, not the block */
  SIM_RANGE_MAPPED,    /* cuMemMap */
  SIM_RANGE_IPC,       /* another process's memory, charged there */
  SIM_RANGE_EXTERNAL,  /* a buffer of external memory, charged to the process that created it */
  SIM_RANGE_IMPORTED,  /* a block of another process's pool, charged there */
  SIM_RANGE_HOST,      /* cuMemHostAlloc */
  SIM_RANGE_REGISTERED /* cuMemHostRegister: memory owned by the caller */
};

/* Pages of device or shared memory. fd is the memfd that holds them; -1: private pages that cannot be shared. */
struct sim_pages {
  void *at;
  uint64_t bytes; /* a multiple of SIM_PAGE */
  int fd;
  uint64_t offset;
};

/* Memory of this process or another that the engine keeps while anything refers to it (blocks.c). id 0: none. */
struct sim_block {
  uint64_t id, key;
};

/* Memory in use, for check.c: bytes charged to this process, excluding blocks, and the number of holds of blocks. The
 * functions that add to it require sim_lock and sim_ranges_lock. */
struct sim_sum {
  uint64_t bytes, holds;
};

struct sim_range {
  uint64_t base, bytes;   /* bytes: as requested, the part that may be accessed */
  uint64_t charged;       /* in the engine's accounts, for this range; 0 if something else is charged */
  struct sim_block block; /* held once for this range */
  struct sim_pages pages;
  enum sim_range_kind kind;
  CUdevice device; /* device of the bytes; for host memory the device of the context that allocated it */
  struct sim_ctx *ctx;
  unsigned flags;
  uint64_t id;
  bool dying;        /* a thread is freeing it and waits for work to end */
  uint32_t access;   /* SIM_RANGE_MAPPED: by cuMemSetAccess, one bit per device and SIM_ACCESS_HOST */
  unsigned opens;    /* SIM_RANGE_IPC: number of times opened; SIM_RANGE_GRAPH: launches that have not freed it */
  bool unfreed;      /* SIM_RANGE_GRAPH: a launch left it allocated; the program or another graph frees it */
  bool nodeless;     /* SIM_RANGE_GRAPH: its node is gone, so the address is released together with the memory */
  uint64_t attached; /* SIM_RANGE_GRAPH: bytes of the device's graph pool that back it */
  /* pool block (SIM_RANGE_POOL), physical handle (SIM_RANGE_MAPPED), half of a secret (SIM_RANGE_IPC) */
  void *owner;
};

/* ---- for the other directories ----------------------------------------------------------------------------------- */
/* Ops for graph nodes and captures. payload and params point into *storage, which must stay valid until the op is
 * submitted. */
union sim_op_storage {
  unsigned char bytes[2 * SIM_PAYLOAD_MAX];
  uint64_t align;
};
CUresult sim_memcpy_op(struct sim_ctx *ctx, const CUDA_MEMCPY3D *params, struct sim_op *op,
                       union sim_op_storage *storage);
CUresult sim_memset_op(struct sim_ctx *ctx, const CUDA_MEMSET_NODE_PARAMS *params, struct sim_op *op,
                       union sim_op_storage *storage);
/* Memory of graph allocation nodes. reserve returns an address without memory behind it. commit is called at a launch:
 * if freed_inside, the graph frees the memory itself, otherwise it stays allocated until the program frees it; a second
 * launch before that is refused unless auto_free is set. uncommit reverts one commit and may be called from run().
 * destroy releases the address; memory that a launch left allocated remains until it is freed. */
CUresult sim_graph_mem_reserve(CUdevice device, size_t bytes, CUdeviceptr *address);
CUresult sim_graph_mem_commit(CUdeviceptr address, bool freed_inside, bool auto_free);
void sim_graph_mem_uncommit(CUdeviceptr address);
void sim_graph_mem_destroy(CUdeviceptr address);
/* The host pointer to [address, address + bytes) for device or mapped host memory, or NULL. May be called with any lock
 * held. */
void *sim_memory_host(CUdeviceptr address, size_t bytes);
/* True if a mapping of cuMemMap is there. */
bool sim_memory_mapped(const void *at);
/* True if there is memory at these addresses. Work checks this when it takes effect: the program may have freed the
 * memory since submission, which on a real device corrupts the context but does not end the process. */
bool sim_memory_present(const void *at, size_t bytes);
/* Identifies the memory that a kernel of a context finds at these addresses: the number is another one once any of it
 * was unmapped, freed or replaced. 0: it does not reach all of them. Memory that waits to be freed is there. */
uint64_t sim_memory_reach(const struct sim_ctx *ctx, CUdeviceptr address, uint64_t bytes);
/* Frees what a context still holds when it is destroyed. No work may be pending. */
void sim_memory_ctx_destroyed(struct sim_ctx *ctx);
/* Memory of a module's globals, charged with the module. It lives until it is freed or its context ends. The address
 * may then be reused; the id identifies the memory. Freeing memory that no longer exists is not an error. */
CUresult sim_memory_module_alloc(struct sim_ctx *ctx, size_t bytes, CUdeviceptr *address, uint64_t *id);
bool sim_memory_module_alive(CUdeviceptr address, uint64_t id);
void sim_memory_module_free(CUdeviceptr address, uint64_t id);

/* ---- ranges.c ---------------------------------------------------------------------------------------------------- */
void sim_ranges_lock(void);
void sim_ranges_unlock(void);
uint64_t sim_round_up(uint64_t value, uint64_t multiple);
/* Call these with the lock held. Pointers stay valid until the range is removed. */
/* the range that contains this byte, excluding dying ranges; the second one includes them */
struct sim_range *sim_range_find(uint64_t address);
struct sim_range *sim_range_even_dying(uint64_t address);
struct sim_range *sim_range_at(uint64_t base);                      /* the range that starts there */
struct sim_range *sim_range_overlap(uint64_t base, uint64_t bytes); /* any range that overlaps these bytes */
struct sim_range *sim_range_next(uint64_t base);                    /* the first range starting at or after base */
/* True if the bytes, of which the first is in this range, can be accessed: they are in it, or in it and the adjacent
 * mappings of cuMemMap. */
bool sim_range_covers(const struct sim_range *range, uint64_t address, uint64_t bytes);
/* Copies *range into the table and assigns its id. NULL: out of memory, or its context has since been destroyed. */
struct sim_range *sim_range_add(const struct sim_range *range);
void sim_range_remove(struct sim_range *range);

void sim_ranges_sum(CUdevice device, struct sim_sum *sum);

/* New zeroed pages that use no memory until touched. May be called with any lock held. low: the addresses fit in 32
 * bits. */
CUresult sim_pages_new(CUdevice device, uint64_t bytes, bool low, struct sim_pages *pages);
/* kept: the bytes remain for other holders; only this mapping is removed. */
void sim_pages_free(const struct sim_pages *pages, bool kept);

/* ---- blocks.c: may be called with any lock held ------------------------------------------------------------------ */
/* Turns bytes charged to this process into a block, held once for the caller; does nothing if they are one already. fd:
 * the file behind them, for importers of the block; -1: none. OPERATING_SYSTEM: the engine refused. */
CUresult sim_block_make(struct sim_block *block, CUdevice device, uint64_t bytes, int fd);
CUresult sim_block_hold(const struct sim_block *block); /* adds a hold; INVALID_VALUE: the creator has freed it */
bool sim_block_drop(const struct sim_block *block);     /* removes a hold; true: something still keeps the block */
/* Makes a descriptor that represents the block and keeps it; the caller owns it. */
CUresult sim_block_export(const struct sim_block *block, int *fd);
/* Holds the block of an exported descriptor; *fd: the file behind it, owned by the caller. INVALID_VALUE: not an
 * exported descriptor. */
CUresult sim_block_import(int exported, struct sim_block *block, int *fd);
/* Ends the use of memory: drops the block, or else releases the charge. True: something still keeps the memory. */
bool sim_charge_end(const struct sim_block *block, CUdevice device, uint64_t charged);
static inline void sim_sum_add(struct sim_sum *sum, const struct sim_block *block, uint64_t charged) {
  sum->bytes += block->id ? 0 : charged;
  sum->holds += block->id != 0;
}

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
/* A range with new memory. bytes: its size, charged: the amount in the engine's accounts; the other parameters as in
 * struct sim_range and sim_pages_new. */
CUresult sim_memory_new(struct sim_ctx *ctx, CUdevice device, enum sim_range_kind kind, uint64_t bytes,
                        uint64_t charged, unsigned flags, bool low, CUdeviceptr *address);
/* Waits for the context's work, then frees the range. INVALID_VALUE if no range that can be freed this way starts at
 * address. */
CUresult sim_memory_free(CUdeviceptr address);
/* Frees the memory of an array. No work that uses it may be pending. */
void sim_memory_array_free(CUdeviceptr address);
/* Removes a range that is marked dying from the table and frees what it holds. */
void sim_memory_forget(struct sim_range *range);

/* ---- host.c ------------------------------------------------------------------------------------------------------ */
/* True if all the bytes are pinned or registered host memory. */
bool sim_memory_pinned(const void *at, size_t bytes);

/* ---- reach.c: with the lock held --------------------------------------------------------------------------------- */
/* Whether kernels of the context can use this memory. */
bool sim_range_reached(const struct sim_ctx *ctx, const struct sim_range *range);

/* ---- vmm.c: with the lock held ----------------------------------------------------------------------------------- */
uint64_t sim_physical_id(const void *physical);
int sim_physical_handle_types(const void *physical);
void sim_physicals_sum(CUdevice device, struct sim_sum *sum);

/* ---- external.c -------------------------------------------------------------------------------------------------- */
void sim_externals_sum(CUdevice device, struct sim_sum *sum);

/* ---- pools.c ----------------------------------------------------------------------------------------------------- */
/* For a range of kind SIM_RANGE_POOL, with the lock held. */
CUmemoryPool sim_pool_of_block(const void *block);
/* The memory of a pool that this address lies in, used or not; NULL: of none. With the lock held. */
const struct sim_pages *sim_pool_pages(uint64_t address);
/* Synchronous free of a pool block (cuMemFree). No work that uses it may be pending. */
void sim_pool_free_now(struct sim_range *range);
void sim_pools_ctx_destroyed(struct sim_ctx *ctx);
void sim_pools_sum(CUdevice device, struct sim_sum *sum);

/* ---- graph_memory.c ---------------------------------------------------------------------------------------------- */
/* Adds the bytes that the node's memory still needs to its device's sum. The second function grows a device's pool
 * until that many bytes are free. */
void sim_graph_mem_sum(CUdeviceptr address, uint64_t sums[SIM_MAX_DEVICES]);
CUresult sim_graph_mem_grow(CUdevice device, uint64_t bytes);
void sim_graph_mem_pool_sum(CUdevice device, struct sim_sum *sum);
/* Returns memory that graphs have freed to the device. */
void sim_graph_mem_trim(CUdevice device);
/* Frees memory that a launch left allocated, on behalf of the program; false if there is none. sim_graph_mem_uncommit
 * releases the bytes. */
bool sim_graph_mem_free(CUdeviceptr address);

/* ---- stream_memory.c --------------------------------------------------------------------------------------------- */
/* cuMemAllocAsync and cuMemFreeAsync on a capturing stream. */
CUresult sim_graph_mem_capture(struct sim_stream *stream, CUdevice device, size_t bytes, CUdeviceptr *address);
CUresult sim_graph_mem_free_in_order(struct sim_stream *stream, CUdeviceptr address);
/* Frees memory of cuMemAlloc in stream order: the address becomes invalid at once, and the memory is released when the
 * stream gets there. */
CUresult sim_memory_free_in_order(struct sim_stream *stream, CUdeviceptr address);

/* ---- ipc.c ------------------------------------------------------------------------------------------------------- */
/* Returns the secret with which other processes obtain the file behind a device's memory. Requires the ranges lock. */
CUresult sim_ipc_share(CUdevice device, int fd, uint64_t secret[2]);
/* This process's ordinal of an engine's device; -1 if the process does not see it. */
CUdevice sim_ipc_device(uint32_t engine_device);

/* ---- arrays.c ---------------------------------------------------------------------------------------------------- */
struct sim_array_view {
  void *at;
  uint64_t row_bytes, rows, layers, element_bytes;
  CUdevice device;
};
/* array_layout.c. INVALID_VALUE if the descriptor is not valid for an array; `at` and device are not set. */
CUresult sim_array_layout(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, struct sim_array_view *view);
CUDA_ARRAY3D_DESCRIPTOR sim_array_level(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned level); /* mipmapped */
/* INVALID_HANDLE if handle is not a live array. */
CUresult sim_array_get(CUarray handle, struct sim_array_view *view);
void sim_arrays_ctx_destroyed(struct sim_ctx *ctx);

/* ---- textures.c -------------------------------------------------------------------------------------------------- */
void sim_textures_ctx_destroyed(struct sim_ctx *ctx);
unsigned sim_element_bytes(CUarray_format format, unsigned channels); /* 0: not a format of plain elements */

/* ---- copies.c ---------------------------------------------------------------------------------------------------- */
/* SIM_COPY_SYNC: used by the functions without Async in their names. They return when the data has moved, except that
 * copies within a device are not waited for. */
enum sim_copy_mode { SIM_COPY_ASYNC, SIM_COPY_SYNC };
CUresult sim_copy_submit(const CUDA_MEMCPY3D *params, CUstream stream, enum sim_copy_mode mode);

/* ---- pageable.c: plain memory of the program --------------------------------------------------------------------- */

/* True if the devices can use it. */
bool sim_pageable(void);
/* Moves pages to a device, or to the host (device < 0). This is a hint: pages for which a device has no room stay on
 * the host. */
void sim_pageable_move(CUdeviceptr address, size_t bytes, CUdevice device);

#endif
