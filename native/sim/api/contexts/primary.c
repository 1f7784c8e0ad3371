/* Primary contexts, and the green contexts that depend on them. */
#include <pthread.h>

#include "sim/api/contexts/contexts.h"

static struct sim_ctx *primaries[SIM_MAX_DEVICES];
/* Serialises creation and destruction: a retain during a destruction waits for it and creates a new context. Taken
 * before sim_lock. */
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

/* Requires sim_lock. */
static struct sim_ctx *primary_of(CUdevice device) {
  if (primaries[device] == NULL) {
    primaries[device] = sim_ctx_new(device);
    if (primaries[device])
      primaries[device]->primary = true;
  }
  return primaries[device];
}

static struct sim_ctx *primary(CUdevice device) {
  sim_lock();
  struct sim_ctx *ctx = primary_of(device);
  sim_unlock();
  return ctx;
}

static CUresult device_check(CUdevice device) {
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
  result = ctx == NULL ? CUDA_ERROR_OUT_OF_MEMORY : ctx->alive ? CUDA_SUCCESS : sim_ctx_raise(ctx, ctx->flags);
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

/* Ends a primary context and the green contexts that depend on it, of which a reset can find some. */
static void primary_end(struct sim_ctx *ctx) {
  sim_ctx_wait(ctx);
  for (;;) {
    sim_lock();
    struct sim_ctx *green = a_green_one(ctx);
    if (green && green->green)
      green->green->ctx = NULL;
    sim_unlock();
    if (green == NULL)
      break;
    sim_ctx_fell(green);
  }
  sim_ctx_fell(ctx);
}

CUresult sim_ctx_green_new(CUdevice device, struct sim_ctx **out) {
  CUcontext primary;
  CUresult result = cuDevicePrimaryCtxRetain(&primary, device);
  if (result)
    return result;
  sim_lock();
  struct sim_ctx *ctx = sim_ctx_new(device);
  if (ctx)
    ctx->green_of = (struct sim_ctx *)primary;
  result = ctx ? sim_ctx_raise(ctx, ctx->green_of->flags) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result && ctx)
    sim_ctx_free(ctx);
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
  sim_ctx_fell(ctx);
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
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  CUresult result = device_check(dev);
  if (result)
    return result;
  if (!sim_ctx_flags_valid(flags))
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  struct sim_ctx *ctx = primary_of(dev);
  if (ctx)
    ctx->flags = flags;
  sim_unlock();
  return ctx ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Unlike later versions, the first version of the function fails if the context is active. */
CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  CUresult result = device_check(dev);
  if (result)
    return result;
  struct sim_ctx *ctx = primary(dev);
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
  struct sim_ctx *ctx = primary(dev);
  *flags = ctx ? ctx->flags : 0;
  *active = ctx && ctx->alive;
  return CUDA_SUCCESS;
}
