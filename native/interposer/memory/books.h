/* This process's own record of what it holds, so that what is freed can be given back. Keys are driver handles and
 * addresses. */
#ifndef GPUSHARE_BOOKS_H
#define GPUSHARE_BOOKS_H

#include "interposer/process/process.h"

enum gs_book_kind {
  GS_BOOK_FREE = 0,
  GS_BOOK_POINTER, /* cuMemAlloc and family: device address */
  GS_BOOK_ARRAY,   /* CUarray, CUmipmappedArray */
  GS_BOOK_CONTEXT, /* CUcontext made by cuCtxCreate: cap = number of ours */
  /* physical memory or a multicast object: number of ours; count = handles, mappings and bindings */
  GS_BOOK_OBJECT,
  GS_BOOK_HANDLE,    /* CUmemGenericAllocationHandle: link = object, count = times to release */
  GS_BOOK_MAPPING,   /* address: link = object, bytes mapped */
  GS_BOOK_UNMAPPING, /* the same, which a call under way may unmap: cap = number of the call */
  GS_BOOK_IMPLICIT,  /* context + enum gs_implicit: what the driver takes there by itself; see implicit.c */
  GS_BOOK_MODULE,    /* CUmodule: link = bytes of its image, which count as the context's code */
  /* CUlibrary: link = bytes of its code, cap = of its variables, count = parts its code comes in, 0: not asked */
  GS_BOOK_LIBRARY,
  /* hash of a library, a part of it and a context that has that: link = library, cap = bytes that it counts as */
  GS_BOOK_PLACED,
  GS_BOOK_KERNEL, /* CUkernel: link = library */
  /* offset in a multicast object: link = the memory object, cap = the multicast object, flags = device */
  GS_BOOK_BINDING,
  /* CUmemoryPool, or gs_graph_pool: bytes charged, link = what calls under way may add, count = live blocks */
  GS_BOOK_POOL,
  GS_BOOK_BLOCK, /* address of a block of a pool: link = pool, cap = its size */
  /* address of one freed in the order of a stream (bytes: its handle): link = pool, cap = its size */
  GS_BOOK_FADED,
  GS_BOOK_CHUNK,  /* address of a piece that a pool grew by: link = pool, cap = its size */
  GS_BOOK_FADING, /* a free in stream order of bytes that are not back yet: see async_free.c */
  /* CUgraphExec << 4 | ordinal: link = the most a launch can take of that device, count = collectives in it */
  GS_BOOK_GRAPH,
  /* hash of a CUgraphExec and a node that differs there from the graph it was made of; see graph_collectives.c */
  GS_BOOK_NODE,
  GS_BOOK_COLLECTIVE /* CUfunction or CUkernel of a collective: link = its module or library */
};

struct gs_entry {
  uint64_t key;
  uint32_t kind; /* enum gs_book_kind */
  int32_t ordinal;
  uint64_t bytes; /* charged for it */
  uint64_t link;
  uint32_t count;
  uint32_t flags;
  CUcontext context;      /* the one it dies with, or NULL */
  uint64_t cap;           /* pools: never larger than this, 0: no bound; else see the kind */
  uint64_t live;          /* pools: bytes of live blocks */
  uint64_t seen;          /* pools: reserved when last asked */
  uint32_t chunks, faded; /* pools: how many GS_BOOK_CHUNK and GS_BOOK_FADED are of it */
};

/* Makes sure that `more` entries can be added: call before the driver is asked, so that nothing it gave goes
 * unrecorded. */
bool gs_book_room(unsigned more);
/* Several books calls that belong together. The single calls below take the lock themselves. */
void gs_book_lock(void);
void gs_book_unlock(void);
/* With the lock held. find gives NULL where there is none; the pointer is good until the next add or remove. */
struct gs_entry *gs_book_find(enum gs_book_kind kind, uint64_t key);
void gs_book_add(const struct gs_entry *entry);
void gs_book_remove(struct gs_entry *entry);
/* The entry after *at (start with 0) of this kind, or NULL. Nothing may be removed on the way. */
struct gs_entry *gs_book_next(enum gs_book_kind kind, uint32_t *at);

/* Removes all entries of a kind with this link; their bytes are not given back. */
void gs_book_drop_link(enum gs_book_kind kind, uint64_t link);

void gs_book_put(const struct gs_entry *entry);
/* Removes the entry and gives it in *out; false if there is none. */
bool gs_book_take(enum gs_book_kind kind, uint64_t key, struct gs_entry *out);
/* Removes everything that dies with context. What was charged for it, by ordinal, is the caller's to give back. */
void gs_book_drop_context(CUcontext context, uint64_t bytes[GS_MAX_DEVICES]);

#endif
