/* Stream capture: work is written into a graph instead of being done. It spreads to other streams through events. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sim/graph/graph.h"

static struct sim_capture *captures;
static uint64_t capture_ids;
static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static uint64_t thread_id(void) { return (uint64_t)syscall(SYS_gettid); }

/* ---- dependencies of a stream or an event: sets of nodes --------------------------------------------------------- */

static bool set_deps(struct sim_graph_node ***deps, unsigned *ndeps, struct sim_graph_node *const *from, unsigned n) {
  struct sim_graph_node **copy = malloc((n + 1) * sizeof *copy);
  if (copy == NULL)
    return false;
  if (n)
    memcpy(copy, from, n * sizeof *copy);
  free(*deps);
  *deps = copy;
  *ndeps = n;
  return true;
}

static bool add_deps(struct sim_graph_node ***deps, unsigned *ndeps, struct sim_graph_node *const *more, unsigned n) {
  struct sim_graph_node **grown = realloc(*deps, (*ndeps + n + 1) * sizeof *grown);
  if (grown == NULL)
    return false;
  *deps = grown;
  for (unsigned i = 0; i < n; i++) {
    bool known = false;
    for (unsigned j = 0; j < *ndeps; j++)
      known |= grown[j] == more[i];
    if (!known)
      grown[(*ndeps)++] = more[i];
  }
  return true;
}

void sim_event_uncapture(struct sim_event *event) {
  if (event->capture == NULL)
    return;
  struct sim_event **at = &event->capture->events;
  while (*at != event)
    at = &(*at)->cap_next;
  *at = event->cap_next;
  event->cap_next = NULL;
  event->capture = NULL;
  event->cap_ndeps = 0;
  free(event->cap_deps);
  event->cap_deps = NULL;
}

/* ---- beginning and ending ---------------------------------------------------------------------------------------- */

static void stream_leaves(struct sim_stream *stream) {
  stream->capture = NULL;
  free(stream->cap_deps);
  free(stream->cap_edges);
  stream->cap_deps = NULL;
  stream->cap_edges = NULL;
  stream->cap_ndeps = 0;
  stream->ctx->captures--;
}

static void stream_joins(struct sim_stream *stream, struct sim_capture *capture) {
  stream->capture = capture;
  stream->ctx->captures++;
}

void sim_capture_invalidate(struct sim_capture *capture) { capture->invalid = true; }

/* Takes all streams and events out of a capture and forgets it; its graph stays. */
static void capture_end(struct sim_capture *capture) {
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
      if (stream->capture == capture)
        stream_leaves(stream);
  while (capture->events)
    sim_event_uncapture(capture->events);
  struct sim_capture **at = &captures;
  while (*at != capture)
    at = &(*at)->next;
  *at = capture->next;
  free(capture);
}

void sim_capture_stream_gone(struct sim_stream *stream) {
  struct sim_capture *capture = stream->capture;
  capture->invalid = true;
  stream_leaves(stream);
  if (capture->origin != stream)
    return;
  /* Nobody can end it any more. */
  struct sim_graph *graph = capture->own_graph ? capture->graph : NULL;
  capture_end(capture);
  if (graph)
    sim_graph_free(graph);
}

static CUresult begin(CUstream handle, bool per_thread, struct sim_graph *into, const CUgraphNode *deps, size_t ndeps,
                      int mode) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
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
  *capture = (struct sim_capture){.id = ++capture_ids,
                                  .graph = into ? into : sim_graph_new(),
                                  .own_graph = into == NULL,
                                  .origin = stream,
                                  .thread = thread_id(),
                                  .mode = mode,
                                  .next = captures};
  captures = capture;
  stream_joins(stream, capture);
  bool whole = capture->graph &&
               set_deps(&stream->cap_deps, &stream->cap_ndeps, (struct sim_graph_node *const *)deps, (unsigned)ndeps);
  if (!whole) {
    struct sim_graph *graph = capture->own_graph ? capture->graph : NULL;
    capture_end(capture);
    if (graph)
      sim_graph_free(graph);
  }
  sim_unlock();
  return whole ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return begin(hStream, false, NULL, NULL, 0, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) {
  return begin(hStream, true, NULL, NULL, 0, mode);
}
CUresult cuStreamBeginCapture(CUstream hStream) {
  return begin(hStream, false, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult cuStreamBeginCapture_ptsz(CUstream hStream) {
  return begin(hStream, true, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static CUresult begin_into(CUstream handle, bool per_thread, CUgraph into, const CUgraphNode *deps, size_t ndeps,
                           int mode) {
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
  return begin(handle, per_thread, graph, deps, ndeps, mode);
}
CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode) {
  (void)dependencyData;
  return begin_into(hStream, false, hGraph, dependencies, numDependencies, mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                          CUstreamCaptureMode mode) {
  (void)dependencyData;
  return begin_into(hStream, true, hGraph, dependencies, numDependencies, mode);
}

/* Marks all the nodes the given ones depend on, and themselves. */
static void mark_upwards(struct sim_graph_node *const *nodes, unsigned n) {
  for (unsigned i = 0; i < n; i++) {
    if (nodes[i]->visit)
      continue;
    nodes[i]->visit = 1;
    mark_upwards(nodes[i]->deps, nodes[i]->ndeps);
  }
}

/* Whether some stream of the capture has work that the origin does not depend on. */
static bool unjoined(const struct sim_capture *capture) {
  bool found = false;
  mark_upwards(capture->origin->cap_deps, capture->origin->cap_ndeps);
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (const struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
      for (unsigned i = 0; stream->capture == capture && i < stream->cap_ndeps; i++)
        found |= stream->cap_deps[i]->visit == 0;
  for (struct sim_graph_node *node = capture->graph->nodes; node; node = node->next)
    node->visit = 0;
  return found;
}

static CUresult end(CUstream handle, bool per_thread, CUgraph *out) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
  if (result)
    return result;
  if (out == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *out = NULL;
  sim_lock();
  struct sim_capture *capture = stream->capture;
  if (capture == NULL)
    result = CUDA_ERROR_ILLEGAL_STATE;
  else if (capture->origin != stream)
    result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_id())
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
  capture_end(capture);
  if (result && own)
    sim_graph_free(graph);
  if (result == CUDA_SUCCESS)
    *out = (CUgraph)graph;
  sim_unlock();
  return result;
}
CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph) { return end(hStream, false, phGraph); }
CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph) { return end(hStream, true, phGraph); }

/* ---- what is captured -------------------------------------------------------------------------------------------- */

CUresult sim_capture_append(struct sim_stream *stream, const struct sim_op *op) {
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
  if (node == NULL || !set_deps(&stream->cap_deps, &stream->cap_ndeps, &node, 1)) {
    sim_capture_invalidate(capture);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  node->ctx = stream->ctx;
  return CUDA_SUCCESS;
}

static CUresult append_event(struct sim_stream *stream, struct sim_event *event, int type) {
  struct sim_op op = {.resource = SIM_INSTANT, .node_type = type};
  CUresult result = sim_capture_append(stream, &op);
  if (result == CUDA_SUCCESS)
    stream->cap_deps[0]->event = (CUevent)event;
  return result;
}

CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event, unsigned flags) {
  if (stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags & CU_EVENT_RECORD_EXTERNAL)
    return append_event(stream, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  sim_event_uncapture(event);
  if (!set_deps(&event->cap_deps, &event->cap_ndeps, stream->cap_deps, stream->cap_ndeps))
    return CUDA_ERROR_OUT_OF_MEMORY;
  event->capture = stream->capture;
  event->cap_next = stream->capture->events;
  stream->capture->events = event;
  return CUDA_SUCCESS;
}

CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event, unsigned flags) {
  if (stream->capture && stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->capture && flags & CU_EVENT_WAIT_EXTERNAL)
    return append_event(stream, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  if (event->capture == NULL) {
    /* never recorded: nothing to wait for */
    if (event->shared ? sim_shared_event_done(event->shared) : event->mark == NULL)
      return CUDA_SUCCESS;
    sim_capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (event->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->legacy) {
    sim_capture_invalidate(event->capture);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream->capture && stream->capture != event->capture) {
    sim_capture_invalidate(stream->capture);
    sim_capture_invalidate(event->capture);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->capture == NULL)
    stream_joins(stream, event->capture);
  return add_deps(&stream->cap_deps, &stream->cap_ndeps, event->cap_deps, event->cap_ndeps) ? CUDA_SUCCESS
                                                                                            : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- what a capture forbids -------------------------------------------------------------------------------------- */

CUresult sim_capture_implicit(struct sim_stream *stream) {
  if (!stream->legacy || stream->ctx->captures == 0)
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (struct sim_stream *other = stream->ctx->streams; other; other = other->next)
    if (other->blocking && other->capture) {
      sim_capture_invalidate(other->capture);
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  return result;
}

/* A thread in global mode may not make unsafe calls while it, or anybody in global mode, captures; in thread-local mode
 * only its own captures count; relaxed mode allows all. */
CUresult sim_capture_guard_locked(void) {
  CUresult result = CUDA_SUCCESS;
  if (captures == NULL || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_SUCCESS;
  uint64_t self = thread_id();
  for (struct sim_capture *capture = captures; capture; capture = capture->next) {
    bool own = capture->thread == self && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global)
      continue;
    sim_capture_invalidate(capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult sim_capture_guard(void) {
  sim_lock();
  CUresult result = sim_capture_guard_locked();
  sim_unlock();
  return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (mode == NULL || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

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

static CUresult info_of(CUstream handle, bool per_thread, struct info *info) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
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

static CUresult is_capturing(CUstream handle, bool per_thread, CUstreamCaptureStatus *status) {
  struct info info;
  if (status == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = info_of(handle, per_thread, &info);
  if (result == CUDA_SUCCESS)
    *status = info.status;
  return result;
}
CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
  return is_capturing(hStream, false, captureStatus);
}
CUresult cuStreamIsCapturing_ptsz(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
  return is_capturing(hStream, true, captureStatus);
}

static CUresult get_info(CUstream handle, bool per_thread, CUstreamCaptureStatus *status, cuuint64_t *id,
                         CUgraph *graph, const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *ndeps) {
  struct info info;
  if (status == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = info_of(handle, per_thread, &info);
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
  return get_info(s, false, status, id, NULL, NULL, NULL, NULL);
}
CUresult cuStreamGetCaptureInfo_ptsz(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id) {
  return get_info(s, true, status, id, NULL, NULL, NULL, NULL);
}
CUresult cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **deps, size_t *ndeps) {
  return get_info(s, false, status, id, graph, deps, NULL, ndeps);
}
CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **deps, size_t *ndeps) {
  return get_info(s, true, status, id, graph, deps, NULL, ndeps);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *ndeps) {
  return get_info(s, false, status, id, graph, deps, edges, ndeps);
}
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *ndeps) {
  return get_info(s, true, status, id, graph, deps, edges, ndeps);
}

static CUresult update_deps(CUstream handle, bool per_thread, CUgraphNode *deps, size_t ndeps, unsigned flags) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, per_thread, &stream);
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
        set ? set_deps : add_deps;
    if (!change(&stream->cap_deps, &stream->cap_ndeps, nodes, (unsigned)ndeps))
      result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_unlock();
  return result;
}
CUresult cuStreamUpdateCaptureDependencies(CUstream s, CUgraphNode *dependencies, size_t numDependencies,
                                           unsigned int flags) {
  return update_deps(s, false, dependencies, numDependencies, flags);
}
CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream s, CUgraphNode *dependencies, size_t numDependencies,
                                                unsigned int flags) {
  return update_deps(s, true, dependencies, numDependencies, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream s, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                              unsigned int flags) {
  (void)dependencyData;
  return update_deps(s, false, dependencies, numDependencies, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream s, CUgraphNode *dependencies,
                                                   const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                                   unsigned int flags) {
  (void)dependencyData;
  return update_deps(s, true, dependencies, numDependencies, flags);
}
