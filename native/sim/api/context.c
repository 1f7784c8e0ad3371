/* Contexts: created ones, primary ones, the calling thread's stack of them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/api/green.h"
#include "sim/graph/capture.h"
#include "sim/memory/memory.h"
#include "sim/program/implicit.h"

static struct sim_kind ctx_kind = {sizeof(struct sim_ctx), 0x63747874, NULL};
static struct sim_ctx *primaries[SIM_MAX_DEVICES];
/* Whoever retains one that ends waits for its end, and gets a new one. Before sim_lock. */
static pthread_mutex_t primary_life[SIM_MAX_DEVICES];

static int primary_lock(CUdevice device) {
  int cancel_before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_before);
  pthread_mutex_lock(&primary_life[device]);
  return cancel_before;
}

static void primary_unlock(CUdevice device, int cancel_before) {
  pthread_mutex_unlock(&primary_life[device]);
  pthread_setcancelstate(cancel_before, &cancel_before);
}

static uint64_t ctx_ids;
struct sim_ctx *sim_contexts;

/* A context may die while it is on some thread's stack, and its memory serve another one: the id tells. */
enum { STACK_MAX = 256 };
struct entry {
  struct sim_ctx *ctx;
  uint64_t id;
};
static __thread struct entry stack[STACK_MAX];
static __thread int depth;

static const size_t default_limit[16] = {1024, 1 << 20, 8 << 20, 2, 2048, 128};
enum { LIMITS = 7 }; /* CU_LIMIT_STACK_SIZE .. CU_LIMIT_PERSISTING_L2_CACHE_SIZE */

size_t sim_ctx_default_limit(CUlimit limit) { return default_limit[limit]; }

static bool entry_alive(const struct entry *entry) {
  return entry->ctx->magic == ctx_kind.magic && entry->ctx->id == entry->id && entry->ctx->alive;
}

struct sim_ctx *sim_ctx_current(void) { return depth && entry_alive(&stack[depth - 1]) ? stack[depth - 1].ctx : NULL; }

CUresult sim_ctx_need(struct sim_ctx **ctx) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (sim_in_host_function())
    return CUDA_ERROR_NOT_PERMITTED;
  if (depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  *ctx = sim_ctx_current();
  return *ctx ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_ctx_get(CUcontext handle, struct sim_ctx **ctx) {
  if (handle == NULL)
    return sim_ctx_need(ctx);
  CUresult result = sim_ready();
  if (result)
    return result;
  *ctx = (struct sim_ctx *)handle;
  return (*ctx)->magic == ctx_kind.magic && (*ctx)->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- making and ending ------------------------------------------------------------------------------------------- */

static uint64_t cost_of(const struct sim_ctx *ctx) { return ctx->green_of ? 0 : sim_hello.context_bytes; }

/* Gives a context its device memory, lane and default stream. sim_lock held. */
static CUresult ctx_raise(struct sim_ctx *ctx, unsigned flags) {
  CUresult result = sim_memory_reserve(ctx->device, cost_of(ctx));
  if (result)
    return result;
  result = sim_device_open(ctx->device);
  ctx->legacy = result ? NULL : sim_stream_new(ctx, 0, 0);
  if (ctx->legacy == NULL) {
    sim_memory_release(ctx->device, cost_of(ctx));
    return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
  }
  ctx->legacy->legacy = true;
  ctx->legacy->blocking = false;
  ctx->flags = flags;
  ctx->id = ++ctx_ids;
  ctx->api_version = SIM_CUDA_VERSION;
  ctx->peers = 0;
  memcpy(ctx->limit, default_limit, sizeof ctx->limit);
  sim_implicit_begin(ctx);
  ctx->alive = true;
  ctx->next = sim_contexts;
  sim_contexts = ctx;
  return CUDA_SUCCESS;
}

static struct sim_ctx *ctx_new(CUdevice device) {
  struct sim_ctx *ctx = sim_handle_new(&ctx_kind);
  if (ctx)
    ctx->device = device;
  return ctx;
}

/* Ends a context whose work is done. Called unlocked. */
static void ctx_fell(struct sim_ctx *ctx) {
  sim_memory_ctx_destroyed(ctx);
  sim_lock();
  sim_streams_free(ctx); /* ends captures, which looks through all contexts */
  for (struct sim_ctx **at = &sim_contexts; *at; at = &(*at)->next)
    if (*at == ctx) {
      *at = ctx->next;
      break;
    }
  ctx->alive = false;
  sim_implicit_end(ctx);
  sim_memory_release(ctx->device, cost_of(ctx));
  if (!ctx->primary)
    sim_handle_free(&ctx_kind, ctx);
  sim_unlock();
}

static bool flags_valid(unsigned flags) {
  unsigned schedule = flags & CU_CTX_SCHED_MASK;
  return (flags & ~(unsigned)CU_CTX_FLAGS_MASK) == 0 &&
         (schedule == 0 || schedule == 1 || schedule == 2 || schedule == 4);
}

static CUresult ctx_create(CUcontext *out, unsigned flags, CUdevice device, unsigned api_version) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (out == NULL || !flags_valid(flags))
    return CUDA_ERROR_INVALID_VALUE;
  if (!sim_device_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  if (depth == STACK_MAX)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  struct sim_ctx *ctx = ctx_new(device);
  result = ctx ? ctx_raise(ctx, flags) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result && ctx)
    sim_handle_free(&ctx_kind, ctx);
  sim_unlock();
  if (result)
    return result;
  ctx->api_version = api_version;
  stack[depth++] = (struct entry){ctx, ctx->id};
  *out = (CUcontext)ctx;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) { return ctx_create(pctx, flags, dev, 3010); }
CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  return ctx_create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
  if (paramsArray || numParams)
    return sim_ready() ? sim_ready() : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return ctx_create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
  if (ctxCreateParams && (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
    return sim_ready() ? sim_ready() : CUDA_ERROR_NOT_SUPPORTED;
  return ctx_create(pctx, flags, dev, 3020);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  struct sim_ctx *ctx;
  if (handle == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (ctx->primary || ctx->green_of)
    return CUDA_ERROR_INVALID_CONTEXT; /* released, not destroyed */
  sim_ctx_wait(ctx);
  if (sim_ctx_current() == ctx)
    depth--;
  ctx_fell(ctx);
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext ctx) { return cuCtxDestroy_v2(ctx); }

CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pctx == NULL || flags)
    return CUDA_ERROR_INVALID_VALUE;
  ctx->refs++;
  *pctx = (CUcontext)ctx;
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext handle) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (ctx->refs == 0)
    return cuCtxDestroy_v2(handle);
  ctx->refs--;
  return CUDA_SUCCESS;
}

/* ---- primary contexts -------------------------------------------------------------------------------------------- */

/* sim_lock held */
static struct sim_ctx *primary_of(CUdevice device) {
  if (primaries[device] == NULL) {
    primaries[device] = ctx_new(device);
    if (primaries[device])
      primaries[device]->primary = true;
  }
  return primaries[device];
}

struct sim_ctx *sim_ctx_primary(CUdevice device) {
  sim_lock();
  struct sim_ctx *ctx = primary_of(device);
  sim_unlock();
  return ctx;
}

static CUresult device_check(CUdevice device) {
  CUresult result = sim_ready();
  if (result)
    return result;
  return sim_device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
  CUresult result = device_check(dev);
  if (result)
    return result;
  if (pctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  int cancel_before = primary_lock(dev);
  sim_lock();
  struct sim_ctx *ctx = primary_of(dev);
  result = ctx == NULL ? CUDA_ERROR_OUT_OF_MEMORY : ctx->alive ? CUDA_SUCCESS : ctx_raise(ctx, ctx->flags);
  if (result == CUDA_SUCCESS) {
    ctx->refs++;
    *pctx = (CUcontext)ctx;
  }
  sim_unlock();
  primary_unlock(dev, cancel_before);
  return result;
}

static struct sim_ctx *a_green_one(const struct sim_ctx *primary) {
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    if (ctx->green_of == primary)
      return ctx;
  return NULL;
}

/* With the green contexts that a reset finds. */
static void primary_end(struct sim_ctx *ctx) {
  sim_ctx_wait(ctx);
  for (;;) {
    sim_lock();
    struct sim_ctx *green = a_green_one(ctx);
    if (green)
      sim_green_gone(green);
    sim_unlock();
    if (green == NULL)
      break;
    ctx_fell(green);
  }
  ctx_fell(ctx);
}

CUresult sim_ctx_green_new(CUdevice device, struct sim_ctx **out) {
  CUcontext primary;
  CUresult result = cuDevicePrimaryCtxRetain(&primary, device);
  if (result)
    return result;
  sim_lock();
  struct sim_ctx *ctx = ctx_new(device);
  if (ctx)
    ctx->green_of = (struct sim_ctx *)primary;
  result = ctx ? ctx_raise(ctx, ctx->green_of->flags) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result && ctx)
    sim_handle_free(&ctx_kind, ctx);
  sim_unlock();
  if (result)
    cuDevicePrimaryCtxRelease_v2(device);
  else
    *out = ctx;
  return result;
}

CUresult sim_ctx_green_end(struct sim_ctx *ctx) {
  CUdevice device = ctx->device;
  sim_ctx_wait(ctx);
  ctx_fell(ctx);
  return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  CUresult result = device_check(dev);
  if (result)
    return result;
  int cancel_before = primary_lock(dev);
  sim_lock();
  struct sim_ctx *ctx = primary_of(dev);
  bool held = ctx && ctx->refs > 0, last = held && --ctx->refs == 0 && ctx->alive;
  sim_unlock();
  if (last)
    primary_end(ctx);
  primary_unlock(dev, cancel_before);
  return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  CUresult result = device_check(dev);
  if (result)
    return result;
  int cancel_before = primary_lock(dev);
  sim_lock();
  struct sim_ctx *ctx = primary_of(dev);
  bool alive = ctx && ctx->alive;
  if (ctx) {
    ctx->refs = 0;
    ctx->flags = 0;
  }
  sim_unlock();
  if (alive)
    primary_end(ctx);
  primary_unlock(dev, cancel_before);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  CUresult result = device_check(dev);
  if (result)
    return result;
  if (!flags_valid(flags))
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  struct sim_ctx *ctx = primary_of(dev);
  if (ctx)
    ctx->flags = flags;
  sim_unlock();
  return ctx ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The old form refuses to change the flags of an active context. */
CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  CUresult result = device_check(dev);
  if (result)
    return result;
  struct sim_ctx *ctx = sim_ctx_primary(dev);
  if (ctx && ctx->alive)
    return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
  return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
  CUresult result = device_check(dev);
  if (result)
    return result;
  if (flags == NULL || active == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  struct sim_ctx *ctx = sim_ctx_primary(dev);
  *flags = ctx ? ctx->flags : 0;
  *active = ctx && ctx->alive;
  return CUDA_SUCCESS;
}

/* ---- the stack --------------------------------------------------------------------------------------------------- */

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  struct sim_ctx *ctx;
  if (handle == NULL)
    return sim_ready() ? sim_ready() : CUDA_ERROR_INVALID_VALUE;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (depth == STACK_MAX)
    return CUDA_ERROR_OUT_OF_MEMORY;
  stack[depth++] = (struct entry){ctx, ctx->id};
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext ctx) { return cuCtxPushCurrent_v2(ctx); }

CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  depth--;
  if (pctx)
    *pctx = (CUcontext)stack[depth].ctx;
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext *pctx) { return cuCtxPopCurrent_v2(pctx); }

CUresult cuCtxSetCurrent(CUcontext handle) {
  struct sim_ctx *ctx;
  if (handle == NULL) {
    CUresult ready = sim_ready();
    if (ready == CUDA_SUCCESS && depth)
      depth--;
    return ready;
  }
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (depth == 0)
    depth = 1;
  stack[depth - 1] = (struct entry){ctx, ctx->id};
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (pctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pctx = depth ? (CUcontext)stack[depth - 1].ctx : NULL;
  return CUDA_SUCCESS;
}

/* ---- facts and settings ------------------------------------------------------------------------------------------ */

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext handle) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (device == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *device = ctx->device;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) { return cuCtxGetDevice_v2(device, NULL); }

CUresult cuCtxGetFlags(unsigned int *flags) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (flags == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = ctx->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (!flags_valid(flags))
    return CUDA_ERROR_INVALID_VALUE;
  ctx->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *ctxId) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (ctxId == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *ctxId = ctx->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  if (version == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *version = ctx->api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (limit < 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (limit >= LIMITS)
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  return sim_limit_set(sim_ctx_owner(ctx), limit, value);
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pvalue == NULL || limit < 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (limit >= LIMITS)
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *pvalue = sim_ctx_owner(ctx)->limit[limit];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pconfig == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pconfig = (CUfunc_cache)ctx->cache_config;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (config < 0 || config > 3)
    return CUDA_ERROR_INVALID_VALUE;
  ctx->cache_config = (unsigned)config;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pConfig == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pConfig = (CUsharedconfig)ctx->shared_config;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (config < 0 || config > 2)
    return CUDA_ERROR_INVALID_VALUE;
  ctx->shared_config = (unsigned)config;
  return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void) {
  struct sim_ctx *ctx;
  return sim_ctx_need(&ctx);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *pExecAffinity, CUexecAffinityType type) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pExecAffinity == NULL || type != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  struct sim_ctx *ctx, *peer;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (Flags || peerContext == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = sim_ctx_get(peerContext, &peer);
  if (result)
    return result;
  if (peer->device == ctx->device)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (ctx->peers & 1u << peer->device)
    return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  ctx->peers |= 1u << peer->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  struct sim_ctx *ctx, *peer;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (peerContext == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = sim_ctx_get(peerContext, &peer);
  if (result)
    return result;
  if (!(ctx->peers & 1u << peer->device))
    return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  ctx->peers &= ~(1u << peer->device);
  return CUDA_SUCCESS;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

struct all_of {
  const struct sim_ctx *ctx; /* NULL: all contexts of device */
  CUdevice device;
  uint64_t seq;
};

static bool concerns(const struct all_of *all, const struct sim_ctx *ctx) {
  return all->ctx ? ctx == all->ctx || ctx->green_of == all->ctx : ctx->device == all->device;
}

static bool all_done(const void *arg) {
  const struct all_of *all = arg;
  for (const struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (const struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
      if (concerns(all, ctx) && stream->head && stream->head->seq <= all->seq)
        return false;
  return true;
}

/* The longest of what each stream still needs; streams that got more work since are taken up to their head only. */
static uint64_t all_bound(const void *arg, uint64_t now) {
  const struct all_of *all = arg;
  uint64_t latest = now;
  for (const struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (const struct sim_stream *stream = ctx->streams; stream; stream = stream->next) {
      if (!concerns(all, ctx) || stream->head == NULL || stream->head->seq > all->seq)
        continue;
      const struct sim_item *last = stream->tail->seq <= all->seq ? stream->tail : stream->head;
      uint64_t when = sim_bound(stream, last->compute_sum, last->copy_sum, now, 4);
      if (when > latest)
        latest = when;
    }
  return latest;
}

CUresult sim_ctx_wait(struct sim_ctx *ctx) {
  sim_lock();
  struct all_of all = {ctx, ctx->device, sim_seq()};
  bool blocking = (ctx->flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
  sim_unlock();
  sim_wait(ctx->device, blocking, &(struct sim_condition){all_done, all_bound, &all});
  sim_pools_synchronized();
  return CUDA_SUCCESS;
}

void sim_device_wait(CUdevice device) {
  sim_lock();
  struct all_of all = {NULL, device, sim_seq()};
  bool open = sim_devices[device].open;
  sim_unlock();
  if (open)
    sim_wait(device, false, &(struct sim_condition){all_done, all_bound, &all});
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_get(handle, &ctx);
  if (result)
    return result;
  sim_lock();
  bool capturing = ctx->captures > 0;
  for (struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
    if (stream->capture)
      sim_capture_invalidate(stream->capture);
  sim_unlock();
  return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : sim_ctx_wait(ctx);
}
CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }
