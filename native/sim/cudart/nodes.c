/* Graph nodes of any type, described by one structure. */
#include "sim/cudart/cudart.h"

/* The same layout as the driver's CUgraphNodeParams, except for kernels and copies. */
struct cudaGraphNodeParams {
  int type, reserved0[3];
  union {
    long long reserved1[29];
    struct {
      struct cudaKernelNodeParams host;
      CUcontext ctx;
      int function_type; /* CUDA 13: BY_...; 0: host stand-in */
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
enum { NODE_KERNEL, NODE_MEMCPY, NODE_MEMSET, NODE_CONDITIONAL = 13, BY_HOST = 1, BY_KERNEL, BY_FUNCTION };

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
  cudaError_t error = rt_kernel_node(&host, &kernel);
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

#if RT_MAJOR >= 13
cudaError_t cudaGraphNodeGetParams(CUgraphNode node, struct cudaGraphNodeParams *params) {
  CUgraphNodeParams is;
  cudaError_t error = rt_enter();
  if (error == cudaSuccess && !params)
    error = rt_fail(cudaErrorInvalidValue);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuGraphNodeGetParams(node, &is));
  if (error != cudaSuccess)
    return error;
  *params = (struct cudaGraphNodeParams){.type = is.type};
  if (is.type == NODE_KERNEL) {
    const struct cudaKernelNodeParams kernel = rt_kernel_node_back(&is.kernel);
    params->kernel.host = kernel;
    params->kernel.function_type = kernel.func == (const void *)is.kernel.func   ? BY_FUNCTION
                                   : kernel.func == (const void *)is.kernel.kern ? BY_KERNEL
                                                                                 : BY_HOST;
    return cudaSuccess;
  }
  if (is.type == NODE_MEMCPY) {
    params->memcpy.flags = is.memcpy.flags;
    return rt_copy_3d_back(&is.memcpy.copyParams, &params->memcpy.copy);
  }
  __builtin_memcpy(params->reserved1, is.reserved1, sizeof params->reserved1);
  return cudaSuccess;
}

/* ---- execution contexts: green contexts of the driver ------------------------------------------------------------ */

static cudaError_t context_of(CUgreenCtx green, CUcontext *context) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuCtxFromGreenCtx(context, green)) : error;
}

cudaError_t cudaGraphConditionalHandleCreate_v2(unsigned long long *handle, CUgraph graph, CUgreenCtx green,
                                                unsigned value, unsigned flags) {
  CUcontext context = NULL;
  cudaError_t error = green ? context_of(green, &context) : rt_enter();
  if (error != cudaSuccess)
    return error;
  return rt_done(rt_driver.cuGraphConditionalHandleCreate((CUgraphConditionalHandle *)handle, graph,
                                                          green ? context : rt_context(), value, flags));
}

cudaError_t cudaExecutionCtxGetDevice(int *device, CUgreenCtx green) {
  CUcontext context;
  cudaError_t error = context_of(green, &context);
  return error == cudaSuccess ? rt_done(rt_driver.cuCtxGetDevice_v2(device, context)) : error;
}

cudaError_t cudaExecutionCtxSynchronize(CUgreenCtx green) {
  CUcontext context;
  cudaError_t error = context_of(green, &context);
  return error == cudaSuccess ? rt_done(rt_driver.cuCtxSynchronize_v2(context)) : error;
}
#endif
