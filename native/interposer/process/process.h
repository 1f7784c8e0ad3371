/* This process as gpushare sees it, and what the rooms above it share.
 *
 * We are a guest in a stranger's process: nothing happens before the program's first CUDA call; no exit, abort, signal,
 * output on stdout; errno, umask, handlers and descriptors of the program are left alone; no malloc (gs_private_map
 * instead). */
#ifndef GPUSHARE_PROCESS_H
#define GPUSHARE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/gs_cuda.h"
#include "page/gs_err.h"
#include "page/gs_page.h"
#include "interposer/driver/driver.h"
#include "interposer/os/compiler.h"
#include "interposer/os/guest.h"

/* ---- state.c: this process --------------------------------------------------------------------------------------- */

enum gs_joined {
  GS_JOIN_NOT_YET = 0,
  GS_JOINED = 1,     /* a slot is ours: memory is charged, submissions are gated */
  GS_JOIN_BARE = 2,  /* there is no grant: every call passes */
  GS_JOIN_FAILED = 3 /* there is a grant that cannot be honoured: CUDA answers SYSTEM_NOT_READY */
};

struct gs_time; /* time/timing.h */

/* greens.c */
struct gs_green_list {
  uint32_t lock;
  uint32_t used, size;
  uint64_t ever; /* how many were made */
  struct gs_green *green;
};

enum { GS_KNOWN_KERNELS = 2048 /* a power of two */ };

/* Lives in pages that a fork wipes: a child is a new process that has joined nothing. Fields are constant once `joined`
 * says GS_JOINED, but for those marked (rejoin), which gs_rejoin changes. */
struct gs_process {
  uint32_t joined;   /* enum gs_joined; acquire */
  uint32_t ndevices; /* of the grant; device words are indexed by ordinal < ndevices */
  const struct gs_limits *limits;
  struct gs_usage *usage;
  struct gs_slot *slot; /* ours: slot->device[ordinal] */
  uint32_t slot_index;
  uint32_t generation;
  uint32_t daemon_epoch; /* (rejoin) of the daemon that answered the last join */
  int32_t host_pid;
  int bell;   /* (rejoin) eventfd, written through gs_ring */
  int socket; /* (rejoin) the tenant socket, for poll: readable or hung up means the daemon is gone. -1: lost */
  int8_t ordinal_of[GS_MAX_DEVICES];    /* CUdevice -> ordinal, by UUID; -1: a device that is not of this grant */
  uint64_t total_bytes[GS_MAX_DEVICES]; /* what `total` answers: the limit at the first CUDA call, for ever */
  uint32_t join_lock;
  uint32_t reserve_lock[GS_MAX_DEVICES]; /* memory/charge.c */
  uint32_t context_lock[GS_MAX_DEVICES]; /* hooks/contexts: the primary context of the device */
  uint32_t gone_lock;                    /* hooks/contexts: after context_lock */
  CUcontext primary[GS_MAX_DEVICES];     /* hooks/contexts: the active primary context */
  uint64_t primary_id[GS_MAX_DEVICES];   /* hooks/contexts: the driver's number of it, 0 where it has none */
  uint32_t ending[GS_MAX_DEVICES];       /* hooks/contexts: calls under way that may end a context */
  uint32_t events_lock[GS_MAX_DEVICES];  /* memory/async_free.c */
  struct gs_green_list greens;
  uint32_t contexts;                         /* hooks/contexts: alive ones made by calls we saw */
  uint32_t implicit_lock;                    /* memory/implicit.c */
  uint32_t kernel_generation;                /* memory/kernels.h: + 1 when kernels or contexts may have become others */
  uint64_t resident_threads[GS_MAX_DEVICES]; /* memory/implicit.c */
  uint64_t kernels[GS_KNOWN_KERNELS];        /* memory/kernels.h: kernels that were launched before, hashed */
  uint32_t pool_lock[GS_MAX_DEVICES];        /* memory/pool_charge.c: a pool's figures and its charge belong together */
  /* hooks/pools.c: one allocation from the device's pools at a time; before pool_lock */
  uint32_t alloc_lock[GS_MAX_DEVICES];
  uint32_t pools[GS_MAX_DEVICES]; /* memory/pool_charge.c: pools charged to the device, its graph pool included */
  /* memory/async_free.c: frees in streams of the device that may not have happened yet */
  uint32_t frees[GS_MAX_DEVICES];
  /* hooks/graphs/executables.h: executable graphs that allocate or have collectives in them. Nearly everywhere none */
  uint32_t graphs;
  uint32_t collectives;   /* memory/collectives.c: functions of collectives found, ever */
  struct gs_time *time;   /* time/start.c */
  struct gs_books *books; /* memory/books.c */
};

enum { GS_NO_DEVICE = -1 /* as an ordinal: none, or one that is not of this grant */ };

/* Never NULL; before the first CUDA call and in a fork's child it points at zeroes. */
extern struct gs_process *gs_process __attribute__((visibility("hidden")));

/* The same, mapped for this process where that was not done yet. NULL: there is no memory. */
struct gs_process *gs_process_own(void);

/* For every handler, first: true when this process is joined and calls are accounted. Otherwise joins if that was never
 * tried (rare), and on false *result says what to do: CUDA_SUCCESS call the driver and nothing else, an error return
 * it. */
bool gs_enter_slow(CUresult *result);
static inline bool gs_enter(CUresult *result) {
  if (GS_LIKELY(__atomic_load_n(&gs_process->joined, __ATOMIC_ACQUIRE) == GS_JOINED))
    return true;
  return gs_enter_slow(result);
}

/* The grant's word on managed memory: refused means CUDA_ERROR_NOT_SUPPORTED, which is what drivers answer for a device
 * without it, and attributes that say so. */
static inline bool gs_managed_refused(void) { return gs_process->limits->managed == GS_MANAGED_REFUSE; }

#endif
