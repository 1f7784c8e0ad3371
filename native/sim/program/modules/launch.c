/* Kernel launches. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/memory/memory.h"
#include "sim/model/card.h"
#include "sim/model/event.h"
#include "sim/program/images/image.h"
#include "sim/program/implicit.h"

enum { MAX_GRID_YZ = 65535 };

/* The arguments in one buffer, as given through `extra`. */
static const void *argument_buffer(void *const *extra, size_t *bytes) {
  const void *buffer = NULL;
  *bytes = 0;
  for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END && i < 8; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[i + 1];
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      *bytes = *(size_t *)extra[i + 1];
  }
  return buffer;
}

/* Reads the first `count` arguments of a launch, each of 64 bits. */
static bool arguments(void *const *params, void *const *extra, unsigned count, uint64_t *out) {
  size_t bytes;
  const unsigned char *buffer = params ? NULL : argument_buffer(extra, &bytes);
  if (params == NULL && (buffer == NULL || bytes < count * sizeof *out))
    return false;
  for (unsigned i = 0; i < count; i++) {
    const void *from = params ? params[i] : buffer + i * sizeof *out;
    if (from == NULL)
      return false;
    memcpy(&out[i], from, sizeof *out);
  }
  return true;
}

static uint64_t modelled_ns(const struct sim_function *function, const CUDA_KERNEL_NODE_PARAMS *p) {
  size_t shared = (size_t)function->attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] + p->sharedMemBytes;
  struct sim_shape shape = {.blocks = (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ,
                            .columns = p->gridDimX,
                            .threads = p->blockDimX * p->blockDimY * p->blockDimZ,
                            .registers = (unsigned)function->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS],
                            .shared = shared};
  return sim_kernel_ns(&shape, function->work);
}

/* Device time of one launch: the argument of spin_ns or of a collective, otherwise --kernel-ns, or derived from the
 * launch's shape. */
static CUresult set_duration(const struct sim_function *function, const CUDA_KERNEL_NODE_PARAMS *launched,
                             struct sim_op *op) {
  enum { NS, KEY, RANKS, COLLECTIVE_ARGUMENTS };
  void *const *params = launched->kernelParams, *const *extra = launched->extra;
  uint64_t given[COLLECTIVE_ARGUMENTS] = {sim_hello.kernel_ns ? sim_hello.kernel_ns : modelled_ns(function, launched)};
  if (function->words) {
    uint64_t words[SIM_WORDS_ARGUMENTS];
    if (!arguments(params, extra, SIM_WORDS_ARGUMENTS, words))
      return CUDA_ERROR_INVALID_VALUE;
    uint64_t ns = sim_words_op(function->words, words, op);
    op->duration_ns = sim_hello.kernel_ns ? sim_hello.kernel_ns : ns;
    return CUDA_SUCCESS;
  }
  bool meets = function->collective && function->nparams == COLLECTIVE_ARGUMENTS;
  CUresult result = CUDA_SUCCESS;
  if (meets || function->spins) {
    if (!arguments(params, extra, meets ? COLLECTIVE_ARGUMENTS : 1, given))
      return CUDA_ERROR_INVALID_VALUE;
    if (meets)
      result = sim_meeting_op(given[KEY], given[RANKS], op);
  }
  op->duration_ns = given[NS] ? given[NS] : 1; /* 0 ns is rounded up to the shortest duration */
  return result;
}

/* See enum sim_effect. */
static CUresult set_effect(const struct sim_function *function, void *const *params, void *const *extra,
                           struct sim_op *op) {
  uint32_t value = 0;
  size_t bytes;
  if (function->effect == SIM_NO_EFFECT)
    return CUDA_SUCCESS;
  if (!arguments(params, extra, 1, function->effect == SIM_LAUNCHES_GRAPH ? &op->launches : &op->condition))
    return CUDA_ERROR_INVALID_VALUE;
  if (op->launches)
    return CUDA_SUCCESS;
  op->counts = function->effect == SIM_COUNTS_CONDITION;
  if (op->counts)
    return CUDA_SUCCESS;
  const unsigned char *buffer = params ? NULL : argument_buffer(extra, &bytes);
  const void *from = params ? params[1] : bytes >= sizeof op->condition + sizeof value ? buffer + 8 : NULL;
  if (from == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(&value, from, sizeof value);
  op->value = value;
  return CUDA_SUCCESS;
}

static bool shape_valid(const CUDA_KERNEL_NODE_PARAMS *p) {
  if (p->gridDimX == 0 || p->gridDimY == 0 || p->gridDimZ == 0 || p->gridDimX > INT32_MAX)
    return false;
  if (p->gridDimY > MAX_GRID_YZ || p->gridDimZ > MAX_GRID_YZ)
    return false;
  uint64_t threads = (uint64_t)p->blockDimX * p->blockDimY;
  return p->blockDimX <= SIM_MAX_THREADS && p->blockDimY <= SIM_MAX_THREADS && p->blockDimZ <= 64 &&
         threads * p->blockDimZ > 0 && threads * p->blockDimZ <= SIM_MAX_THREADS;
}

CUresult sim_kernel_op(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_op *op) {
  struct sim_function *function;
  CUresult result = sim_function_get(sim_kernel_of(params), &function);
  if (result)
    return result;
  if (!shape_valid(params) || params->sharedMemBytes > sim_shared_limit(function) ||
      (params->kernelParams && params->extra))
    return CUDA_ERROR_INVALID_VALUE;
  *op = (struct sim_op){.resource = SIM_COMPUTE,
                        .node_type = CU_GRAPH_NODE_TYPE_KERNEL,
                        .params = params,
                        .params_bytes = sizeof *params};
  result = set_effect(function, params->kernelParams, params->extra, op);
  return result ? result : set_duration(function, params, op);
}

/* Loads the code and memory that a kernel needs before it can run in a context. */
CUresult sim_kernel_prepare(struct sim_function *function, struct sim_ctx *ctx) {
  if (__atomic_load_n(&function->ready_in, __ATOMIC_RELAXED) == ctx->id)
    return CUDA_SUCCESS;
  CUresult result = sim_image_place(function->image, ctx, function);
  if (result)
    return result;
  sim_lock();
  result = sim_stack_need(ctx, (uint64_t)function->attribute[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES]);
  sim_unlock();
  if (result == CUDA_SUCCESS)
    __atomic_store_n(&function->ready_in, ctx->id, __ATOMIC_RELAXED);
  return result;
}

/* cooperative: all blocks run at the same time, or the launch is refused. */
static CUresult launch(const CUDA_KERNEL_NODE_PARAMS *params, CUstream handle, bool cooperative) {
  struct sim_stream *stream;
  struct sim_op op;
  CUresult result = sim_stream_get(handle, &stream);
  if (result == CUDA_SUCCESS)
    result = sim_kernel_op(params, &op);
  if (result)
    return result;
  uint64_t blocks = (uint64_t)params->gridDimX * params->gridDimY * params->gridDimZ;
  if (cooperative && blocks > sim_blocks_at_once(params))
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  struct sim_function *function = (struct sim_function *)(uintptr_t)sim_kernel_of(params);
  struct sim_ctx *ctx = sim_ctx_owner(sim_stream_ctx(stream));
  if (function->ctx && function->ctx != ctx)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!sim_stream_capturing(stream))
    result = sim_kernel_prepare(function, ctx);
  if (result)
    return result;
  sim_spin(sim_hello.launch_ns);
  return sim_submit(stream, &op);
}

#define SHAPE \
  CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX, \
      unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream, \
      void **kernelParams
#define PARAMS(extra_) \
  &(CUDA_KERNEL_NODE_PARAMS){f,         gridDimX,       gridDimY,     gridDimZ, blockDimX, blockDimY, \
                             blockDimZ, sharedMemBytes, kernelParams, extra_,   NULL,      NULL}

CUresult cuLaunchKernel(SHAPE, void **extra) { return launch(PARAMS(extra), hStream, false); }
CUresult cuLaunchCooperativeKernel(SHAPE) { return launch(PARAMS(NULL), hStream, true); }

/* The launch attributes that have an effect here: events recorded by the kernel. */
static CUresult record_attributes(const CUlaunchConfig *config) {
  for (unsigned i = 0; i < config->numAttrs; i++) {
    CUlaunchAttributeID id = config->attrs[i].id;
    if (id != CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT && id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
      continue;
    CUevent event = config->attrs[i].value.event.event;
    CUresult result = sim_event_record_by_handle(event, config->hStream, 0);
    if (result)
      return result;
  }
  return CUDA_SUCCESS;
}

static CUresult launch_config(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  if (config == NULL || (config->numAttrs && config->attrs == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS kernel = {f,
                                    config->gridDimX,
                                    config->gridDimY,
                                    config->gridDimZ,
                                    config->blockDimX,
                                    config->blockDimY,
                                    config->blockDimZ,
                                    config->sharedMemBytes,
                                    params,
                                    extra,
                                    NULL,
                                    NULL};
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; i++)
    cooperative |= config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && config->attrs[i].value.cooperative;
  CUresult result = launch(&kernel, config->hStream, cooperative);
  return result ? result : record_attributes(config);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) {
  return launch_config(config, f, kernelParams, extra);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                              unsigned int flags) {
  if (launchParamsList == NULL || numDevices == 0 || flags & ~3u)
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < numDevices; i++) {
    const CUDA_LAUNCH_PARAMS *one = &launchParamsList[i];
    CUDA_KERNEL_NODE_PARAMS kernel = {one->function,     one->gridDimX,  one->gridDimY,  one->gridDimZ,
                                      one->blockDimX,    one->blockDimY, one->blockDimZ, one->sharedMemBytes,
                                      one->kernelParams, NULL,           NULL,           NULL};
    CUresult result = launch(&kernel, one->hStream, true);
    if (result)
      return result;
  }
  return CUDA_SUCCESS;
}

/* ---- the oldest interface: shape and arguments are set on the function ------------------------------------------- */

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
  struct sim_function *function;
  CUresult result = sim_function_get(hfunc, &function);
  if (result)
    return result;
  if (x <= 0 || y <= 0 || z <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  function->block[0] = (unsigned)x;
  function->block[1] = (unsigned)y;
  function->block[2] = (unsigned)z;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
  struct sim_function *function;
  CUresult result = sim_function_get(hfunc, &function);
  if (result == CUDA_SUCCESS)
    function->shared_bytes = bytes;
  return result;
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes) {
  struct sim_function *function;
  CUresult result = sim_function_get(hfunc, &function);
  if (result)
    return result;
  if (numbytes > 4096)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned char *grown = realloc(function->old_params, numbytes + 8);
  if (grown == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (numbytes > function->old_params_bytes)
    memset(grown + function->old_params_bytes, 0, numbytes - function->old_params_bytes);
  function->old_params = grown;
  function->old_params_bytes = numbytes;
  return CUDA_SUCCESS;
}

CUresult cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes) {
  struct sim_function *function;
  CUresult result = sim_function_get(hfunc, &function);
  if (result)
    return result;
  if (ptr == NULL || offset < 0 || offset > 4096 || numbytes > 4096)
    return CUDA_ERROR_INVALID_VALUE;
  if ((unsigned)offset + numbytes > function->old_params_bytes)
    result = cuParamSetSize(hfunc, (unsigned)offset + numbytes);
  if (result == CUDA_SUCCESS)
    memcpy(function->old_params + offset, ptr, numbytes);
  return result;
}
CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value) {
  return cuParamSetv(hfunc, offset, &value, sizeof value);
}
CUresult cuParamSetf(CUfunction hfunc, int offset, float value) {
  return cuParamSetv(hfunc, offset, &value, sizeof value);
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  struct sim_function *function;
  CUresult result = sim_function_get(f, &function);
  if (result)
    return result;
  if (grid_width <= 0 || grid_height <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = function->old_params_bytes;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, function->old_params, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUDA_KERNEL_NODE_PARAMS kernel = {.func = f,
                                    .gridDimX = (unsigned)grid_width,
                                    .gridDimY = (unsigned)grid_height,
                                    .gridDimZ = 1,
                                    .blockDimX = function->block[0],
                                    .blockDimY = function->block[1],
                                    .blockDimZ = function->block[2],
                                    .sharedMemBytes = function->shared_bytes,
                                    .extra = extra};
  return launch(&kernel, hStream, false);
}
CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
  return cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}
CUresult cuLaunch(CUfunction f) { return cuLaunchGrid(f, 1, 1); }
