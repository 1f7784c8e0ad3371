/* Executable graphs: instantiating, launching, updating. A launch puts the nodes into the stream in an order that
 * respects their dependencies; they run one after the other (this device executes one kernel of a process at a time
 * anyway). */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/graph/graph.h"
#include "sim/program/image.h"
#include "sim/memory/memory.h"

struct sim_graph_exec {
  uint32_t magic;
  struct sim_graph *graph; /* a clone: node->origin leads back to the program's nodes */
  uint64_t flags;
  struct sim_mark *last; /* end of the latest launch: launches of one executable follow one another */
};

static struct sim_kind exec_kind = {sizeof(struct sim_graph_exec), 0x65786563, NULL};

enum {
  KNOWN_FLAGS = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
  CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
};

static CUresult exec_get(CUgraphExec handle, struct sim_graph_exec **exec) {
  CUresult result = sim_ready();
  if (result)
    return result;
  *exec = (struct sim_graph_exec *)handle;
  return *exec && (*exec)->magic == exec_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Kernels are made ready when their graph is, and again at each launch for what an update put in. Called unlocked. */
static CUresult prepare_kernels(const struct sim_graph *graph) {
  CUresult result = CUDA_SUCCESS;
  for (const struct sim_graph_node *node = graph->nodes; node && result == CUDA_SUCCESS; node = node->next) {
    if (node->child)
      result = prepare_kernels(node->child);
    if (node->type != CU_GRAPH_NODE_TYPE_KERNEL)
      continue;
    const CUDA_KERNEL_NODE_PARAMS *params = node->op.params;
    struct sim_function *function;
    result = sim_function_get(params->func ? (const void *)params->func : (const void *)params->kern, &function);
    if (result == CUDA_SUCCESS)
      result = sim_kernel_prepare(function, function->ctx ? function->ctx : sim_ctx_owner(node->ctx));
  }
  return result;
}

/* ---- instantiating ----------------------------------------------------------------------------------------------- */

static void sum_memory(const struct sim_graph *graph, uint64_t sums[SIM_MAX_DEVICES]) {
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      sim_graph_mem_sum(node->memory->address, sums);
    if (node->child)
      sum_memory(node->child, sums);
  }
}

/* What the first launch would take is reserved already now. */
static CUresult upload_memory(const struct sim_graph_exec *exec) {
  uint64_t sums[SIM_MAX_DEVICES] = {0};
  CUresult result = CUDA_SUCCESS;
  sum_memory(exec->graph, sums);
  for (CUdevice device = 0; device < SIM_MAX_DEVICES && !result; device++)
    if (sums[device])
      result = sim_graph_mem_grow(device, sums[device]);
  return result;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, uint64_t flags) {
  struct sim_ctx *ctx;
  struct sim_graph *graph;
  CUresult result = sim_ctx_need(&ctx);
  if (result == CUDA_SUCCESS)
    result = sim_graph_get(handle, &graph);
  if (result)
    return result;
  if (out == NULL || flags & ~(uint64_t)KNOWN_FLAGS)
    return CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
    return CUDA_ERROR_NOT_SUPPORTED;
  sim_lock();
  struct sim_graph_node **order = sim_graph_order(graph);
  struct sim_graph_exec *exec = order ? sim_handle_new(&exec_kind) : NULL;
  if (exec)
    exec->graph = sim_graph_clone(graph);
  if (exec && exec->graph == NULL) {
    sim_handle_free(&exec_kind, exec);
    exec = NULL;
  }
  sim_unlock();
  free(order);
  if (order == NULL)
    return CUDA_ERROR_INVALID_VALUE; /* a cycle */
  if (exec == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  exec->graph->internal = true;
  exec->flags = flags;
  result = prepare_kernels(exec->graph);
  if (result) {
    cuGraphExecDestroy((CUgraphExec)exec);
    return result;
  }
  *out = (CUgraphExec)exec;
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags) {
  return instantiate(phGraphExec, hGraph, flags);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                               size_t bufferSize) {
  if (phErrorNode)
    *phErrorNode = NULL;
  if (logBuffer && bufferSize)
    *logBuffer = '\0';
  return instantiate(phGraphExec, hGraph, 0);
}
CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                            size_t bufferSize) {
  return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  if (params == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = instantiate(phGraphExec, hGraph, params->flags);
  if (result == CUDA_SUCCESS && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD &&
      (result = upload_memory((struct sim_graph_exec *)*phGraphExec)))
    cuGraphExecDestroy(*phGraphExec);
  params->hErrNode_out = NULL;
  params->result_out = result ? 1 : 0; /* CUDA_GRAPH_INSTANTIATE_ERROR : _SUCCESS */
  return result;
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  return cuGraphInstantiateWithParams(phGraphExec, hGraph, params);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  struct sim_graph_exec *exec;
  CUresult result = exec_get(hGraphExec, &exec);
  if (result)
    return result;
  sim_lock();
  sim_mark_release(exec->last);
  sim_graph_free(exec->graph); /* work in flight has copies of all it needs */
  sim_handle_free(&exec_kind, exec);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags) {
  struct sim_graph_exec *exec;
  CUresult result = exec_get(hGraphExec, &exec);
  if (result)
    return result;
  if (flags == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

static bool frees(const struct sim_graph *graph, CUdeviceptr address) {
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next)
    if ((node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && memcmp(node->op.params, &address, sizeof address) == 0) ||
        (node->child && frees(node->child, address)))
      return true;
  return false;
}

static void uncommit_memory(const struct sim_graph *graph, unsigned *committed) {
  for (const struct sim_graph_node *node = graph->nodes; node && *committed; node = node->next) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      sim_graph_mem_free(node->memory->address);
      sim_graph_mem_uncommit(node->memory->address);
      --*committed;
    }
    if (node->child)
      uncommit_memory(node->child, committed);
  }
}

static CUresult commit_nodes(const struct sim_graph_exec *exec, const struct sim_graph *graph, unsigned *committed) {
  bool auto_free = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  CUresult result = CUDA_SUCCESS;
  for (const struct sim_graph_node *node = graph->nodes; node && !result; node = node->next) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      CUdeviceptr address = node->memory->address;
      result = sim_graph_mem_commit(address, frees(exec->graph, address), auto_free);
      *committed += result == CUDA_SUCCESS;
    } else if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      CUdeviceptr address;
      memcpy(&address, node->op.params, sizeof address);
      sim_graph_mem_free(address); /* what another graph left */
    }
    if (node->child && !result)
      result = commit_nodes(exec, node->child, committed);
  }
  return result;
}

/* Device memory is taken when the launch is called, so that a full device refuses the launch. */
static CUresult commit_memory(const struct sim_graph_exec *exec) {
  unsigned committed = 0;
  CUresult result = commit_nodes(exec, exec->graph, &committed);
  if (result)
    uncommit_memory(exec->graph, &committed);
  return result;
}

static CUresult submit_graph(const struct sim_graph *graph, struct sim_stream *stream, bool *counted);

static CUresult submit_node(const struct sim_graph_node *node, struct sim_stream *stream, bool *counted) {
  struct sim_event *event = (struct sim_event *)node->event;
  switch (node->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH: return submit_graph(node->child, stream, counted);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return sim_event_record(event, stream);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return sim_event_wait(event, stream);
    default:
      if (!sim_enqueue(stream, &node->op, false, !*counted))
        return CUDA_ERROR_OUT_OF_MEMORY;
      *counted = true; /* the launch takes one place in the stream's queue, not one per node */
      return CUDA_SUCCESS;
  }
}

static CUresult submit_graph(const struct sim_graph *graph, struct sim_stream *stream, bool *counted) {
  struct sim_graph_node **order = sim_graph_order(graph);
  if (order == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < graph->nnodes && result == CUDA_SUCCESS; i++)
    if (order[i]->enabled)
      result = submit_node(order[i], stream, counted);
  free(order);
  return result;
}

/* sim_lock held */
static CUresult launch(struct sim_graph_exec *exec, struct sim_stream *stream) {
  bool counted = false;
  CUresult result = commit_memory(exec);
  if (result)
    return result;
  if (exec->last && !sim_enqueue_wait(stream, exec->last))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = submit_graph(exec->graph, stream, &counted);
  struct sim_mark *mark = sim_mark_new(stream->ctx->device);
  if (mark == NULL || !sim_enqueue_mark(stream, mark)) {
    sim_mark_release(mark);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_mark_release(exec->last);
  exec->last = mark;
  return result;
}

/* A launch that is captured becomes a child graph. sim_lock held. */
static CUresult capture_launch(struct sim_graph_exec *exec, struct sim_stream *stream) {
  struct sim_op op = {.resource = SIM_INSTANT, .node_type = CU_GRAPH_NODE_TYPE_GRAPH};
  CUresult result = stream->capture->append(stream, &op);
  if (result)
    return result;
  struct sim_graph_node *node = stream->cap_deps[0];
  node->child = sim_graph_clone(exec->graph);
  if (node->child)
    node->child->internal = true;
  return node->child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult launch_in(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
  struct sim_graph_exec *exec;
  struct sim_stream *stream;
  CUresult result = exec_get(handle, &exec);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(stream_handle, per_thread, &stream);
  if (result)
    return result;
  if (!sim_stream_capturing(stream))
    result = prepare_kernels(exec->graph);
  if (result)
    return result;
  sim_spin(sim_hello.launch_ns);
  sim_lock();
  if (stream->capture)
    result = capture_launch(exec, stream);
  else if ((result = sim_capture_implicit(stream)) == CUDA_SUCCESS)
    result = launch(exec, stream);
  sim_unlock();
  return result;
}
CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) { return launch_in(hGraphExec, hStream, false); }
CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) { return launch_in(hGraphExec, hStream, true); }

static CUresult upload(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
  struct sim_graph_exec *exec;
  struct sim_stream *stream;
  CUresult result = exec_get(handle, &exec);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(stream_handle, per_thread, &stream);
  return result ? result : upload_memory(exec);
}
CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) { return upload(hGraphExec, hStream, false); }
CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) { return upload(hGraphExec, hStream, true); }

/* ---- updating ---------------------------------------------------------------------------------------------------- */

/* The executable's node that was made from the program's node, NULL none. */
static struct sim_graph_node *exec_node(const struct sim_graph_exec *exec, const struct sim_graph_node *origin) {
  for (struct sim_graph_node *node = exec->graph->nodes; node; node = node->next)
    if (node->origin == origin)
      return node;
  return NULL;
}

static CUresult pair_get(CUgraphExec handle, CUgraphNode origin_handle, struct sim_graph_node **node) {
  struct sim_graph_exec *exec;
  struct sim_graph_node *origin;
  CUresult result = exec_get(handle, &exec);
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
  return result ? result : sim_node_update(node, params);
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

/* Position of a node among its graph's. */
static unsigned position(const struct sim_graph_node *node) {
  unsigned i = 0;
  for (const struct sim_graph_node *other = node->graph->nodes; other != node; other = other->next)
    i++;
  return i;
}

/* The two graphs must be alike node by node, in order of addition. The first that is not, and why; SUCCESS: none. */
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
  }
  *bad = b;
  return a || b ? CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED : CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static bool take_over(struct sim_graph *old, const struct sim_graph *new) {
  struct sim_graph_node *a = old->nodes;
  for (const struct sim_graph_node *b = new->nodes; a && b; a = a->next, b = b->next) {
    a->event = b->event;
    if (!sim_node_set_op(a, &b->op) || (a->child && !take_over(a->child, b->child)))
      return false;
  }
  return true;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo) {
  struct sim_graph_exec *exec;
  struct sim_graph *graph;
  struct sim_graph_node *bad = NULL;
  CUresult result = exec_get(hGraphExec, &exec);
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
