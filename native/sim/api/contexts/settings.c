/* Properties and settings of contexts. */
#include "sim/api/contexts/contexts.h"
#include "sim/program/implicit.h"

enum { LIMITS = 7 }; /* CU_LIMIT_STACK_SIZE .. CU_LIMIT_PERSISTING_L2_CACHE_SIZE */

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
  if (!sim_ctx_flags_valid(flags))
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
