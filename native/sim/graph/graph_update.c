/* Updating executable graphs in place: one node, or all nodes from another graph. */
#include <stdlib.h>
#include <string.h>

#include "sim/graph/conditions.h"
#include "sim/graph/graph.h"

/* The executable's node that was cloned from the program's node; NULL: none. */
static struct sim_graph_node *exec_node(const struct sim_graph_exec *exec, const struct sim_graph_node *origin) {
  for (struct sim_graph_node *node = exec->graph->nodes; node; node = node->next)
    if (node->origin == origin)
      return node;
  return NULL;
}

static CUresult pair_get(CUgraphExec handle, CUgraphNode origin_handle, struct sim_graph_node **node) {
  struct sim_graph_exec *exec;
  struct sim_graph_node *origin;
  CUresult result = sim_exec_get(handle, &exec);
  if (result == CUDA_SUCCESS)
    result = sim_node_get(origin_handle, &origin);
  if (result)
    return result;
  *node = exec_node(exec, origin);
  return *node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_params(CUgraphExec handle, CUgraphNode origin, const CUgraphNodeParams *params) {
  struct sim_graph_node *node;
  CUresult result = pair_get(handle, origin, &node);
  return result ? result : sim_node_update(node, params, true);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
  return nodeParams ? set_params(hGraphExec, hNode, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = *nodeParams};
  return set_params(hGraphExec, hNode, &all);
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  memcpy(&all.kernel, nodeParams, sizeof *nodeParams);
  return set_params(hGraphExec, hNode, &all);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams,
                                        CUcontext ctx) {
  if (copyParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy = {0, 0, ctx, *copyParams}};
  return set_params(hGraphExec, hNode, &all);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx) {
  if (memsetParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {*memsetParams, ctx}};
  return set_params(hGraphExec, hNode, &all);
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = *nodeParams};
  return set_params(hGraphExec, hNode, &all);
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event};
  return event ? set_params(hGraphExec, hNode, &all) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
  CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event};
  return event ? set_params(hGraphExec, hNode, &all) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
  struct sim_graph_node *node;
  CUresult result = pair_get(hGraphExec, hNode, &node);
  if (result)
    return result;
  if (node->type > CU_GRAPH_NODE_TYPE_MEMSET)
    return CUDA_ERROR_INVALID_VALUE; /* kernels, copies and fills only */
  node->enabled = isEnabled != 0;
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled) {
  struct sim_graph_node *node;
  CUresult result = pair_get(hGraphExec, hNode, &node);
  if (result)
    return result;
  if (isEnabled == NULL || node->type > CU_GRAPH_NODE_TYPE_MEMSET)
    return CUDA_ERROR_INVALID_VALUE;
  *isEnabled = node->enabled;
  return CUDA_SUCCESS;
}

/* Index of a node in its graph. */
static unsigned position(const struct sim_graph_node *node) {
  unsigned i = 0;
  for (const struct sim_graph_node *other = node->graph->nodes; other != node; other = other->next)
    i++;
  return i;
}

static CUgraphExecUpdateResult compare_bodies(const struct sim_bodies *old, const struct sim_bodies *new);

/* Compares two graphs node by node, in order of addition. Reports the first difference and its kind. */
static CUgraphExecUpdateResult compare(const struct sim_graph *old, const struct sim_graph *new,
                                       struct sim_graph_node **bad) {
  struct sim_graph_node *a = old->nodes, *b = new->nodes;
  for (; a && b; a = a->next, b = b->next) {
    *bad = b;
    if (a->type != b->type)
      return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (a->ndeps != b->ndeps)
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (unsigned i = 0; i < a->ndeps; i++)
      if (position(a->deps[i]) != position(b->deps[i]))
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (a->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || a->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
      return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    if (a->child) {
      struct sim_graph_node *inner = NULL;
      CUgraphExecUpdateResult result = compare(a->child, b->child, &inner);
      if (result)
        return result;
    }
    if (a->bodies) {
      CUgraphExecUpdateResult result = compare_bodies(a->bodies, b->bodies);
      if (result)
        return result;
    }
  }
  *bad = b;
  return a || b ? CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED : CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUgraphExecUpdateResult compare_bodies(const struct sim_bodies *old, const struct sim_bodies *new) {
  struct sim_graph_node *inner = NULL;
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  if (old->type != new->type || old->count != new->count)
    return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  for (unsigned i = 0; i < old->count && !result; i++)
    result = compare(old->graph[i], new->graph[i], &inner);
  return result;
}

static bool take_over(struct sim_graph *old, const struct sim_graph *new);

/* Takes over the handle as well: the kernels taken over refer to the new graph's handle. */
static bool take_over_bodies(struct sim_bodies *old, const struct sim_bodies *new) {
  new->handle->refs++;
  sim_condition_release(old->handle);
  old->handle = new->handle;
  for (unsigned i = 0; i < old->count; i++)
    if (!take_over(old->graph[i], new->graph[i]))
      return false;
  return true;
}

static bool take_over(struct sim_graph *old, const struct sim_graph *new) {
  struct sim_graph_node *a = old->nodes;
  for (const struct sim_graph_node *b = new->nodes; a && b; a = a->next, b = b->next) {
    a->event = b->event;
    if (!sim_node_set_op(a, &b->op) || (a->child && !take_over(a->child, b->child)) ||
        (a->bodies && !take_over_bodies(a->bodies, b->bodies)))
      return false;
  }
  return true;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo) {
  struct sim_graph_exec *exec;
  struct sim_graph *graph;
  struct sim_graph_node *bad = NULL;
  CUresult result = sim_exec_get(hGraphExec, &exec);
  if (result == CUDA_SUCCESS)
    result = sim_graph_get(hGraph, &graph);
  if (result)
    return result;
  if (resultInfo == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  CUgraphExecUpdateResult difference = compare(exec->graph, graph, &bad);
  bool done = difference || take_over(exec->graph, graph);
  sim_unlock();
  *resultInfo = (CUgraphExecUpdateResultInfo){difference, difference ? (CUgraphNode)bad : NULL, NULL};
  if (difference)
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                           CUgraphExecUpdateResult *updateResult_out) {
  CUgraphExecUpdateResultInfo info = {0};
  if (updateResult_out == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
  if (hErrorNode_out)
    *hErrorNode_out = info.errorNode;
  *updateResult_out = info.result;
  return result;
}
