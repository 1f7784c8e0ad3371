#include "interposer/hooks/graphs/nodes.h"

#include "interposer/memory/implicit/library_code.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"

CUfunction gs_node_kernel(const CUDA_KERNEL_NODE_PARAMS *params) {
  return !params ? NULL : params->func ? params->func : (CUfunction)params->kern;
}

CUfunction gs_any_node_kernel(const CUgraphNodeParams *params) {
  return params && params->type == CU_GRAPH_NODE_TYPE_KERNEL ? gs_node_kernel(&params->kernel) : NULL;
}

CUresult gs_graph_node_kernel(CUgraphNode node, CUfunction *function, CUcontext *context) {
  CUDA_KERNEL_NODE_PARAMS params = {0};
  CUresult result = gs_real_has(GS_INDEX_cuGraphKernelNodeGetParams_v2)
                        ? gs_real.cuGraphKernelNodeGetParams_v2(node, &params)
                        : gs_real.cuGraphKernelNodeGetParams(node, (CUDA_KERNEL_NODE_PARAMS_v1 *)&params);
  *function = gs_node_kernel(&params);
  *context = params.ctx;
  return result;
}

int gs_graph_kernel_device(CUfunction function, CUcontext named) {
  CUcontext context = gs_function_context(function);
  if (!context)
    context = named ? gs_context_owner(named) : gs_owner_current();
  return context ? gs_context_device(context) : GS_NO_DEVICE;
}
