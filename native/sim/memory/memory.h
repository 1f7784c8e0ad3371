/* What the memory side of the simulated driver shares.
 *
 * Every address the driver knows lies in one range. Device memory is host pages that nobody touched yet: pieces of one
 * sparse memfd per device, so that another process can map the same bytes (IPC) and freed pages go back to the system
 * at once.
 *
 * sim_ranges_lock guards the table of ranges and everything hanging on it (pools, physical handles, arrays). It is
 * taken after sim_lock and never held while work is submitted or waited for. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "sim/model/stream.h"

enum {
  SIM_PAGE = 4096,
  SIM_ALLOC_ROUND = 512,          /* what cuMemAlloc and its family charge is a multiple of this */
  SIM_PITCH_ROUND = 512,          /* rows of cuMemAllocPitch */
  SIM_VMM_GRANULARITY = 2097152,  /* cuMemCreate */
  SIM_POOL_STEP = 33554432,       /* a pool grows by multiples of this */
  SIM_DEVICE_BYTES_PER_NS = 1000, /* copies inside a device, 1000 GB/s */
  SIM_FILL_BYTES_PER_NS = 2000,
  SIM_MIN_WORK_NS = 1000 /* the shortest fill or copy */
};
#define SIM_SYNC_MEMOPS (1u << 31)     /* in sim_range.flags: set by cuPointerSetAttribute */
#define SIM_ADDRESS_SPACE (1ull << 47) /* nothing larger can be asked for: sums of two such sizes cannot overflow */

enum sim_range_kind {
  SIM_RANGE_DEVICE,    /* cuMemAlloc, cuMemAllocPitch */
  SIM_RANGE_MANAGED,   /* cuMemAllocManaged: charged like device memory */
  SIM_RANGE_MODULE,    /* globals of a module */
  SIM_RANGE_ARRAY,     /* the bytes of an array: no address of theirs is given out */
  SIM_RANGE_GRAPH,     /* of a graph's allocation node; the device's graph pool is charged, not the address */
  SIM_RANGE_POOL,      /* a block of a pool; the pool is charged, not the block */
  SIM_RANGE_MAPPED,    /* cuMemMap */
  SIM_RANGE_IPC,       /* another process's memory, charged there */
  SIM_RANGE_EXTERNAL,  /* a buffer of external memory, charged where it was made */
  SIM_RANGE_IMPORTED,  /* a block of another process's pool, charged there */
  SIM_RANGE_HOST,      /* cuMemHostAlloc */
  SIM_RANGE_REGISTERED /* cuMemHostRegister: the caller's memory */
};

/* Pages of device or shared memory. fd is the memfd they are a piece of, -1: private pages that cannot be shared. */
struct sim_pages {
  void *at;
  uint64_t bytes; /* whole pages */
  int fd;
  uint64_t offset;
};

struct sim_range {
  uint64_t base, bytes; /* bytes: as asked for; what may be touched */
  uint64_t charged;     /* in the engine's books for this range */
  struct sim_pages pages;
  enum sim_range_kind kind;
  CUdevice device; /* of its bytes; for host memory the device of the context that made it */
  struct sim_ctx *ctx;
  unsigned flags;
  uint64_t id;
  bool dying;        /* being freed by a thread that waits for work to end */
  bool readable;     /* SIM_RANGE_MAPPED: cuMemSetAccess was called */
  unsigned opens;    /* SIM_RANGE_IPC: how often it was opened; SIM_RANGE_GRAPH: launches that have not freed it */
  bool unfreed;      /* SIM_RANGE_GRAPH: a launch left it for somebody else to free */
  uint64_t attached; /* SIM_RANGE_GRAPH: bytes of the device's graph pool behind it */
  /* pool block (SIM_RANGE_POOL), physical handle (SIM_RANGE_MAPPED), half of a secret (SIM_RANGE_IPC) */
  void *owner;
};

/* ---- for the other rooms ------------------------------------------------------------------------------------------- */
/* Ops for graph nodes and captures. payload/params point into *storage, which the caller keeps until the op was
 * submitted. */
union sim_op_storage {
  unsigned char bytes[2 * SIM_PAYLOAD_MAX];
  uint64_t align;
};
CUresult sim_memcpy_op(struct sim_ctx *ctx, const CUDA_MEMCPY3D *params, struct sim_op *op,
                       union sim_op_storage *storage);
CUresult sim_memset_op(struct sim_ctx *ctx, const CUDA_MEMSET_NODE_PARAMS *params, struct sim_op *op,
                       union sim_op_storage *storage);
/* Memory of graph allocation nodes: reserve gives an address without bytes behind it. A launch commits: freed_inside,
 * the graph frees it again; otherwise it is the program's until freed, and without auto_free a second launch before
 * that is refused. uncommit undoes one commit (may be called from run()); destroy forgets the address. */
CUresult sim_graph_mem_reserve(CUdevice device, size_t bytes, CUdeviceptr *address);
CUresult sim_graph_mem_commit(CUdeviceptr address, bool freed_inside, bool auto_free);
void sim_graph_mem_uncommit(CUdeviceptr address);
void sim_graph_mem_destroy(CUdeviceptr address);
/* The host pointer behind [address, address + bytes), device or mapped host memory, or NULL. Any lock may be held. */
void *sim_memory_host(CUdeviceptr address, size_t bytes);
/* Frees what a context still holds, when it is destroyed; no work is pending. */
void sim_memory_ctx_destroyed(struct sim_ctx *ctx);
/* Memory of a module's globals, charged with the module. It ends when freed or with its context, and its address may
 * then be something else's: *id tells whether it is still the same. Freeing what is gone is no error. */
CUresult sim_memory_module_alloc(struct sim_ctx *ctx, size_t bytes, CUdeviceptr *address, uint64_t *id);
bool sim_memory_module_alive(CUdeviceptr address, uint64_t id);
void sim_memory_module_free(CUdeviceptr address, uint64_t id);

/* ---- ranges.c ---------------------------------------------------------------------------------------------------- */
void sim_ranges_lock(void);
void sim_ranges_unlock(void);
uint64_t sim_round_up(uint64_t value, uint64_t multiple);
/* All with the lock held. Pointers stay valid until the range is removed. */
/* the range that holds this byte, dying ones not */
struct sim_range *sim_range_find(uint64_t address);
struct sim_range *sim_range_at(uint64_t base);                      /* the range that starts there */
struct sim_range *sim_range_overlap(uint64_t base, uint64_t bytes); /* any range touching these bytes */
struct sim_range *sim_range_next(uint64_t base);                    /* the first range starting at or after base */
/* Copies *range into the table; NULL if memory ran out. Sets its id. */
struct sim_range *sim_range_add(const struct sim_range *range);
void sim_range_remove(struct sim_range *range);

/* Fresh zeroed pages that cost nothing until touched. Any lock may be held. low: with addresses that fit 32 bits. */
CUresult sim_pages_new(CUdevice device, uint64_t bytes, bool low, struct sim_pages *pages);
void sim_pages_free(const struct sim_pages *pages);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
CUresult sim_memory_new(struct sim_ctx *ctx, CUdevice device, enum sim_range_kind kind, uint64_t bytes,
                        uint64_t charged, unsigned flags, bool low, CUdeviceptr *address);
/* Waits for the context's work, then gives the range back. INVALID_VALUE if nothing of that kind starts at address. */
CUresult sim_memory_free(CUdeviceptr address);
void sim_memory_array_free(CUdeviceptr address);
/* Takes a range that is marked dying out of the table and gives back what it holds. */
void sim_memory_forget(struct sim_range *range);

/* ---- host.c ------------------------------------------------------------------------------------------------------ */
bool sim_memory_pinned(const void *at, size_t bytes);

/* ---- vmm.c: with the lock held ----------------------------------------------------------------------------------- */
uint64_t sim_physical_id(const void *physical);
int sim_physical_handle_types(const void *physical);

/* ---- pools.c ----------------------------------------------------------------------------------------------------- */
/* For a range of kind SIM_RANGE_POOL, with the lock held. */
CUmemoryPool sim_pool_of_block(const void *block);
/* Synchronous free of a pool block (cuMemFree): no work that uses it is pending. */
void sim_pool_free_now(struct sim_range *range);
void sim_pools_ctx_destroyed(struct sim_ctx *ctx);

/* ---- graph_memory.c ---------------------------------------------------------------------------------------------- */
/* Adds what the node's memory still lacks to its device's sum; grows a device's pool until so much is free. */
void sim_graph_mem_sum(CUdeviceptr address, uint64_t sums[SIM_MAX_DEVICES]);
CUresult sim_graph_mem_grow(CUdevice device, uint64_t bytes);
/* What graphs have freed goes back to the device. */
void sim_graph_mem_trim(CUdevice device);
/* The program frees what a launch left it: false when there is nothing to free. The bytes go with
 * sim_graph_mem_uncommit. */
bool sim_graph_mem_free(CUdeviceptr address);

/* ---- stream_memory.c --------------------------------------------------------------------------------------------- */
/* What capturing streams make of cuMemAllocAsync. */
CUresult sim_graph_mem_capture(struct sim_stream *stream, CUdevice device, size_t bytes, CUdeviceptr *address);
CUresult sim_graph_mem_free_in_order(struct sim_stream *stream, CUdeviceptr address);
/* Memory of cuMemAlloc: its address is unknown at once, its bytes come back when the stream is there. */
CUresult sim_memory_free_in_order(struct sim_stream *stream, CUdeviceptr address);

/* ---- ipc.c ------------------------------------------------------------------------------------------------------- */
/* The secret under which other processes get the file behind a device's memory. With the ranges lock held. */
CUresult sim_ipc_share(CUdevice device, int fd, uint64_t secret[2]);
/* The device as this process numbers it, -1 if it does not see it. */
CUdevice sim_ipc_device(uint32_t engine_device);

/* ---- arrays.c ---------------------------------------------------------------------------------------------------- */
struct sim_array_view {
  void *at;
  uint64_t row_bytes, rows, layers, element_bytes;
  CUdevice device;
};
/* array_layout.c. INVALID_VALUE for a descriptor that no array can have; `at` and device are left alone. */
CUresult sim_array_layout(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, struct sim_array_view *view);
CUDA_ARRAY3D_DESCRIPTOR sim_array_level(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned level); /* of a mipmapped one */
/* INVALID_HANDLE for what is no array. */
CUresult sim_array_get(CUarray handle, struct sim_array_view *view);
void sim_arrays_ctx_destroyed(struct sim_ctx *ctx);

/* ---- copies.c ---------------------------------------------------------------------------------------------------- */
/* SIM_COPY_SYNC, the functions without Async in their name, returns when the data has moved, unless both ends are
 * inside a device: that one is not waited for. */
enum sim_copy_mode { SIM_COPY_ASYNC, SIM_COPY_SYNC };
CUresult sim_copy_submit(const CUDA_MEMCPY3D *params, CUstream stream, enum sim_copy_mode mode);

#endif
