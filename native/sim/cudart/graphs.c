/* Graph nodes whose parameters differ from the driver's: kernels by their host-side stand-in, and copies. */
#include "sim/cudart/cudart.h"

struct cudaKernelNodeParams {
  const void *func;
  rt_dim3 grid, block;
  unsigned shared;
  void **params, **extra;
};

static cudaError_t kernel_node(const struct cudaKernelNodeParams *in, CUDA_KERNEL_NODE_PARAMS *out) {
  CUkernel kernel;
  if (!in)
    return rt_fail(cudaErrorInvalidValue);
  cudaError_t error = rt_kernel(in->func, &kernel);
  if (error == cudaSuccess)
    *out = (CUDA_KERNEL_NODE_PARAMS){.gridDimX = in->grid.x,
                                     .gridDimY = in->grid.y,
                                     .gridDimZ = in->grid.z,
                                     .blockDimX = in->block.x,
                                     .blockDimY = in->block.y,
                                     .blockDimZ = in->block.z,
                                     .sharedMemBytes = in->shared,
                                     .kernelParams = in->params,
                                     .extra = in->extra,
                                     .kern = kernel};
  return error;
}

cudaError_t cudaGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                   const struct cudaKernelNodeParams *params) {
  CUDA_KERNEL_NODE_PARAMS wanted;
  cudaError_t error = kernel_node(params, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphAddKernelNode_v2(node, graph, after, count, &wanted)) : error;
}

cudaError_t cudaGraphKernelNodeSetParams(CUgraphNode node, const struct cudaKernelNodeParams *params) {
  CUDA_KERNEL_NODE_PARAMS wanted;
  cudaError_t error = kernel_node(params, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphKernelNodeSetParams_v2(node, &wanted)) : error;
}

cudaError_t cudaGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const struct cudaKernelNodeParams *params) {
  CUDA_KERNEL_NODE_PARAMS wanted;
  cudaError_t error = kernel_node(params, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphExecKernelNodeSetParams_v2(exec, node, &wanted)) : error;
}

/* A kernel that no stand-in leads to is given as the driver's handle. */
cudaError_t cudaGraphKernelNodeGetParams(CUgraphNode node, struct cudaKernelNodeParams *out) {
  CUDA_KERNEL_NODE_PARAMS is;
  cudaError_t error = rt_enter();
  if (error == cudaSuccess && !out)
    error = rt_fail(cudaErrorInvalidValue);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuGraphKernelNodeGetParams_v2(node, &is));
  if (error != cudaSuccess)
    return error;
  const void *host = is.kern ? rt_host_of(is.kern) : NULL;
  *out = (struct cudaKernelNodeParams){.func = host      ? host
                                               : is.func ? (const void *)is.func
                                                         : (const void *)is.kern,
                                       .grid = {is.gridDimX, is.gridDimY, is.gridDimZ},
                                       .block = {is.blockDimX, is.blockDimY, is.blockDimZ},
                                       .shared = is.sharedMemBytes,
                                       .params = is.kernelParams,
                                       .extra = is.extra};
  return cudaSuccess;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static cudaError_t add_copy(cudaError_t error, CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                            const CUDA_MEMCPY3D *copy) {
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuGraphAddMemcpyNode(node, graph, after, count, copy, rt_context()));
  return error;
}

static cudaError_t set_copy(cudaError_t error, CUgraphNode node, const CUDA_MEMCPY3D *copy) {
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphMemcpyNodeSetParams(node, copy)) : error;
}

static cudaError_t set_copy_of(cudaError_t error, CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy) {
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuGraphExecMemcpyNodeSetParams(exec, node, copy, rt_context()));
  return error;
}

static cudaError_t box(const struct cudaMemcpy3DParms *params, CUDA_MEMCPY3D *out) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_copy_3d(params, out) : error;
}

static cudaError_t line(void *to, const void *from, size_t bytes, int kind, CUDA_MEMCPY3D *out) {
  const struct cudaMemcpy3DParms params = {.srcPtr = {(void *)(uintptr_t)from, bytes, bytes, 1},
                                           .dstPtr = {to, bytes, bytes, 1},
                                           .extent = {bytes, 1, 1},
                                           .kind = kind};
  return box(&params, out);
}

static cudaError_t to_symbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind,
                             CUDA_MEMCPY3D *out) {
  void *at = NULL;
  cudaError_t error = rt_symbol_part(symbol, bytes, offset, &at);
  return error == cudaSuccess ? line(at, from, bytes, kind, out) : error;
}

static cudaError_t from_symbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind,
                               CUDA_MEMCPY3D *out) {
  void *at = NULL;
  cudaError_t error = rt_symbol_part(symbol, bytes, offset, &at);
  return error == cudaSuccess ? line(to, at, bytes, kind, out) : error;
}

cudaError_t cudaGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                   const struct cudaMemcpy3DParms *params) {
  CUDA_MEMCPY3D copy;
  return add_copy(box(params, &copy), node, graph, after, count, &copy);
}
cudaError_t cudaGraphMemcpyNodeSetParams(CUgraphNode node, const struct cudaMemcpy3DParms *params) {
  CUDA_MEMCPY3D copy;
  return set_copy(box(params, &copy), node, &copy);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const struct cudaMemcpy3DParms *params) {
  CUDA_MEMCPY3D copy;
  return set_copy_of(box(params, &copy), exec, node, &copy);
}
cudaError_t cudaGraphMemcpyNodeGetParams(CUgraphNode node, struct cudaMemcpy3DParms *out) {
  CUDA_MEMCPY3D copy;
  cudaError_t error = rt_enter();
  if (error == cudaSuccess && !out)
    error = rt_fail(cudaErrorInvalidValue);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuGraphMemcpyNodeGetParams(node, &copy));
  return error == cudaSuccess ? rt_copy_3d_back(&copy, out) : error;
}

cudaError_t cudaGraphAddMemcpyNode1D(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, void *to,
                                     const void *from, size_t bytes, int kind) {
  CUDA_MEMCPY3D copy;
  return add_copy(line(to, from, bytes, kind, &copy), node, graph, after, count, &copy);
}
cudaError_t cudaGraphMemcpyNodeSetParams1D(CUgraphNode node, void *to, const void *from, size_t bytes, int kind) {
  CUDA_MEMCPY3D copy;
  return set_copy(line(to, from, bytes, kind, &copy), node, &copy);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(CUgraphExec exec, CUgraphNode node, void *to, const void *from,
                                               size_t bytes, int kind) {
  CUDA_MEMCPY3D copy;
  return set_copy_of(line(to, from, bytes, kind, &copy), exec, node, &copy);
}

cudaError_t cudaGraphAddMemcpyNodeToSymbol(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                           const void *symbol, const void *from, size_t bytes, size_t offset,
                                           int kind) {
  CUDA_MEMCPY3D copy;
  return add_copy(to_symbol(symbol, from, bytes, offset, kind, &copy), node, graph, after, count, &copy);
}
cudaError_t cudaGraphMemcpyNodeSetParamsToSymbol(CUgraphNode node, const void *symbol, const void *from, size_t bytes,
                                                 size_t offset, int kind) {
  CUDA_MEMCPY3D copy;
  return set_copy(to_symbol(symbol, from, bytes, offset, kind, &copy), node, &copy);
}
cudaError_t cudaGraphExecMemcpyNodeSetParamsToSymbol(CUgraphExec exec, CUgraphNode node, const void *symbol,
                                                     const void *from, size_t bytes, size_t offset, int kind) {
  CUDA_MEMCPY3D copy;
  return set_copy_of(to_symbol(symbol, from, bytes, offset, kind, &copy), exec, node, &copy);
}

cudaError_t cudaGraphAddMemcpyNodeFromSymbol(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                             void *to, const void *symbol, size_t bytes, size_t offset, int kind) {
  CUDA_MEMCPY3D copy;
  return add_copy(from_symbol(to, symbol, bytes, offset, kind, &copy), node, graph, after, count, &copy);
}
cudaError_t cudaGraphMemcpyNodeSetParamsFromSymbol(CUgraphNode node, void *to, const void *symbol, size_t bytes,
                                                   size_t offset, int kind) {
  CUDA_MEMCPY3D copy;
  return set_copy(from_symbol(to, symbol, bytes, offset, kind, &copy), node, &copy);
}
cudaError_t cudaGraphExecMemcpyNodeSetParamsFromSymbol(CUgraphExec exec, CUgraphNode node, void *to, const void *symbol,
                                                       size_t bytes, size_t offset, int kind) {
  CUDA_MEMCPY3D copy;
  return set_copy_of(from_symbol(to, symbol, bytes, offset, kind, &copy), exec, node, &copy);
}

/* ---- nodes of any kind ------------------------------------------------------------------------------------------- */

/* The same layout as the driver's CUgraphNodeParams but for kernels and copies. */
struct cudaGraphNodeParams {
  int type, reserved0[3];
  union {
    long long reserved1[29];
    struct {
      struct cudaKernelNodeParams host;
      CUcontext ctx;
      int function_type; /* CUDA 13: 1: host stand-in (0: too), 2: CUkernel, 3: CUfunction */
    } kernel;
    struct {
      int flags, reserved;
      CUcontext ctx;
      struct cudaMemcpy3DParms copy;
    } memcpy;
  };
  long long reserved2;
};
_Static_assert(sizeof(struct cudaGraphNodeParams) == sizeof(CUgraphNodeParams), "the union's size");
enum { NODE_KERNEL, NODE_MEMCPY, NODE_MEMSET, NODE_CONDITIONAL = 13, BY_KERNEL = 2, BY_FUNCTION = 3 };

static cudaError_t any_kernel(const struct cudaGraphNodeParams *in, CUgraphNodeParams *out) {
  CUDA_KERNEL_NODE_PARAMS kernel;
  struct cudaKernelNodeParams host = in->kernel.host;
  int by = RT_MAJOR >= 13 ? in->kernel.function_type : 0;
  out->kernel = (CUDA_KERNEL_NODE_PARAMS){.gridDimX = host.grid.x,
                                          .gridDimY = host.grid.y,
                                          .gridDimZ = host.grid.z,
                                          .blockDimX = host.block.x,
                                          .blockDimY = host.block.y,
                                          .blockDimZ = host.block.z,
                                          .sharedMemBytes = host.shared,
                                          .kernelParams = host.params,
                                          .extra = host.extra};
  if (by == BY_KERNEL)
    out->kernel.kern = (CUkernel)(uintptr_t)host.func;
  if (by == BY_FUNCTION)
    out->kernel.func = (CUfunction)(uintptr_t)host.func;
  if (by == BY_KERNEL || by == BY_FUNCTION)
    return cudaSuccess;
  cudaError_t error = kernel_node(&host, &kernel);
  if (error == cudaSuccess)
    out->kernel = kernel;
  return error;
}

static cudaError_t any_node(const struct cudaGraphNodeParams *in, CUgraphNodeParams *out) {
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  if (!in)
    return rt_fail(cudaErrorInvalidValue);
  *out = (CUgraphNodeParams){.type = in->type};
  __builtin_memcpy(out->reserved1, in->reserved1, sizeof out->reserved1);
  switch (in->type) {
    case NODE_KERNEL: return any_kernel(in, out);
    case NODE_MEMCPY:
      out->memcpy = (CUDA_MEMCPY_NODE_PARAMS){.flags = in->memcpy.flags, .copyCtx = rt_context()};
      return rt_copy_3d(&in->memcpy.copy, &out->memcpy.copyParams);
    case NODE_MEMSET: out->memset.ctx = rt_context(); break;
    case NODE_CONDITIONAL: out->conditional.ctx = rt_context(); break;
    default: break;
  }
  return cudaSuccess;
}

/* The driver returns results in the parameters: an allocation's address, the graphs of a conditional node. */
static cudaError_t any_result(cudaError_t error, struct cudaGraphNodeParams *params, const CUgraphNodeParams *done) {
  if (error == cudaSuccess && params->type > NODE_MEMSET)
    __builtin_memcpy(params->reserved1, done->reserved1, sizeof params->reserved1);
  return error;
}

static cudaError_t add_any(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges,
                           size_t count, struct cudaGraphNodeParams *params) {
  CUgraphNodeParams wanted;
  cudaError_t error = any_node(params, &wanted);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuGraphAddNode_v2(node, graph, after, edges, count, &wanted));
  return any_result(error, params, &wanted);
}

#if RT_MAJOR == 12
cudaError_t cudaGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                             struct cudaGraphNodeParams *params) {
  return add_any(node, graph, after, NULL, count, params);
}
cudaError_t cudaGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                                size_t count, struct cudaGraphNodeParams *params) {
  return add_any(node, graph, after, edges, count, params);
}
#else
cudaError_t cudaGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                             size_t count, struct cudaGraphNodeParams *params) {
  return add_any(node, graph, after, edges, count, params);
}
#endif

cudaError_t cudaGraphNodeSetParams(CUgraphNode node, struct cudaGraphNodeParams *params) {
  CUgraphNodeParams wanted;
  cudaError_t error = any_node(params, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphNodeSetParams(node, &wanted)) : error;
}

cudaError_t cudaGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, struct cudaGraphNodeParams *params) {
  CUgraphNodeParams wanted;
  cudaError_t error = any_node(params, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphExecNodeSetParams(exec, node, &wanted)) : error;
}
