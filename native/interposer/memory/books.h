/* This process's own record of what it holds, so that a free can give back the right charge: one table for each kind of
 * object.
 *
 * Lock order, with those of struct gs_process first: context_lock, gone_lock, alloc_lock, implicit_lock, events_lock,
 * pool_lock, reserve_lock. The locks of the tables come last: a thread that holds one takes no other lock and does not
 * call the driver.
 *
 * `context` is the context with which an object ends, for a green context its primary one; NULL: none. */
#ifndef GPUSHARE_BOOKS_H
#define GPUSHARE_BOOKS_H

#include "interposer/memory/making.h"
#include "interposer/memory/order.h"
#include "interposer/os/table.h"
#include "interposer/process/process.h"

/* The life of what is charged. Another thread may call the driver with an object that a call is about to make or to end,
 * and handles and addresses come back at once. Of physical memory order.h keeps such calls apart. Of all else each moment
 * has its place in the books:
 *
 *   live       the call that made it has returned. Until then its bytes are reserved, and whoever ends what is not in the
 *              books waits for the calls on their way that make something (making.h).
 *   leaving    the call that ends it is on its way. The driver may still honour it, so it stays in the books under its
 *              key; another of the same key may be live already, and is found first.
 *
 * What has the same key lives one after the other, and a call that succeeds ends exactly one life: what was in the books when it
 * began is certainly gone, and if there was nothing, the oldest of what came into them meanwhile.
 *
 * Bytes are given back when nothing holds the object any more and the driver has returned. */
enum gs_moment {
  GS_LIVE,
  GS_LEAVING,
  GS_ENDING /* no object, but a call on its way that ends what has the key (life.h) */
};

struct gs_life {
  uint64_t call; /* unless it is live: the number of the call that is on its way */
  enum gs_moment moment;
};

/* How what is known by a key alone begins: life.h. */
struct gs_living {
  uint64_t key;
  struct gs_life life;
  uint64_t begun, made; /* numbers before and after the call that made it */
};

/* cuMemAlloc and its family, by address; arrays and mipmapped ones, by handle. */
struct gs_allocation {
  struct gs_living living;
  uint64_t bytes; /* charged */
  CUcontext context;
  int ordinal;
  uint64_t mapping; /* of a buffer or an array of external memory, or a sparse one: gs_mapping.made; 0: none */
};

/* A context made by cuCtxCreate. */
struct gs_created {
  uint64_t context;
  uint64_t bytes;  /* charged for it */
  uint64_t number; /* distinguishes contexts that had the same handle */
  int32_t holders; /* cuCtxCreate, and each cuCtxAttach from before its call */
  int ordinal;
};

/* The driver gave a context's handle out again, and a call that ended a context with it has not returned. */
struct gs_replaced {
  uint64_t context;
};

/* ---- physical memory (memory/objects.c) ---- */

enum gs_object_kind {
  GS_MEMORY,
  GS_MULTICAST, /* memory is bound to it */
  GS_IMPORT     /* or another name of something: what that may be is bound to it */
};

struct gs_object {
  uint64_t number; /* ours */
  uint64_t bytes;  /* charged */
  int ordinal;     /* GS_NO_DEVICE: not charged to this process */
  enum gs_object_kind kind;
  uint32_t holders; /* handles, mappings, bindings, open descriptors, and calls that are about to make one of these */
  uint32_t descriptors; /* those of them that are descriptors */
  bool exported;        /* has records in `exports` */
};

struct gs_handle {
  uint64_t handle; /* CUmemGenericAllocationHandle, or gs_external_key */
  uint64_t object;
  uint32_t references; /* number of releases until the driver drops the handle */
};

/* Also a buffer or an array of external memory, or a sparse array, by its address or handle. */
struct gs_mapping {
  uint64_t address, bytes;
  uint64_t object;   /* 0: not known */
  uint64_t made;     /* of those: number of the call that made it; 0: memory mapped by cuMemMap */
  CUcontext context; /* of those: with which it ends; NULL: none */
};

/* An object held by another: memory in a multicast object, or what an import may be. */
struct gs_binding {
  uint64_t to, memory;    /* objects */
  uint64_t offset, bytes; /* in the multicast object; 0, 0: an import */
  CUdevice device;
};

/* An object that was given away, under a name by which an import knows it again. */
struct gs_export {
  uint64_t name; /* of a descriptor: gs_descriptor_file */
  uint64_t object;
  uint64_t byte; /* os/descriptor.h */
  int watcher;   /* the same for all records with this name */
  bool holds;    /* the descriptor is open, which keeps the object */
};

/* ---- programs ---- */

struct gs_module {
  struct gs_living living; /* CUmodule */
  uint64_t bytes;          /* of its image, counted as the context's code */
  CUcontext context;
};

struct gs_library {
  struct gs_living living; /* CUlibrary */
  uint64_t code, data;     /* bytes of its code and of its variables */
  uint32_t parts;          /* number of parts in which its code is loaded; 0: not known yet */
};

/* A part of a library that is loaded in a context. */
struct gs_placed {
  uint64_t key;     /* hash of library, part and context */
  uint64_t library; /* its number: living.made */
  uint64_t bytes;   /* charged for it */
  CUcontext context;
};

struct gs_kernel {
  uint64_t kernel;  /* CUkernel */
  uint64_t library; /* CUlibrary */
  uint64_t number;  /* of the library */
};

/* A function or kernel of a collective. */
struct gs_collective {
  uint64_t function; /* CUfunction, CUkernel */
  uint64_t program;  /* CUmodule, CUlibrary */
  CUcontext context; /* NULL: part of a library */
};

/* Memory that the driver allocates in a context by itself: see implicit.c. */
struct gs_taken {
  uint64_t key;   /* context + enum gs_implicit */
  uint64_t bytes; /* charged */
  uint64_t sure;  /* bytes that the driver has certainly taken; for code, the sum of all images */
  uint32_t calls; /* calls in progress that may increase it */
  uint32_t began; /* what a new context has; for the stack bytes per thread, for buffers pieces */
  CUcontext context;
  int ordinal;
};

/* ---- pools ---- */

/* A contiguous piece by which a pool grew, as far as it is known. The driver keeps it as long as it has a live block;
 * without one it is known to be there until the pool is doubted. */
struct gs_chunk {
  uint64_t address, bytes;
  uint64_t pool;
  uint64_t number;  /* tells it from others at the same address */
  uint64_t whole;   /* the piece has at least so many bytes */
  uint32_t live;    /* blocks in it that are in use, and which no call is freeing */
  uint32_t trusted; /* the pool's doubts when it was last known to be there; means nothing while it has live blocks */
  bool fades;       /* scratch of pool_room.c */
};

/* A pool of the driver. Its life: a call that allocates from it announces a block (calls), and a call that destroys it
 * lets it leave (leaving) before the driver is asked. It ends when it is destroyed and has no block, announced block or
 * queued free any more. Handles may come back at once, so pools have numbers of their own. */
struct gs_pool {
  uint64_t number;            /* that of a device's graph pool is its ordinal + 1 */
  uint64_t handle;            /* CUmemoryPool; not that of a graph pool */
  uint64_t bytes;             /* charged */
  uint64_t growing;           /* the part of them that calls in progress have reserved (gs_grow_now) */
  uint64_t coming;            /* bytes that calls in progress may add */
  uint64_t cap;               /* upper bound in bytes; 0: no bound */
  uint64_t threshold;         /* the driver gives back what exceeds it when the program waits */
  uint64_t seen;              /* bytes reserved when the driver was last asked */
  uint64_t grown;             /* by how much that was seen to rise since the last call that can make it grow began */
  uint64_t live;              /* bytes of the blocks in use */
  uint64_t fading;            /* at most so many bytes were freed in stream order and are not free yet */
  uint64_t faded_bytes;       /* of the records in `faded` */
  uint64_t made, freed;       /* blocks ever made, and freed in stream order */
  uint32_t blocks, faded;     /* number of each in the pool */
  uint32_t freeing;           /* frees in progress of its blocks */
  uint32_t calls;             /* allocations in progress */
  uint32_t busy;              /* those of them that are in the driver */
  uint32_t yielding;          /* calls in progress that make it give memory back whatever its threshold */
  uint32_t leaving;           /* calls in progress that destroy it: the driver is not asked about it */
  uint32_t awaited;           /* of a destroyed pool: frees whose streams have not come to them */
  uint32_t asked;             /* how often the driver was asked since it became loose */
  uint32_t doubts;            /* how often it may have given back pieces, one does not know which */
  struct gs_chunk last_chunk; /* in which a block was made; or none */
  int ordinal;
  bool destroyed;
  /* it may give memory back when the program waits; see pool_charge.c */
  enum gs_loose { GS_TIGHT, GS_LOOSE_ONCE, GS_LOOSE } loose;
  const void *once_by; /* GS_LOOSE_ONCE: the thread whose next wait makes it tight */
};

/* The pool that a handle means now. */
struct gs_pool_handle {
  uint64_t handle, number;
};

/* A pool that is loose. */
struct gs_loose_pool {
  uint64_t number;
  int ordinal;
};

/* A block in use, or (in `faded`) one that was freed in stream order and whose free may not have happened yet, so that
 * its place cannot be reused. It is in use until a call that frees it has returned. */
struct gs_block {
  uint64_t address, bytes;
  uint64_t pool;
  uint64_t number; /* ours: tells it from others at the same address */
  uint64_t chunk;  /* address and number of the piece in which it lies; 0: not known */
  uint64_t chunk_number;
  CUcontext context;  /* with which it ends; of one that faded: of the stream of the free */
  CUstream stream;    /* if it faded: of the free */
  const void *thread; /* to which that stream belongs if it is CU_STREAM_PER_THREAD */
  uint32_t frees;     /* calls in progress that free it */
};

/* A stream-ordered free whose bytes are still charged: see async_free.c. */
struct gs_fading {
  uint64_t key;      /* ours */
  uint64_t line;     /* gs_fading_line; 0: waits for its whole context */
  uint64_t next;     /* the key of the next one in the line; 0: none */
  CUevent event;     /* recorded after it; or NULL */
  CUstream stream;   /* if there is no event */
  const void *known; /* the struct gs_stream of the stream */
  uint64_t bytes;
  uint64_t pool;     /* a destroyed pool that waits for it; 0: bytes are given back */
  CUcontext context; /* of the event and the stream */
  int ordinal;       /* charged */
  bool ended;        /* with its context: nothing is left to do */
};

/* The frees of a stream, which it comes to one after the other. */
struct gs_fading_line {
  uint64_t key;
  uint64_t first, last; /* gs_fading */
  int ordinal;          /* the stream's device, whose frees are checked together */
};

/* ---- graphs (hooks/graphs) ---- */

/* What an executable graph needs on a device. */
struct gs_graph {
  struct gs_living living; /* CUgraphExec << 4 | ordinal */
  uint64_t bytes;          /* upper bound of what a launch can allocate */
  uint32_t collectives;    /* number in the graph */
};

/* A node that was changed in an executable graph after instantiation. */
struct gs_node {
  uint64_t key;   /* hash of graph, node and ordinal */
  uint64_t graph; /* CUgraphExec */
  int32_t collectives;
};

/* The bodies of a conditional node. */
struct gs_bodies {
  uint64_t key; /* CUgraphNode */
  CUgraph *graphs;
  uint64_t count;
};

enum { GS_ENDED = 16 };

struct gs_books {
  struct gs_table pointers;                                      /* gs_allocation */
  struct gs_table arrays;                                        /* gs_allocation */
  struct gs_table contexts, replaced;                            /* gs_created */
  struct gs_table objects, handles, mappings, bindings, exports; /* one lock */
  struct gs_table modules;
  struct gs_table libraries, placed, kernels; /* one lock */
  struct gs_table collectives;
  struct gs_table taken;
  struct gs_table pools, pool_handles, loose_pools, blocks, faded, chunks; /* one lock */
  struct gs_table fading, fading_lines;                                    /* one lock */
  struct gs_table graphs;
  struct gs_table nodes;
  struct gs_table bodies;
  uint32_t lock[13];     /* of the lines above */
  uint64_t calls;        /* numbers given to calls */
  struct gs_order order; /* under the lock of `objects` */
  struct gs_making pointers_made, arrays_made, contexts_made, modules_made, libraries_made, graphs_made;
  uint32_t contexts_ended;   /* counts them; under gone_lock */
  CUcontext ended[GS_ENDED]; /* the last ones, by that count */
};

/* Never NULL; if out of memory, the tables are empty and stay so. */
struct gs_books *gs_books(void);

/* Removes everything that ends with the context. bytes: the charges, by ordinal, that the caller has to give back. */
void gs_books_drop_context(CUcontext context, uint64_t bytes[GS_MAX_DEVICES]);

#endif
