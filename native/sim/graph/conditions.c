/* The API of conditional nodes. */
#include "sim/graph/conditions.h"

#include <stdlib.h>

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph, CUcontext ctx,
                                        unsigned int defaultLaunchValue, unsigned int flags) {
  struct sim_graph *graph;
  struct sim_ctx *found;
  CUresult result = sim_graph_get(hGraph, &graph);
  if (result)
    return result;
  if (pHandle_out == NULL || flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT || sim_ctx_get(ctx, &found))
    return CUDA_ERROR_INVALID_VALUE;
  const struct sim_condition_handle like = {
      .ctx = found, .assigned = flags & CU_GRAPH_COND_ASSIGN_DEFAULT, .initial = defaultLaunchValue};
  struct sim_condition_handle *made = NULL;
  sim_lock();
  struct sim_condition_handle **grown = realloc(graph->conditions, (graph->nconditions + 1) * sizeof *grown);
  if (grown)
    graph->conditions = grown;
  result = grown ? sim_condition_new(&like, &made) : CUDA_ERROR_OUT_OF_MEMORY;
  if (made) {
    graph->conditions[graph->nconditions++] = made;
    *pHandle_out = made->number;
  }
  sim_unlock();
  return result;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static bool count_valid(int type, unsigned count) {
  enum { MAX_BODIES = 1 << 16 };
  switch (type) {
    case CU_GRAPH_COND_TYPE_IF: return count == 1 || count == 2;
    case CU_GRAPH_COND_TYPE_WHILE: return count == 1;
    case CU_GRAPH_COND_TYPE_SWITCH: return count > 0 && count <= MAX_BODIES;
    default: return false;
  }
}

CUresult sim_bodies_new(CUDA_CONDITIONAL_NODE_PARAMS *params, struct sim_bodies **out) {
  struct sim_ctx *ctx = NULL;
  if (!count_valid(params->type, params->size) || sim_ctx_get(params->ctx, &ctx))
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  struct sim_condition_handle *handle = sim_condition_find(params->handle);
  bool valid = handle && !handle->used && handle->ctx == ctx;
  struct sim_bodies *bodies = valid ? sim_bodies_empty(params->type, params->size, handle) : NULL;
  for (unsigned i = 0; bodies && i < bodies->count; i++) {
    bodies->graph[i] = sim_graph_new();
    if (bodies->graph[i] == NULL) {
      sim_bodies_free(bodies);
      bodies = NULL;
      break;
    }
    bodies->graph[i]->internal = bodies->graph[i]->body = true;
  }
  if (bodies)
    handle->used = true;
  sim_unlock();
  if (bodies == NULL)
    return valid ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  params->phGraph_out = (CUgraph *)bodies->graph;
  *out = bodies;
  return CUDA_SUCCESS;
}
