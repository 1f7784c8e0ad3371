/* Contexts. */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "sim/model/process.h"

struct sim_stream;

/* A partition of a device; its context is a sim_ctx like any other. */
struct sim_green {
  uint32_t magic;
  unsigned sms;
  struct sim_ctx *ctx; /* NULL: destroyed with its primary context */
};

struct sim_ctx {
  uint32_t magic;
  CUdevice device;
  unsigned flags;
  unsigned api_version;
  uint64_t id;
  bool primary, alive; /* a primary context's struct stays allocated; alive between first retain and last release */
  bool ending;         /* a thread is destroying it; under sim_lock */
  bool barred;         /* it can allocate no further memory; under sim_ranges_lock */
  CUresult fault;      /* what its work did wrong, which every call that needs it returns; CUDA_SUCCESS: nothing */
  int refs;            /* retain count of a primary context */
  struct sim_stream *legacy;  /* default stream, created with the context */
  struct sim_stream *streams; /* all streams of the context, including legacy; under sim_lock */
  int captures;               /* number of its streams that are capturing; under sim_lock */
  struct sim_ctx *next;
  /* the primary context whose memory and programs a green context uses; NULL: not a green context */
  struct sim_ctx *green_of;
  struct sim_green *green; /* the handle object of a green context */
  size_t limit[16];
  uint32_t peers; /* one bit per device whose memory this context may access */
  unsigned cache_config, shared_config;
  struct sim_coredump *coredump; /* owned by api/contexts/coredump.c; NULL: the process's */
  struct sim_implicit {
    uint64_t images, code_charged; /* bytes of the context's programs, and the memory charged for them */
    /* local memory per thread that the device is prepared for, and the memory charged beyond a new context's */
    uint64_t stack, stack_charged;
    uint64_t buffer_charged[5]; /* by CUlimit: printf FIFO, malloc heap, device runtime */
  } implicit;                   /* owned by implicit.c; under sim_lock */
};

/* The calling thread's current context, or NULL. It is alive. */
struct sim_ctx *sim_ctx_current(void);
/* Checks that the driver is initialised and returns the live current context. Errors: NOT_INITIALIZED, INVALID_CONTEXT,
 * CONTEXT_IS_DESTROYED. */
CUresult sim_ctx_need(struct sim_ctx **ctx);
/* Resolves a handle to a live context (NULL: the current one). Error: INVALID_CONTEXT. */
CUresult sim_ctx_get(CUcontext handle, struct sim_ctx **ctx);
/* The context that owns the memory, programs and settings: the context itself, or a green context's primary context. */
static inline struct sim_ctx *sim_ctx_owner(struct sim_ctx *ctx) { return ctx->green_of ? ctx->green_of : ctx; }
/* Waits for all work of a context. sim_device_wait does the same for a device; cuMemFree and related calls synchronise
 * this way. */
CUresult sim_ctx_wait(struct sim_ctx *ctx);
void sim_device_wait(CUdevice device);

/* The calling thread's context stack. push fails if it is full, pop if it is empty. A context on it may have been
 * destroyed. */
bool sim_ctx_push(struct sim_ctx *ctx);
bool sim_ctx_may_push(void);
bool sim_ctx_pop(void);
void sim_ctx_set(struct sim_ctx *ctx); /* replaces the top */
struct sim_ctx *sim_ctx_top(void);     /* NULL: empty */

/* Whether any context has had a fault; each call asks. */
extern bool sim_context_faults;
/* The fault of a context, or of its primary context; CUDA_SUCCESS: none. */
static inline CUresult sim_ctx_fault(struct sim_ctx *ctx) {
  return __atomic_load_n(&sim_ctx_owner(ctx)->fault, __ATOMIC_ACQUIRE);
}
/* The fault of the calling thread's current context, if any. */
CUresult sim_ctx_current_fault(void);

/* Marks the thread as running a host function, in which CUDA calls are not allowed. */
void sim_host_function(bool inside);
bool sim_in_host_function(void);

/* All live contexts. This and the declarations below require sim_lock. */
extern struct sim_ctx *sim_contexts;
struct sim_ctx *sim_ctx_new(CUdevice device); /* NULL: out of memory */
void sim_ctx_free(struct sim_ctx *ctx);
/* Adds a context to the list, with a new id, and marks it alive; sim_ctx_end does the reverse. */
void sim_ctx_begin(struct sim_ctx *ctx);
void sim_ctx_end(struct sim_ctx *ctx);

/* Called, if set, after a thread has waited for a stream, an event or a context. No lock is held. */
extern void (*sim_synchronized)(void);
static inline void sim_tell_synchronized(void) {
  void (*notify)(void) = __atomic_load_n(&sim_synchronized, __ATOMIC_ACQUIRE);
  if (notify)
    notify();
}

#endif
