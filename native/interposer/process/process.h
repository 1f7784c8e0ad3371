/* The interposer's state of this process, shared by the directories above it.
 *
 * The interposer is a guest in a program that it does not know: it does nothing before the program's first CUDA call;
 * it never exits, aborts, raises signals or writes to stdout; it leaves the program's errno, umask, handlers and
 * descriptors alone; and it uses gs_private_map instead of malloc. */
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
  GS_JOINED = 1,     /* the process has a slot: memory is charged, submissions are gated */
  GS_JOIN_BARE = 2,  /* there is no grant: every call goes to the driver unchanged */
  GS_JOIN_FAILED = 3 /* the grant cannot be used: CUDA calls return SYSTEM_NOT_READY */
};

struct gs_time; /* time/timing.h */

struct gs_passage;  /* passage.h */
struct gs_movables; /* residency/movable.c */
struct gs_mover;    /* residency/mover.c */

/* greens.c */
struct gs_green_list {
  uint32_t lock;
  uint32_t used, size;
  uint64_t ever; /* number of green contexts ever added */
  struct gs_green *green;
};

/* visible.c */
struct gs_visible {
  uint32_t lock;
  uint32_t inside; /* threads in the driver's cuInit */
  uint32_t read;   /* 1: the driver is initialised */
  char *before;    /* the entry of the environment in whose place the driver's is; NULL: there was none */
};

/* refused.c: the last refusal that the program has not got over. bytes 0: there is none. Written without a lock: of two
 * at once, either is told. */
struct gs_unsaid {
  uint64_t bytes;
  int ordinal;
  uint32_t why;  /* enum gs_refusal */
  uint32_t said; /* 1: a line was printed */
};

enum { GS_KNOWN_KERNELS = 2048 /* a power of two */ };

/* Lives in pages that a fork wipes: a child is a new process that has not joined. Fields are constant once `joined` is
 * GS_JOINED, except those marked (rejoin), which gs_rejoin changes. */
struct gs_process {
  uint32_t joined;   /* enum gs_joined; acquire */
  uint32_t ndevices; /* of the grant; device words are indexed by ordinal < ndevices */
  const struct gs_limits *limits;
  struct gs_usage *usage;
  struct gs_slot *slot; /* this process's: slot->device[ordinal] */
  uint32_t slot_index;
  uint32_t generation;
  uint32_t daemon_epoch; /* (rejoin) of the daemon that answered the last join */
  int32_t host_pid;
  int bell;   /* (rejoin) eventfd, written through gs_ring */
  int socket; /* (rejoin) the tenant socket, for poll: readable or hung up means that the daemon is gone. -1: none */
  struct gs_visible visible;
  int8_t ordinal_of[GS_MAX_DEVICES]; /* CUdevice -> ordinal, by UUID; -1: a device that is not of this grant */
  /* the total memory reported to the program: the limit at its first CUDA call, for the life of the process */
  uint64_t total_bytes[GS_MAX_DEVICES];
  uint32_t join_lock;
  uint32_t reserve_lock[GS_MAX_DEVICES]; /* memory/books/charge.c */
  uint32_t context_lock[GS_MAX_DEVICES]; /* hooks/contexts: the primary context of the device */
  uint32_t gone_lock;                    /* hooks/contexts: taken after context_lock */
  CUcontext primary[GS_MAX_DEVICES];     /* hooks/contexts: the active primary context */
  uint64_t primary_id[GS_MAX_DEVICES];   /* the driver's number of that context; 0 if it has none */
  uint32_t ending[GS_MAX_DEVICES];       /* calls in progress that may end a context */
  uint32_t events_lock[GS_MAX_DEVICES];  /* memory/pools/async_free.c */
  struct gs_green_list greens;
  struct gs_unsaid unsaid;
  uint32_t contexts;      /* live contexts made by calls that the interposer saw */
  uint32_t implicit_lock; /* memory/implicit/implicit.c */
  /* memory/implicit/kernels.h: incremented when handles of kernels or contexts may have been reused */
  uint32_t kernel_generation;
  uint64_t resident_threads[GS_MAX_DEVICES]; /* memory/implicit/implicit.c */
  uint64_t kernels[GS_KNOWN_KERNELS];        /* memory/implicit/kernels.h: kernels that were launched before, hashed */
  uint32_t pool_lock[GS_MAX_DEVICES]; /* memory/pools/pool_charge.c: keeps a pool's figures and charge consistent */
  /* hooks/memory/pools.c: serialises allocations from the device's pools, also with calls that change its current pool, which
   * pool_changes counts; taken before pool_lock */
  uint32_t alloc_lock[GS_MAX_DEVICES];
  uint32_t pool_changes[GS_MAX_DEVICES];
  uint32_t loose_pools
      [GS_MAX_DEVICES];  /* memory/pools/pool_life.c: number of pools that may shrink when the program waits */
  uint32_t making_pools; /* hooks/memory/pools.c: taken before all locks of pools */
  /* stream-ordered frees on the device that may not have happened yet */
  uint32_t frees[GS_MAX_DEVICES];
  /* executable graphs that allocate memory or contain collectives; in most processes none */
  uint32_t graphs;
  uint32_t collectives;       /* number of collective functions ever found */
  struct gs_passage *passage; /* NULL: the grant keeps its memory. Constant */
  struct gs_movables *movables;
  struct gs_mover *mover;
  struct gs_time *time;   /* time/create.c */
  struct gs_books *books; /* memory/books/books.c */
};

enum { GS_NO_DEVICE = -1 /* as an ordinal: no device, or one that is not part of this grant */ };

/* Never NULL; before the first CUDA call and in a forked child it points at zeroes. */
extern struct gs_process *gs_process __attribute__((visibility("hidden")));

/* gs_process, mapped for this process if it was not yet. NULL: out of memory. */
struct gs_process *gs_process_own(void);

/* To be called first in every handler. True: this process is joined, and the call has to be accounted for. Otherwise
 * tries to join if that was never tried. False: *result is CUDA_SUCCESS if the handler only has to call the driver, or
 * else an error to return. */
bool gs_enter_slow(CUresult *result);
static inline bool gs_enter(CUresult *result) {
  if (GS_LIKELY(__atomic_load_n(&gs_process->joined, __ATOMIC_ACQUIRE) == GS_JOINED))
    return true;
  return gs_enter_slow(result);
}

/* Whether the grant refuses managed memory. Then the calls return CUDA_ERROR_NOT_SUPPORTED, as drivers do for a device
 * without managed memory, and attributes say so. */
static inline bool gs_managed_refused(void) { return gs_process->limits->managed == GS_MANAGED_REFUSE; }

#endif
