/* Graph nodes for kernels, identified by their host-side stand-in, and for copies. */
#include "sim/cudart/cudart.h"

cudaError_t rt_kernel_node(const struct cudaKernelNodeParams *in, CUDA_KERNEL_NODE_PARAMS *out) {
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
  cudaError_t error = rt_kernel_node(params, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphAddKernelNode_v2(node, graph, after, count, &wanted)) : error;
}

cudaError_t cudaGraphKernelNodeSetParams(CUgraphNode node, const struct cudaKernelNodeParams *params) {
  CUDA_KERNEL_NODE_PARAMS wanted;
  cudaError_t error = rt_kernel_node(params, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphKernelNodeSetParams_v2(node, &wanted)) : error;
}

cudaError_t cudaGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const struct cudaKernelNodeParams *params) {
  CUDA_KERNEL_NODE_PARAMS wanted;
  cudaError_t error = rt_kernel_node(params, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphExecKernelNodeSetParams_v2(exec, node, &wanted)) : error;
}

struct cudaKernelNodeParams rt_kernel_node_back(const CUDA_KERNEL_NODE_PARAMS *is) {
  const void *host = is->kern ? rt_host_of(is->kern) : NULL;
  return (struct cudaKernelNodeParams){.func = host       ? host
                                               : is->func ? (const void *)is->func
                                                          : (const void *)is->kern,
                                       .grid = {is->gridDimX, is->gridDimY, is->gridDimZ},
                                       .block = {is->blockDimX, is->blockDimY, is->blockDimZ},
                                       .shared = is->sharedMemBytes,
                                       .params = is->kernelParams,
                                       .extra = is->extra};
}

cudaError_t cudaGraphKernelNodeGetParams(CUgraphNode node, struct cudaKernelNodeParams *out) {
  CUDA_KERNEL_NODE_PARAMS is;
  cudaError_t error = rt_enter_for(out);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuGraphKernelNodeGetParams_v2(node, &is));
  if (error == cudaSuccess)
    *out = rt_kernel_node_back(&is);
  return error;
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
  cudaError_t error = rt_enter_for(out);
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
