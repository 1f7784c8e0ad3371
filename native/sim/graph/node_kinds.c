/* The API functions that are specific to one type of node. */
#include <string.h>

#include "sim/graph/graph.h"

#define ADD CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static CUgraphNodeParams of_kernel(const void *params, size_t bytes) {
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  memcpy(&all.kernel, params, bytes); /* the first version of the struct is a prefix of the second */
  return all;
}

CUresult cuGraphAddKernelNode_v2(ADD, const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = of_kernel(nodeParams, sizeof *nodeParams);
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
}
CUresult cuGraphAddKernelNode(ADD, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = of_kernel(nodeParams, sizeof *nodeParams);
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams) {
  return sim_node_read_params(hNode, CU_GRAPH_NODE_TYPE_KERNEL, nodeParams, sizeof *nodeParams);
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
  return sim_node_read_params(hNode, CU_GRAPH_NODE_TYPE_KERNEL, nodeParams, sizeof *nodeParams);
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = of_kernel(nodeParams, sizeof *nodeParams);
  return sim_node_set_params(hNode, &all);
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = of_kernel(nodeParams, sizeof *nodeParams);
  return sim_node_set_params(hNode, &all);
}

/* ---- copies and fills -------------------------------------------------------------------------------------------- */

CUresult cuGraphAddMemcpyNode(ADD, const CUDA_MEMCPY3D *copyParams, CUcontext ctx) {
  if (copyParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy = {0, 0, ctx, *copyParams}};
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams) {
  return sim_node_read_params(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams, sizeof *nodeParams);
}

static CUcontext ctx_of(CUgraphNode handle) {
  struct sim_graph_node *node;
  return sim_node_get(handle, &node) == CUDA_SUCCESS ? (CUcontext)node->ctx : NULL;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy = {0, 0, ctx_of(hNode), *nodeParams}};
  return sim_node_set_params(hNode, &all);
}

CUresult cuGraphAddMemsetNode(ADD, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx) {
  if (memsetParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {*memsetParams, ctx}};
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams) {
  return sim_node_read_params(hNode, CU_GRAPH_NODE_TYPE_MEMSET, nodeParams, sizeof *nodeParams);
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {*nodeParams, ctx_of(hNode)}};
  return sim_node_set_params(hNode, &all);
}

/* ---- host functions, empty nodes, child graphs, events ----------------------------------------------------------- */

CUresult cuGraphAddHostNode(ADD, const CUDA_HOST_NODE_PARAMS *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = *nodeParams};
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
}
CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams) {
  return sim_node_read_params(hNode, CU_GRAPH_NODE_TYPE_HOST, nodeParams, sizeof *nodeParams);
}
CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = *nodeParams};
  return sim_node_set_params(hNode, &all);
}

CUresult cuGraphAddEmptyNode(ADD) {
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
}

CUresult cuGraphAddChildGraphNode(ADD, CUgraph childGraph) {
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = childGraph};
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph) {
  struct sim_graph_node *node;
  CUresult result = sim_node_get(hNode, &node);
  if (result)
    return result;
  if (phGraph == NULL || node->child == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *phGraph = (CUgraph)node->child;
  return CUDA_SUCCESS;
}

static CUresult add_event(ADD, CUevent event, int type) {
  CUgraphNodeParams all = {.type = type, .event = event};
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
}
static CUresult get_event(CUgraphNode handle, CUevent *event, int type) {
  struct sim_graph_node *node;
  CUresult result = sim_node_get(handle, &node);
  if (result)
    return result;
  if (event == NULL || node->type != type)
    return CUDA_ERROR_INVALID_VALUE;
  *event = node->event;
  return CUDA_SUCCESS;
}
static CUresult set_event(CUgraphNode handle, CUevent event, int type) {
  CUgraphNodeParams all = {.type = type, .event = event};
  return event ? sim_node_set_params(handle, &all) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphAddEventRecordNode(ADD, CUevent event) {
  return add_event(phGraphNode, hGraph, dependencies, numDependencies, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}
CUresult cuGraphAddEventWaitNode(ADD, CUevent event) {
  return add_event(phGraphNode, hGraph, dependencies, numDependencies, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out) {
  return get_event(hNode, event_out, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out) {
  return get_event(hNode, event_out, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return set_event(hNode, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return set_event(hNode, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

CUresult cuGraphAddMemAllocNode(ADD, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = *nodeParams};
  CUresult result = sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all);
  if (result == CUDA_SUCCESS)
    nodeParams->dptr = all.alloc.dptr;
  return result;
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out) {
  return sim_node_read_params(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params_out, sizeof *params_out);
}
CUresult cuGraphAddMemFreeNode(ADD, CUdeviceptr dptr) {
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = dptr};
  return dptr ? sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, &all) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out) {
  return sim_node_read_params(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, dptr_out, sizeof *dptr_out);
}

/* ---- any kind but batches of memory operations and conditions ------------------------------------------------------- */

static CUresult params_of(CUgraphNode node, CUgraphNodeParams *all) {
  switch (all->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphKernelNodeGetParams_v2(node, &all->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return cuGraphMemcpyNodeGetParams(node, &all->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: return cuGraphMemsetNodeGetParams(node, &all->memset.memset);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphHostNodeGetParams(node, &all->host);
    case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphChildGraphNodeGetGraph(node, &all->graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return cuGraphEventWaitNodeGetEvent(node, &all->event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return cuGraphEventRecordNodeGetEvent(node, &all->event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return cuGraphMemAllocNodeGetParams(node, &all->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphMemFreeNodeGetParams(node, &all->free);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuGraphNodeGetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
  CUgraphNodeParams all = {0};
  CUresult result = nodeParams ? cuGraphNodeGetType(hNode, &all.type) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    result = params_of(hNode, &all);
  if (result == CUDA_SUCCESS)
    *nodeParams = all;
  return result;
}
