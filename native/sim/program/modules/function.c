/* Functions and kernels: attributes, occupancy. */
#include <string.h>

#include "sim/model/card.h"
#include "sim/program/duration.h"
#include "sim/program/images/image.h"

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
  struct sim_function *function;
  CUresult result = sim_function_get(hfunc, &function);
  if (result)
    return result;
  if (pi == NULL || attrib < 0 || attrib >= CU_FUNC_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  *pi = function->attribute[attrib];
  if (attrib == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    *pi = SIM_MAX_THREADS;
  if (attrib == CU_FUNC_ATTRIBUTE_PTX_VERSION || attrib == CU_FUNC_ATTRIBUTE_BINARY_VERSION)
    *pi = 80;
  if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && *pi == 0)
    *pi = SIM_SHARED_DEFAULT;
  if (attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && *pi == 0)
    *pi = -1;
  return CUDA_SUCCESS;
}

unsigned sim_shared_limit(const struct sim_function *function) {
  int chosen = function->attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
  return chosen > SIM_SHARED_DEFAULT ? (unsigned)chosen : SIM_SHARED_DEFAULT;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  struct sim_function *function;
  CUresult result = sim_function_get(hfunc, &function);
  if (result)
    return result;
  /* the other attributes are read-only */
  if (attrib < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || attrib >= CU_FUNC_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && (value < 0 || value > SIM_SHARED_OPTIN))
    return CUDA_ERROR_INVALID_VALUE;
  if (attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && (value < -1 || value > 100))
    return CUDA_ERROR_INVALID_VALUE;
  if (attrib == CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET)
    return CUDA_ERROR_INVALID_VALUE;
  function->attribute[attrib] = value;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  if (!sim_device_valid(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  return cuFuncGetAttribute(pi, attrib, (CUfunction)kernel);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  if (!sim_device_valid(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  return cuFuncSetAttribute((CUfunction)kernel, attrib, val);
}

static CUresult exists(const void *handle) {
  struct sim_function *function;
  return sim_function_get(handle, &function);
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : exists(hfunc);
}
CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  return config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : exists(hfunc);
}
CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  if (!sim_device_valid(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  return cuFuncSetCacheConfig((CUfunction)kernel, config);
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc) {
  struct sim_function *function;
  CUresult result = sim_function_get(hfunc, &function);
  if (result)
    return result;
  if (name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *name = function->name;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetName(const char **name, CUkernel hfunc) { return cuFuncGetName(name, (CUfunction)hfunc); }

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize) {
  struct sim_function *function;
  CUresult result = sim_function_get(func, &function);
  if (result)
    return result;
  if (paramOffset == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!function->params_known)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (paramIndex >= function->nparams)
    return CUDA_ERROR_INVALID_VALUE;
  *paramOffset = function->params[paramIndex].offset;
  if (paramSize)
    *paramSize = function->params[paramIndex].size;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize) {
  return cuFuncGetParamInfo((CUfunction)kernel, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetParamCount(CUfunction func, size_t *paramCount) {
  struct sim_function *function;
  CUresult result = sim_function_get(func, &function);
  if (result)
    return result;
  if (paramCount == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!function->params_known)
    return CUDA_ERROR_NOT_SUPPORTED;
  *paramCount = function->nparams;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetParamCount(CUkernel kernel, size_t *paramCount) {
  return cuFuncGetParamCount((CUfunction)kernel, paramCount);
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
  struct sim_ctx *ctx;
  CUresult result = exists(kernel);
  if (result == CUDA_SUCCESS)
    result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pFunc == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = sim_image_place(((const struct sim_function *)kernel)->image, sim_ctx_owner(ctx), kernel);
  if (result == CUDA_SUCCESS)
    *pFunc = (CUfunction)kernel;
  return result;
}

CUresult cuFuncLoad(CUfunction function) { return exists(function); }

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
  CUresult result = exists(function);
  if (result)
    return result;
  if (state == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *state = 1; /* CU_FUNCTION_LOADING_STATE_LOADED */
  return CUDA_SUCCESS;
}

/* ---- occupancy --------------------------------------------------------------------------------------------------- */

static size_t static_shared(const struct sim_function *function) {
  return (size_t)function->attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];
}

/* Number of blocks of a kernel that a multiprocessor has room for; 0: the block is not possible. */
static int resident(const struct sim_function *function, int block_size, size_t dynamic) {
  if (block_size > SIM_MAX_THREADS || dynamic > SIM_SHARED_OPTIN)
    return 0;
  return (int)sim_resident_blocks((unsigned)block_size, (unsigned)function->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS],
                                  static_shared(function) + dynamic);
}

uint64_t sim_blocks_at_once(const CUDA_KERNEL_NODE_PARAMS *kernel) {
  unsigned threads = kernel->blockDimX * kernel->blockDimY * kernel->blockDimZ;
  return (uint64_t)resident(sim_kernel_of(kernel), (int)threads, kernel->sharedMemBytes) * SIM_MULTIPROCESSORS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags) {
  struct sim_function *function;
  CUresult result = sim_function_get(func, &function);
  if (result)
    return result;
  if (numBlocks == NULL || blockSize <= 0 || flags & ~1u)
    return CUDA_ERROR_INVALID_VALUE;
  *numBlocks = resident(function, blockSize, dynamicSMemSize);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags) {
  struct sim_function *function;
  CUresult result = sim_function_get(func, &function);
  if (result)
    return result;
  if (minGridSize == NULL || blockSize == NULL || flags & ~1u)
    return CUDA_ERROR_INVALID_VALUE;
  int limit = blockSizeLimit > 0 && blockSizeLimit < SIM_MAX_THREADS ? blockSizeLimit : SIM_MAX_THREADS;
  int best_threads = 0;
  *minGridSize = *blockSize = 0;
  for (int size = limit; size > 0; size = size % 32 ? size / 32 * 32 : size - 32) {
    size_t shared = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(size) : dynamicSMemSize;
    int blocks = resident(function, size, shared);
    if (blocks * size <= best_threads)
      continue;
    best_threads = blocks * size;
    *blockSize = size;
    *minGridSize = blocks * SIM_MULTIPROCESSORS;
  }
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                          int blockSizeLimit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                   dynamicSMemSize, blockSizeLimit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize) {
  struct sim_function *function;
  CUresult result = sim_function_get(func, &function);
  if (result)
    return result;
  if (dynamicSmemSize == NULL || numBlocks <= 0 || blockSize <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  size_t each = SIM_SHARED / (size_t)numBlocks, kept = SIM_SHARED_RESERVED + static_shared(function);
  *dynamicSmemSize = each > kept ? each - kept : 0;
  return CUDA_SUCCESS;
}
