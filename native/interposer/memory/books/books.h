/* This process's record of what it holds, from which a free learns the right charge to give back: one table for each
 * kind of object.
 *
 * Lock order, starting with the locks of struct gs_process: context_lock, gone_lock, alloc_lock, implicit_lock,
 * events_lock, pool_lock, reserve_lock. The tables' locks come last: a thread that holds one takes no other lock and
 * does not call the driver.
 *
 * In a record, `context` is the context whose end destroys the object (for a green context, its primary context); NULL:
 * none. */
#ifndef GPUSHARE_BOOKS_H
#define GPUSHARE_BOOKS_H

#include "interposer/memory/books/making.h"
#include "interposer/memory/books/underway.h"
#include "interposer/os/table.h"
#include "interposer/process/process.h"

/* The life of a charged object. Another thread may call the driver with an object that a call is about to make or to
 * end, and the driver may hand out a freed handle or address again at once. For physical memory, order.h keeps such
 * calls apart. For everything else, each record is in one of these moments:
 *
 *   live       the call that made the object has returned. Until then its bytes are reserved, and a call that ends an
 *              object that is not in the books waits for the calls in progress that make such objects (making.h).
 *   leaving    the call that ends it is in progress. The driver may still honour it, so it stays in the books under its
 *              key; another record with the same key may already be live, and is found first.
 *
 * Objects with the same key live one after the other, and a successful call ends exactly one life: what was in the
 * books when the call began is certainly gone; if nothing was, the oldest of the records added since.
 *
 * Bytes are given back when nothing holds the object any more and the driver has returned. */
enum gs_moment {
  GS_LIVE,
  GS_LEAVING,
  GS_ENDING /* no object, but a call in progress that ends whatever has the key (life.h) */
};

struct gs_life {
  uint64_t call; /* number of the call in progress; unused while live */
  enum gs_moment moment;
};

/* The start of each record that is identified by a key alone: life.h. */
struct gs_living {
  uint64_t key;
  struct gs_life life;
  uint64_t begun, made; /* numbers before and after the call that made it */
};

/* Memory of cuMemAlloc and its family, by address; arrays and mipmapped arrays, by handle. */
struct gs_allocation {
  struct gs_living living;
  uint64_t bytes; /* charged */
  CUcontext context;
  int ordinal;
  uint32_t kind;    /* of a pointer: enum gs_fixed; GS_FIXED_KINDS: movable */
  uint64_t mapping; /* gs_mapping.made of a buffer or array of external memory, or of a sparse array; 0: none */
};

/* A context made by cuCtxCreate. */
struct gs_created {
  uint64_t context;
  uint64_t bytes;  /* charged for it */
  uint64_t number; /* distinguishes contexts that had the same handle */
  int32_t holders; /* 1 for cuCtxCreate, and 1 for each cuCtxAttach, counted before the driver is called */
  int ordinal;
};

/* A context handle that the driver has handed out again before a call that ended a context with it has returned. */
struct gs_replaced {
  uint64_t context;
};

/* ---- physical memory (memory/physical/objects.c) ---- */

enum gs_object_kind {
  GS_MEMORY,
  GS_MULTICAST, /* memory is bound to it */
  GS_IMPORT     /* or another alias: all objects that it may be are bound to it */
};

struct gs_object {
  uint64_t number; /* ours */
  uint64_t bytes;  /* charged */
  int ordinal;     /* GS_NO_DEVICE: not charged to this process */
  enum gs_object_kind kind;
  uint32_t holders; /* handles, mappings, bindings, open descriptors, and calls that are about to make one of these */
  uint32_t descriptors; /* the holders that are open descriptors */
  bool exported;        /* has records in `exports` */
};

struct gs_handle {
  uint64_t handle; /* CUmemGenericAllocationHandle, or gs_external_key */
  uint64_t object;
  uint32_t references; /* number of releases until the driver drops the handle */
};

/* A mapping by cuMemMap; also a buffer or array of external memory, or a sparse array, by its address or handle. */
struct gs_mapping {
  uint64_t address, bytes;
  uint64_t object;   /* 0: not known */
  uint64_t made;     /* of a buffer or array: number of the call that made it; 0: mapped by cuMemMap */
  CUcontext context; /* of a buffer or array: with which it ends; NULL: none */
};

/* An object held by another: memory in a multicast object, or what an import may be. */
struct gs_binding {
  uint64_t to, memory;    /* objects */
  uint64_t offset, bytes; /* in the multicast object; 0, 0: an import */
  CUdevice device;
};

/* An exported object, under a name by which an import recognises it. */
struct gs_export {
  uint64_t name; /* of a descriptor: gs_descriptor_file */
  uint64_t object;
  uint64_t byte; /* os/files/descriptor.h */
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

/* Memory that the driver allocates implicitly in a context: see implicit.c. */
struct gs_taken {
  uint64_t key;   /* context + enum gs_implicit */
  uint64_t bytes; /* charged */
  uint64_t sure;  /* bytes that the driver has certainly taken; for code, the sum of all images */
  uint32_t calls; /* calls in progress that may increase it */
  uint32_t began; /* initial value of the context: bytes per thread for the stack, pieces for buffers */
  CUcontext context;
  int ordinal;
};

/* ---- pools ---- */

/* The piece by which a pool grew last, for as long as `block` is in it, which keeps it. */
struct gs_pool_piece {
  uint64_t at, end;
  uint64_t from;  /* addresses from here to the end are free */
  uint64_t block; /* gs_block.number; 0: no piece is known */
};

/* A pool of the driver. A call that allocates from it announces a block (`calls`), and a call that destroys it counts
 * in `leaving` before it reaches the driver. The pool ends when it is destroyed and has no block, announced block or
 * queued free any more. The driver may reuse a handle at once, so pools have numbers of their own. */
struct gs_pool {
  uint64_t number;    /* of a device's graph pool: its ordinal + 1 */
  uint64_t handle;    /* CUmemoryPool; a graph pool has none */
  uint64_t bytes;     /* charged */
  uint64_t growing;   /* the part of `bytes` that calls in progress have reserved (gs_grow_now) */
  uint64_t coming;    /* bytes that calls in progress may add */
  uint64_t cap;       /* upper bound in bytes; 0: no bound */
  uint64_t threshold; /* the driver gives back what exceeds it when the program waits */
  uint64_t seen;      /* bytes reserved when the driver was last asked */
  uint64_t grown;     /* total rise of `seen` since the last call that can make the pool grow began */
  struct gs_pool_piece piece;
  uint64_t live;        /* bytes of the blocks in use */
  uint64_t fading;      /* upper bound of the bytes freed in stream order that are not free yet */
  uint64_t made, freed; /* blocks ever made, and freed in stream order */
  uint32_t blocks;      /* number of its blocks in use */
  uint32_t queued;      /* number of its records in `queued` */
  uint32_t freeing;     /* frees in progress of its blocks */
  uint32_t calls;       /* allocations in progress */
  uint32_t busy;        /* allocations that are in the driver */
  uint32_t leaving;     /* calls in progress that destroy it: the driver is not asked about it */
  uint32_t awaited;     /* of a destroyed pool: frees that their streams have not reached */
  uint32_t asked;       /* waits that found frees queued since it became loose; see `tighten` in pool_charge.c */
  int ordinal;
  bool destroyed;
  /* it may give memory back when the program waits; see pool_charge.c */
  enum gs_loose { GS_TIGHT, GS_LOOSE_ONCE, GS_LOOSE } loose;
  const void *once_by; /* GS_LOOSE_ONCE: the thread whose next wait makes it tight */
};

/* The pool that a handle names now. */
struct gs_pool_handle {
  uint64_t handle, number;
};

/* A pool that is loose. */
struct gs_loose_pool {
  uint64_t number;
  int ordinal;
};

/* A block of a pool, in use until a call that frees it has returned. */
struct gs_block {
  uint64_t address, bytes;
  uint64_t pool;
  uint64_t number;   /* ours: distinguishes it from others at the same address */
  CUcontext context; /* with which it ends */
  uint32_t frees;    /* calls in progress that free it */
};

/* A stream in which frees of a pool's blocks may be queued. A pool has at most GS_QUEUED_MAX of them and one more, which
 * stands for all others. */
struct gs_queued {
  uint64_t pool;
  CUstream stream;
  CUcontext context;  /* of the stream */
  const void *thread; /* to which the stream belongs if it is CU_STREAM_PER_THREAD */
};
enum { GS_QUEUED_MAX = 64 };

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

/* The frees of a stream, in the order in which the stream reaches them. */
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
  struct gs_table contexts, replaced;                            /* gs_created, gs_replaced */
  struct gs_table objects, handles, mappings, bindings, exports; /* one lock */
  struct gs_table modules;
  struct gs_table libraries, placed, kernels; /* one lock */
  struct gs_table collectives;
  struct gs_table taken;
  struct gs_table pools, pool_handles, loose_pools, blocks, queued; /* one lock */
  struct gs_table fading, fading_lines;                             /* one lock */
  struct gs_table graphs;
  struct gs_table nodes;
  struct gs_table bodies;
  uint32_t lock[13];     /* one for each line of tables above */
  uint64_t calls;        /* numbers given to calls */
  struct gs_order order; /* under the lock of `objects` */
  struct gs_making pointers_made, arrays_made, contexts_made, modules_made, libraries_made, graphs_made;
  uint32_t contexts_ended;   /* number of contexts that have ended; under gone_lock */
  CUcontext ended[GS_ENDED]; /* the last of these, indexed by that count modulo GS_ENDED */
};

/* Never NULL; if out of memory, the tables are empty and stay so. */
struct gs_books *gs_books(void);

/* Removes everything that ends with the context. bytes: the charges, by ordinal, that the caller has to give back. */
void gs_books_drop_context(CUcontext context, uint64_t bytes[GS_MAX_DEVICES]);
/* What is in the books as in the context ends with another one. */
void gs_books_move_context(CUcontext context, CUcontext heir);

#endif
