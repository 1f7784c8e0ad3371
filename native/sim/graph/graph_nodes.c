/* Conversion between the API's parameters and ops, for each type of node. All functions use CUgraphNodeParams. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/graph/conditions.h"
#include "sim/graph/graph.h"
#include "sim/program/images/image.h"

static CUdeviceptr address_in(const void *payload) { return *(const CUdeviceptr *)payload; }
static void run_uncommit(void *payload) { sim_graph_mem_uncommit(address_in(payload)); }

static void fill(struct sim_node_spec *spec, void (*run)(void *), int type, const void *data, size_t bytes) {
  memcpy(spec->storage.bytes, data, bytes);
  spec->op = (struct sim_op){.resource = SIM_INSTANT,
                             .run = run,
                             .node_type = type,
                             .payload = spec->storage.bytes,
                             .payload_bytes = bytes,
                             .params = spec->storage.bytes,
                             .params_bytes = bytes};
}

/* A module's function runs in the context of its module, a library's kernel in the context that the node specifies
 * (NULL: the current one). */
static CUresult kernel_spec(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_node_spec *spec) {
  struct sim_function *function;
  CUresult result = sim_kernel_op(params, &spec->op);
  if (result == CUDA_SUCCESS)
    result = sim_function_get(sim_kernel_of(params), &function);
  if (result)
    return result;
  spec->ctx = function->ctx;
  if (spec->ctx == NULL && (result = sim_ctx_get(params->func ? NULL : params->ctx, &spec->ctx)) != CUDA_SUCCESS)
    return result;
  CUDA_KERNEL_NODE_PARAMS *kept = (CUDA_KERNEL_NODE_PARAMS *)spec->storage.bytes; /* with the resolved context */
  *kept = *params;
  if (params->func == NULL)
    kept->ctx = (CUcontext)spec->ctx;
  spec->op.params = kept;
  return CUDA_SUCCESS;
}

CUresult sim_spec_of(const CUgraphNodeParams *params, struct sim_node_spec *spec) {
  CUresult result = CUDA_SUCCESS;
  memset(spec, 0, sizeof *spec);
  spec->op.resource = SIM_INSTANT;
  spec->op.node_type = params->type;
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return kernel_spec(&params->kernel, spec);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      result = sim_ctx_get(params->memcpy.copyCtx, &spec->ctx);
      return result ? result : sim_memcpy_op(spec->ctx, &params->memcpy.copyParams, &spec->op, &spec->storage);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      result = sim_ctx_get(params->memset.ctx, &spec->ctx);
      return result ? result : sim_memset_op(spec->ctx, &params->memset.memset, &spec->op, &spec->storage);
    case CU_GRAPH_NODE_TYPE_HOST:
      if (params->host.fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
      spec->op = sim_host_op(&params->host);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      fill(spec, NULL, params->type, &params->alloc.dptr, sizeof params->alloc.dptr);
      spec->op.params = &params->alloc;
      spec->op.params_bytes = sizeof params->alloc;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      fill(spec, run_uncommit, params->type, &params->free, sizeof params->free);
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

/* Checks that the dependencies are distinct nodes of this graph. */
static CUresult check_deps(const struct sim_graph *graph, const CUgraphNode *deps, size_t ndeps) {
  if (ndeps && deps == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < ndeps; i++) {
    struct sim_graph_node *node;
    if (sim_node_get(deps[i], &node) || node->graph != graph)
      return CUDA_ERROR_INVALID_VALUE;
    for (size_t j = 0; j < i; j++)
      if (deps[j] == deps[i])
        return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

static CUresult alloc_address(CUDA_MEM_ALLOC_NODE_PARAMS *alloc, struct sim_graph_memory **memory) {
  CUdevice device = alloc->poolProps.location.id;
  if (alloc->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_valid(device) ||
      alloc->bytesize == 0)
    return CUDA_ERROR_INVALID_VALUE;
  *memory = malloc(sizeof **memory);
  if (*memory == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = sim_graph_mem_reserve(device, alloc->bytesize, &alloc->dptr);
  if (result)
    free(*memory);
  else
    **memory = (struct sim_graph_memory){1, alloc->dptr};
  return result;
}

CUresult sim_graph_add(CUgraphNode *out, CUgraph handle, const CUgraphNode *deps, size_t ndeps,
                       CUgraphNodeParams *params) {
  struct sim_graph *graph, *child = NULL;
  struct sim_node_spec spec;
  struct sim_graph_memory *memory = NULL;
  struct sim_bodies *bodies = NULL;
  CUresult result = sim_graph_get(handle, &graph);
  if (result)
    return result;
  if (out == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = check_deps(graph, deps, ndeps);
  if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    result = sim_graph_get(params->graph, &child);
    if (result == CUDA_SUCCESS && (child == graph || sim_graph_conditional(child)))
      result = CUDA_ERROR_INVALID_VALUE;
  }
  bool event = params->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || params->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  if (result == CUDA_SUCCESS && event && params->event == NULL)
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    result = alloc_address(&params->alloc, &memory);
  if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
    result = sim_bodies_new(&params->conditional, &bodies);
  if (result == CUDA_SUCCESS)
    result = sim_spec_of(params, &spec);
  if (result)
    return result;
  sim_lock();
  struct sim_graph_node *node =
      sim_node_new(graph, params->type, &spec.op, (struct sim_graph_node *const *)deps, (unsigned)ndeps);
  if (node) {
    node->ctx = spec.ctx;
    node->memory = memory;
    node->bodies = bodies;
    if (event)
      node->event = params->event;
    if (child)
      node->child = sim_graph_clone(child);
    if (node->child)
      node->child->internal = true;
  }
  sim_unlock();
  if (node == NULL || (child && node->child == NULL))
    return CUDA_ERROR_OUT_OF_MEMORY;
  *out = (CUgraphNode)node;
  return CUDA_SUCCESS;
}

CUresult sim_node_update(struct sim_graph_node *node, const CUgraphNodeParams *params, bool executable) {
  struct sim_node_spec spec;
  if (node->type != params->type || node->bodies)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = sim_spec_of(params, &spec);
  if (result)
    return result;
  if (executable && node->type == CU_GRAPH_NODE_TYPE_KERNEL && sim_ctx_owner(spec.ctx) != sim_ctx_owner(node->ctx))
    return CUDA_ERROR_INVALID_VALUE; /* the context of an executable's kernel cannot change */
  sim_lock();
  if (node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
    node->event = params->event;
  if (spec.ctx)
    node->ctx = spec.ctx;
  bool done = sim_node_set_op(node, &spec.op);
  sim_unlock();
  return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_node_read_params(CUgraphNode handle, int type, void *out, size_t bytes) {
  struct sim_graph_node *node;
  CUresult result = sim_node_get(handle, &node);
  if (result)
    return result;
  if (out == NULL || node->type != type)
    return CUDA_ERROR_INVALID_VALUE;
  memset(out, 0, bytes);
  sim_lock();
  if (node->op.params)
    memcpy(out, node->op.params, node->op.params_bytes < bytes ? node->op.params_bytes : bytes);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult sim_node_set_params(CUgraphNode handle, const CUgraphNodeParams *params) {
  struct sim_graph_node *node;
  CUresult result = sim_node_get(handle, &node);
  return result ? result : sim_node_update(node, params, false);
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type) {
  struct sim_graph_node *node;
  CUresult result = sim_node_get(hNode, &node);
  if (result)
    return result;
  if (type == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
}

#define ADD CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies

CUresult cuGraphAddNode(ADD, CUgraphNodeParams *nodeParams) {
  if (nodeParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  return sim_graph_add(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}
CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *dependencyData, size_t numDependencies,
                           CUgraphNodeParams *nodeParams) {
  (void)dependencyData;
  return cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}
CUresult cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *dependencyData, size_t numDependencies,
                           CUgraphNodeParams *nodeParams) {
  return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}
CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
  return nodeParams ? sim_node_set_params(hNode, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
  return cuGraphNodeSetParams(hNode, nodeParams);
}
