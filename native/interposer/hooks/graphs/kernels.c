/* Kernels of graphs: the memory that they make the driver allocate is reserved when their graph is instantiated or
 * updated. */
#include "interposer/hooks/graphs/kernels.h"

#include <sys/mman.h>

#include "interposer/hooks/graphs/bodies.h"
#include "interposer/hooks/graphs/nodes.h"
#include "interposer/memory/implicit/kernels.h"
#include "interposer/memory/implicit/library_code.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"

/* Reserves what a kernel of a graph needs. named: the context of its node, which matters only for kernels of libraries,
 * since a function has the context of its module. most: the largest local memory of the kernels in the current context,
 * which the caller reserves once; for other contexts it is reserved here. */
static CUresult look_at(CUfunction function, CUcontext named, CUcontext current, uint64_t *most) {
  int ordinal;
  uint64_t stack;
  struct gs_growing other = {0};
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
    CUgraph *bodies;
    size_t n = type == CU_GRAPH_NODE_TYPE_CONDITIONAL ? gs_graph_bodies(nodes[i], &bodies) : 0;
    for (size_t k = 0; k < n && result == CUDA_SUCCESS; k++)
      result = walk(bodies[k], current, most);
  }
  munmap(nodes, bytes);
  return result;
}

CUresult gs_graph_kernels_begin(struct gs_growing *growing, CUgraph graph) {
  *growing = (struct gs_growing){0};
  uint64_t most = 0;
  CUcontext current = gs_owner_current();
  CUresult result = current && graph ? walk(graph, current, &most) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS && most > 0)
    result = gs_stack_begin(growing, current, gs_context_device(current), most);
  return result;
}

CUresult gs_graph_kernel_begin(struct gs_growing *growing, CUfunction function) {
  uint64_t most = 0;
  CUcontext current = gs_owner_current();
  *growing = (struct gs_growing){0};
  if (!current)
    return CUDA_SUCCESS;
  CUresult result = look_at(function, NULL, current, &most);
  if (result == CUDA_SUCCESS && most > 0)
    result = gs_stack_begin(growing, current, gs_context_device(current), most);
  return result;
}
