/* Contexts. */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "sim/model/process.h"

struct sim_stream;

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
/* The primary context of a device without retaining it; it may be not alive. */
struct sim_ctx *sim_ctx_primary(CUdevice device);

/* A context with streams of its own and the memory of the device's primary context, which it keeps alive. */
CUresult sim_ctx_green_new(CUdevice device, struct sim_ctx **ctx);
CUresult sim_ctx_green_end(struct sim_ctx *ctx);
size_t sim_ctx_default_limit(CUlimit limit);
/* Waits for all work of a context (of the whole device for device == its device). cuMemFree and friends synchronise so. */
CUresult sim_ctx_wait(struct sim_ctx *ctx);
void sim_device_wait(CUdevice device);

#endif
