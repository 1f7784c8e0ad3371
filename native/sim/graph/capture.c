/* Stream capture: work becomes graph nodes instead of being executed. A capture extends to other streams through
 * events. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sim/graph/graph.h"
#include "sim/model/time/streams.h"

/* ---- beginning and ending ---------------------------------------------------------------------------------------- */

static CUresult append(struct sim_stream *stream, const struct sim_op *op) {
  struct sim_capture *capture = stream->capture;
  if (capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (op->node_type == SIM_NODE_NONE) {
    sim_capture_invalidate(capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  struct sim_graph_node *node = sim_node_new(capture->graph, op->node_type, op, stream->cap_deps, stream->cap_ndeps);
  if (node && op->node_type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && (node->memory = malloc(sizeof *node->memory)) != NULL)
    *node->memory = (struct sim_graph_memory){1, *(const CUdeviceptr *)op->payload};
  if (node == NULL || !sim_deps_set(&stream->cap_deps, &stream->cap_ndeps, &node, 1)) {
    sim_capture_invalidate(capture);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  node->ctx = stream->ctx;
  return CUDA_SUCCESS;
}

static CUresult append_event(struct sim_stream *stream, struct sim_event *event, int type) {
  struct sim_op op = {.resource = SIM_INSTANT, .node_type = type};
  CUresult result = append(stream, &op);
  if (result == CUDA_SUCCESS)
    stream->cap_deps[0]->event = (CUevent)event;
  return result;
}

static CUresult begin(CUstream handle, struct sim_graph *into, const CUgraphNode *deps, size_t ndeps, int mode) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  struct sim_capture *capture = calloc(1, sizeof *capture);
  if (capture == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  *capture = (struct sim_capture){.graph = into ? into : sim_graph_new(),
                                  .own_graph = into == NULL,
                                  .append = append,
                                  .append_event = append_event,
                                  .drop = sim_graph_free,
                                  .mode = mode};
  sim_capture_begin(capture, stream);
  bool whole = capture->graph && sim_deps_set(&stream->cap_deps, &stream->cap_ndeps,
                                              (struct sim_graph_node *const *)deps, (unsigned)ndeps);
  if (!whole) {
    struct sim_graph *graph = capture->own_graph ? capture->graph : NULL;
    sim_capture_end(capture);
    if (graph)
      sim_graph_free(graph);
  }
  sim_unlock();
  return whole ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return begin(hStream, NULL, NULL, 0, mode);
}
CUresult cuStreamBeginCapture(CUstream hStream) { return begin(hStream, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL); }

static CUresult begin_into(CUstream handle, CUgraph into, const CUgraphNode *deps, size_t ndeps, int mode) {
  struct sim_graph *graph;
  CUresult result = sim_graph_get(into, &graph);
  if (result)
    return result;
  if (ndeps && deps == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < ndeps; i++) {
    struct sim_graph_node *node;
    if (sim_node_get(deps[i], &node) || node->graph != graph)
      return CUDA_ERROR_INVALID_VALUE;
  }
  return begin(handle, graph, deps, ndeps, mode);
}
CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode) {
  (void)dependencyData;
  return begin_into(hStream, hGraph, dependencies, numDependencies, mode);
}

/* Marks the given nodes and all nodes they depend on. */
static void mark_upwards(struct sim_graph_node *const *nodes, unsigned n) {
  for (unsigned i = 0; i < n; i++) {
    if (nodes[i]->visit)
      continue;
    nodes[i]->visit = 1;
    mark_upwards(nodes[i]->deps, nodes[i]->ndeps);
  }
}

/* True if a stream of the capture has work that the origin stream does not depend on. */
static bool unjoined(const struct sim_capture *capture) {
  bool found = false;
  mark_upwards(capture->origin->cap_deps, capture->origin->cap_ndeps);
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (const struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
      for (unsigned i = 0; stream->capture == capture && i < stream->cap_ndeps; i++)
        found |= stream->cap_deps[i]->visit == 0;
  for (unsigned i = 0; i < capture->nloose; i++)
    found |= capture->loose[i]->visit == 0;
  for (struct sim_graph_node *node = capture->graph->nodes; node; node = node->next)
    node->visit = 0;
  return found;
}

static CUresult end(CUstream handle, CUgraph *out) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (out)
    *out = NULL;
  sim_lock();
  struct sim_capture *capture = stream->capture;
  if (out == NULL && !(capture && !capture->own_graph)) /* may be NULL for a capture into a graph of the program */
    result = CUDA_ERROR_INVALID_VALUE;
  else if (capture == NULL)
    result = CUDA_ERROR_ILLEGAL_STATE;
  else if (capture->origin != stream)
    result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != sim_capture_thread())
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (result) {
    sim_unlock();
    return result;
  }
  if (capture->invalid)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (unjoined(capture))
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  struct sim_graph *graph = capture->graph;
  bool own = capture->own_graph;
  sim_capture_end(capture);
  if (result && own)
    sim_graph_free(graph);
  if (result == CUDA_SUCCESS && out)
    *out = (CUgraph)graph;
  sim_unlock();
  return result;
}
CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph) { return end(hStream, phGraph); }

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  if (mode == NULL || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  *mode = sim_capture_mode_exchange(*mode);
  return CUDA_SUCCESS;
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

struct info {
  CUstreamCaptureStatus status;
  cuuint64_t id;
  struct sim_graph *graph;
  struct sim_graph_node **deps;
  unsigned ndeps;
  const CUgraphEdgeData *edges;
};

static const CUgraphEdgeData *full_edges(struct sim_stream *stream) {
  free(stream->cap_edges);
  stream->cap_edges = calloc(stream->cap_ndeps + 1, sizeof(CUgraphEdgeData));
  return stream->cap_edges;
}

static CUresult info_of(CUstream handle, struct info *info) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  sim_lock();
  result = sim_capture_implicit(stream);
  const struct sim_capture *capture = stream->capture;
  *info = (struct info){.status = CU_STREAM_CAPTURE_STATUS_NONE};
  if (capture && capture->invalid)
    info->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (capture && !capture->invalid)
    *info = (struct info){CU_STREAM_CAPTURE_STATUS_ACTIVE,
                          capture->id,
                          capture->graph,
                          stream->cap_deps,
                          stream->cap_ndeps,
                          full_edges(stream)};
  sim_unlock();
  return result;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status) {
  struct info info;
  if (status == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = info_of(handle, &info);
  if (result == CUDA_SUCCESS)
    *status = info.status;
  return result;
}
CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
  return is_capturing(hStream, captureStatus);
}

static CUresult get_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                         const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *ndeps) {
  struct info info;
  if (status == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = info_of(handle, &info);
  if (result)
    return result;
  *status = info.status;
  if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return CUDA_SUCCESS;
  if (id)
    *id = info.id;
  if (graph)
    *graph = (CUgraph)info.graph;
  if (deps)
    *deps = (const CUgraphNode *)info.deps;
  if (edges)
    *edges = info.edges;
  if (ndeps)
    *ndeps = info.ndeps;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id) {
  return get_info(s, status, id, NULL, NULL, NULL, NULL);
}
CUresult cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **deps, size_t *ndeps) {
  return get_info(s, status, id, graph, deps, NULL, ndeps);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *ndeps) {
  return get_info(s, status, id, graph, deps, edges, ndeps);
}

static CUresult update_deps(CUstream handle, CUgraphNode *deps, size_t ndeps, unsigned flags) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (ndeps && deps == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  if (stream->capture == NULL)
    result = CUDA_ERROR_ILLEGAL_STATE;
  else if (stream->capture->invalid)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  for (size_t i = 0; result == CUDA_SUCCESS && i < ndeps; i++) {
    struct sim_graph_node *node;
    if (sim_node_get(deps[i], &node) || node->graph != stream->capture->graph)
      result = CUDA_ERROR_INVALID_VALUE;
  }
  bool set = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES;
  if (result == CUDA_SUCCESS) {
    struct sim_graph_node *const *nodes = (struct sim_graph_node *const *)deps;
    bool (*change)(struct sim_graph_node ***, unsigned *, struct sim_graph_node *const *, unsigned) =
        set ? sim_deps_set : sim_deps_add;
    if (!change(&stream->cap_deps, &stream->cap_ndeps, nodes, (unsigned)ndeps))
      result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_unlock();
  return result;
}
CUresult cuStreamUpdateCaptureDependencies(CUstream s, CUgraphNode *dependencies, size_t numDependencies,
                                           unsigned int flags) {
  return update_deps(s, dependencies, numDependencies, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream s, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                              unsigned int flags) {
  (void)dependencyData;
  return update_deps(s, dependencies, numDependencies, flags);
}
