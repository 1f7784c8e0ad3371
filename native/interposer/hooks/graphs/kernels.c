/* Kernels of graphs: what they make the driver take is reserved when their graph is made executable or updated. Bodies
 * of conditional nodes are not looked into: no call of the driver names them. */
#include "interposer/memory/books.h"
#include "interposer/time/collectives.h"
#include "interposer/process/device.h"
#include "interposer/hooks/graphs.h"
#include "interposer/memory/implicit.h"

#include <sys/mman.h>

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

/* A kernel of a graph. named: its node's context, which counts for kernels of libraries only: a function has its
 * module's. most: the stack of those in the current context, reserved in one go; others' is at once theirs. */
static CUresult look_at(CUfunction function, CUcontext named, CUcontext current, uint64_t *most) {
  int ordinal;
  uint64_t stack;
  struct gs_first other = {0};
  CUcontext context = function ? gs_function_context(function) : NULL;
  if (!context)
    context = named ? gs_context_owner(named) : current;
  CUresult result = gs_kernel_need(function, context, &ordinal, &stack);
  if (result != CUDA_SUCCESS)
    return result;
  if (context == current) {
    *most = stack > *most ? stack : *most;
  } else if (stack > 0) {
    result = gs_stack_begin(&other, context, ordinal, stack);
    gs_implicit_end(&other, result == CUDA_SUCCESS);
  }
  return result;
}

static CUresult walk(CUgraph graph, CUcontext current, uint64_t *most) {
  size_t count = 0;
  CUresult result = CUDA_SUCCESS;
  if (gs_real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
    return CUDA_SUCCESS;
  size_t bytes = count * sizeof(CUgraphNode);
  CUgraphNode *nodes = gs_private_map(bytes);
  if (!nodes)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (gs_real.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)
    count = 0;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
    CUgraphNodeType type;
    CUgraph child;
    CUfunction function;
    CUcontext context;
    if (gs_real.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
      continue;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && gs_graph_node_kernel(nodes[i], &function, &context) == CUDA_SUCCESS)
      result = look_at(function, context, current, most);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && gs_real.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
      result = walk(child, current, most);
  }
  munmap(nodes, bytes);
  return result;
}

CUresult gs_graph_kernels_begin(struct gs_first *first, CUgraph graph) {
  *first = (struct gs_first){0};
  uint64_t most = 0;
  CUcontext current = gs_owner_current();
  CUresult result = current && graph ? walk(graph, current, &most) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS && most > 0)
    result = gs_stack_begin(first, current, gs_context_device(current), most);
  return result;
}

CUresult gs_before_graph_updated(struct gs_around_graph_updated *around, CUgraphExec executable, CUgraph graph) {
  CUresult result = gs_before_graph_changed(&around->changed, executable);
  gs_graph_change_all(&around->collectives, executable, graph);
  around->first = (struct gs_first){0};
  return result == CUDA_SUCCESS && around->changed.active ? gs_graph_kernels_begin(&around->first, graph) : result;
}

CUresult gs_after_graph_updated(struct gs_around_graph_updated *around, CUresult result) {
  gs_graph_changed(&around->collectives, result);
  gs_implicit_end(&around->first, result == CUDA_SUCCESS);
  return gs_after_graph_changed(&around->changed, result);
}

CUresult gs_before_kernel_node(struct gs_around_kernel_node *around, CUgraphExec executable, CUgraphNode node,
                               CUfunction function) {
  CUresult result = gs_before_graph_changed(&around->changed, executable);
  gs_graph_change_kernel(&around->collectives, executable, node, function);
  uint64_t most = 0;
  CUcontext current;
  around->first = (struct gs_first){0};
  if (result != CUDA_SUCCESS || !around->changed.active || !(current = gs_owner_current()))
    return result;
  result = look_at(function, NULL, current, &most);
  if (result == CUDA_SUCCESS && most > 0)
    result = gs_stack_begin(&around->first, current, gs_context_device(current), most);
  return result;
}

CUresult gs_after_kernel_node(struct gs_around_kernel_node *around, CUresult result) {
  gs_graph_changed(&around->collectives, result);
  gs_implicit_end(&around->first, result == CUDA_SUCCESS);
  return gs_after_graph_changed(&around->changed, result);
}
