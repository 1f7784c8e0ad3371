/* Contexts. */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "sim/model/process.h"

struct sim_stream;

/* A part of a device; its context is a sim_ctx like any other. */
struct sim_green {
  uint32_t magic;
  unsigned sms;
  struct sim_ctx *ctx; /* NULL: ended with its primary context */
};

struct sim_ctx {
  uint32_t magic;
  CUdevice device;
  unsigned flags;
  unsigned api_version;
  uint64_t id;
  bool primary, alive;        /* a primary context stays allocated; alive between first retain and last release */
  int refs;                   /* retains of a primary context */
  struct sim_stream *legacy;  /* default stream; made with the context */
  struct sim_stream *streams; /* all of the context, legacy included; under sim_lock */
  int captures;               /* streams of it that are capturing; under sim_lock */
  struct sim_ctx *next;
  /* the primary context whose memory and programs a green context uses; NULL: an ordinary one */
  struct sim_ctx *green_of;
  struct sim_green *green; /* what a program knows a green context by */
  size_t limit[16];
  uint32_t peers; /* bit per device whose memory this context may reach */
  unsigned cache_config, shared_config;
  struct sim_implicit {
    uint64_t images, code_charged; /* bytes of the programs in it; what is charged for them */
    /* local memory per thread the device is set up for; what exceeds that of a new context */
    uint64_t stack, stack_charged;
    uint64_t buffer_charged[3]; /* by limit: printf FIFO and malloc heap */
  } implicit;                   /* implicit.c's; under sim_lock */
};

/* The calling thread's current context, alive, or NULL. */
struct sim_ctx *sim_ctx_current(void);
/* Ready and with a live current context: NOT_INITIALIZED, INVALID_CONTEXT, CONTEXT_IS_DESTROYED otherwise. */
CUresult sim_ctx_need(struct sim_ctx **ctx);
/* A handle -> live context (NULL means the current one); INVALID_CONTEXT otherwise. */
CUresult sim_ctx_get(CUcontext handle, struct sim_ctx **ctx);
/* Whose a context's memory, programs and settings are: its own, or of a green one the primary context's. */
static inline struct sim_ctx *sim_ctx_owner(struct sim_ctx *ctx) { return ctx->green_of ? ctx->green_of : ctx; }
/* Waits for all work of a context (of the whole device for device == its device). cuMemFree and friends synchronise so. */
CUresult sim_ctx_wait(struct sim_ctx *ctx);
void sim_device_wait(CUdevice device);

/* The calling thread's stack. push: false when it is full; pop: when it is empty. A context on it may have ended. */
bool sim_ctx_push(struct sim_ctx *ctx);
bool sim_ctx_may_push(void);
bool sim_ctx_pop(void);
void sim_ctx_set(struct sim_ctx *ctx); /* in place of the uppermost */
struct sim_ctx *sim_ctx_top(void);     /* NULL: none */

/* While a thread runs a host function, no CUDA calls are allowed in it. */
void sim_host_function(bool inside);
bool sim_in_host_function(void);

/* All alive. This and what follows with sim_lock held. */
extern struct sim_ctx *sim_contexts;
struct sim_ctx *sim_ctx_new(CUdevice device); /* NULL: no memory */
void sim_ctx_free(struct sim_ctx *ctx);
void sim_ctx_begin(struct sim_ctx *ctx);
void sim_ctx_end(struct sim_ctx *ctx);

/* Called, where it is set, when somebody has waited for a stream, an event or a context; no lock is held. */
extern void (*sim_synchronized)(void);
static inline void sim_tell_synchronized(void) {
  void (*told)(void) = __atomic_load_n(&sim_synchronized, __ATOMIC_ACQUIRE);
  if (told)
    told();
}

#endif
