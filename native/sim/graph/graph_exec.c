/* Executable graphs: instantiation and launch. A launch appends the nodes to the stream in topological order, and they
 * run one after another; the device executes one kernel of a process at a time anyway. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/graph/conditions.h"
#include "sim/graph/launchable.h"
#include "sim/graph/graph.h"
#include "sim/program/images/image.h"
#include "sim/memory/memory.h"

static struct sim_kind exec_kind = {sizeof(struct sim_graph_exec), 0x65786563, NULL};

enum {
  KNOWN_FLAGS = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
  CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
};

CUresult sim_exec_get(CUgraphExec handle, struct sim_graph_exec **exec) {
  *exec = (struct sim_graph_exec *)handle;
  return *exec && (*exec)->magic == exec_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Kernels are prepared at instantiation, and again at each launch for kernels that an update added. Call without
 * sim_lock. */
static CUresult prepare_kernels(const struct sim_graph *graph) {
  CUresult result = CUDA_SUCCESS;
  for (const struct sim_graph_node *node = graph->nodes; node && result == CUDA_SUCCESS; node = node->next) {
    if (node->child)
      result = prepare_kernels(node->child);
    for (unsigned i = 0; node->bodies && i < node->bodies->count && result == CUDA_SUCCESS; i++)
      result = prepare_kernels(node->bodies->graph[i]);
    if (node->type != CU_GRAPH_NODE_TYPE_KERNEL || result)
      continue;
    const CUDA_KERNEL_NODE_PARAMS *params = node->op.params;
    struct sim_function *function;
    result = sim_function_get(sim_kernel_of(params), &function);
    if (result == CUDA_SUCCESS && !node->ctx->alive)
      result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (result == CUDA_SUCCESS)
      result = sim_kernel_prepare(function, sim_ctx_owner(node->ctx));
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

/* Reserves the memory that the first launch would allocate. */
static CUresult upload_memory(struct sim_graph_exec *exec) {
  uint64_t sums[SIM_MAX_DEVICES] = {0};
  CUresult result = CUDA_SUCCESS;
  sum_memory(exec->graph, sums);
  for (CUdevice device = 0; device < SIM_MAX_DEVICES && !result; device++)
    if (sums[device])
      result = sim_graph_mem_grow(device, sums[device]);
  exec->uploaded |= result == CUDA_SUCCESS;
  return result;
}

static bool bodies_valid(const struct sim_graph *graph) {
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next)
    for (unsigned i = 0; node->bodies && i < node->bodies->count; i++)
      if (!sim_bodies_valid(node->bodies->graph[i]))
        return false;
  return true;
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
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH &&
      (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH || !sim_graph_on_device(graph)))
    return CUDA_ERROR_INVALID_VALUE;
  bool conditional = sim_graph_conditional(graph);
  if (graph->body || (conditional && (graph->executables || !bodies_valid(graph))))
    return CUDA_ERROR_INVALID_VALUE;
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
  exec->source = graph;
  exec->source_id = graph->id;
  graph->executables += conditional;
  result = prepare_kernels(exec->graph);
  if (result) {
    cuGraphExecDestroy((CUgraphExec)exec);
    return result;
  }
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
    sim_launchable_add(exec);
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

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  struct sim_graph_exec *exec;
  CUresult result = sim_exec_get(hGraphExec, &exec);
  if (result)
    return result;
  sim_lock();
  sim_launchable_remove(exec);
  sim_mark_release(exec->last);
  if (exec->source->id == exec->source_id && exec->source->executables)
    exec->source->executables--;
  sim_graph_free(exec->graph); /* work in flight has its own copies of everything it needs */
  sim_handle_free(&exec_kind, exec);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags) {
  struct sim_graph_exec *exec;
  CUresult result = sim_exec_get(hGraphExec, &exec);
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
      sim_graph_mem_free(address); /* memory that another graph left allocated */
    }
    if (node->child && !result)
      result = commit_nodes(exec, node->child, committed);
  }
  return result;
}

/* Device memory is allocated during the launch call, so that the launch fails if the device is full. */
static CUresult commit_memory(const struct sim_graph_exec *exec) {
  unsigned committed = 0;
  CUresult result = commit_nodes(exec, exec->graph, &committed);
  if (result)
    uncommit_memory(exec->graph, &committed);
  return result;
}

static CUresult submit_graph(const struct sim_graph *graph, struct sim_stream *stream, bool *counted);

/* Runs the bodies that the condition selects, one after another. A loop whose body has no kernel that could end it runs
 * once, since a real one would have such a kernel; a loop whose kernels do not end it becomes a kernel without end. */
static CUresult submit_bodies(const struct sim_bodies *bodies, struct sim_stream *stream, bool *counted) {
  enum { MAX_ITERATIONS = 1 << 18 };
  const struct sim_op endless = {.resource = SIM_COMPUTE, .duration_ns = SIM_SPIN_NS, .node_type = SIM_NODE_NONE};
  CUresult result = CUDA_SUCCESS;
  int selected = sim_bodies_selected(bodies);
  if (bodies->type != CU_GRAPH_COND_TYPE_WHILE || (selected == 0 && !sim_bodies_change(bodies->graph[0])))
    return selected < 0 ? CUDA_SUCCESS : submit_graph(bodies->graph[selected], stream, counted);
  for (unsigned i = 0; i < MAX_ITERATIONS && result == CUDA_SUCCESS && sim_bodies_selected(bodies) == 0; i++) {
    uint64_t before = sim_condition_changes();
    result = submit_graph(bodies->graph[0], stream, counted);
    if (sim_condition_changes() == before)
      break; /* it would do the same again */
  }
  if (result == CUDA_SUCCESS && sim_bodies_selected(bodies) == 0 && !sim_enqueue(stream, &endless, false, false))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  return result;
}

/* Submits a graph that a kernel launches. Such graphs run one after another, before the launching graph is done. A
 * graph that the device cannot launch is ignored: the kernel would get an error. */
static CUresult submit_launched(uint64_t handle, struct sim_stream *stream, bool *counted) {
  enum { MAX_LAUNCHES = 120 };
  static unsigned launches; /* nesting depth */
  const struct sim_graph_exec *exec = sim_launchable_find(handle);
  if (exec == NULL || !exec->uploaded || launches == MAX_LAUNCHES)
    return CUDA_SUCCESS;
  launches++;
  CUresult result = submit_graph(exec->graph, stream, counted);
  launches--;
  return result;
}

static CUresult submit_node(const struct sim_graph_node *node, struct sim_stream *stream, bool *counted) {
  struct sim_event *event = (struct sim_event *)node->event;
  switch (node->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH: return submit_graph(node->child, stream, counted);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return sim_event_record(event, stream);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return sim_event_wait(event, stream);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return submit_bodies(node->bodies, stream, counted);
    default:
      if (!sim_enqueue(stream, &node->op, false, !*counted))
        return CUDA_ERROR_OUT_OF_MEMORY;
      sim_condition_change(&node->op);
      *counted = true; /* the launch takes one place in the stream's queue, not one per node */
      return node->op.launches ? submit_launched(node->op.launches, stream, counted) : CUDA_SUCCESS;
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

/* requires sim_lock */
static CUresult launch(struct sim_graph_exec *exec, struct sim_stream *stream) {
  bool counted = false;
  CUresult result = commit_memory(exec);
  if (result)
    return result;
  if (exec->last && !sim_enqueue_wait(stream, exec->last))
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_conditions_begin(exec->graph);
  result = submit_graph(exec->graph, stream, &counted);
  struct sim_mark *mark = sim_mark_new(stream->ctx->device);
  if (mark == NULL || !sim_enqueue_mark(stream, mark)) {
    sim_mark_release(mark);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_mark_release(exec->last);
  exec->last = mark;
  exec->uploaded = true;
  return result;
}

/* A captured launch becomes a child graph node. Requires sim_lock. */
static CUresult capture_launch(struct sim_graph_exec *exec, struct sim_stream *stream) {
  if (sim_graph_conditional(exec->graph))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
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

static CUresult launch_in(CUgraphExec handle, CUstream stream_handle) {
  struct sim_graph_exec *exec;
  struct sim_stream *stream;
  CUresult result = sim_exec_get(handle, &exec);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(stream_handle, &stream);
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
CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) { return launch_in(hGraphExec, hStream); }

static CUresult upload(CUgraphExec handle, CUstream stream_handle) {
  struct sim_graph_exec *exec;
  struct sim_stream *stream;
  CUresult result = sim_exec_get(handle, &exec);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(stream_handle, &stream);
  return result ? result : upload_memory(exec);
}
CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) { return upload(hGraphExec, hStream); }
