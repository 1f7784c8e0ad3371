/* User objects: program-owned objects that a graph keeps alive. */
#include <stdlib.h>

#include "sim/graph/graph.h"

static CUresult object_get(CUuserObject handle, struct sim_user_object **object) {
  *object = (struct sim_user_object *)handle;
  return *object && (*object)->magic == sim_object_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
                            unsigned int flags) {
  if (object_out == NULL || destroy == NULL || initialRefcount == 0 || flags != 1)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  struct sim_user_object *object = sim_handle_new(&sim_object_kind);
  sim_unlock();
  if (object == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  object->refs = initialRefcount;
  object->data = ptr;
  object->destroy = destroy;
  *object_out = (CUuserObject)object;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count) {
  struct sim_user_object *object;
  CUresult result = object_get(handle, &object);
  if (result)
    return result;
  if (count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  object->refs += count;
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count) {
  struct sim_user_object *object;
  CUresult result = object_get(handle, &object);
  if (result)
    return result;
  if (count == 0 || count > object->refs)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  sim_object_release(object, count);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph hGraph, CUuserObject handle, unsigned int count, unsigned int flags) {
  enum { MOVE = 1 };
  struct sim_graph *graph;
  struct sim_user_object *object;
  CUresult result = sim_graph_get(hGraph, &graph);
  if (result == CUDA_SUCCESS)
    result = object_get(handle, &object);
  if (result)
    return result;
  if (count == 0 || flags & ~(unsigned)MOVE)
    return CUDA_ERROR_INVALID_VALUE;
  struct sim_owned *owned = malloc(sizeof *owned);
  if (owned == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  *owned = (struct sim_owned){object, count, graph->owned};
  graph->owned = owned;
  if (!(flags & MOVE))
    object->refs += count;
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph hGraph, CUuserObject handle, unsigned int count) {
  struct sim_graph *graph;
  struct sim_user_object *object;
  CUresult result = sim_graph_get(hGraph, &graph);
  if (result == CUDA_SUCCESS)
    result = object_get(handle, &object);
  if (result)
    return result;
  result = CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  for (struct sim_owned **at = &graph->owned; *at; at = &(*at)->next) {
    struct sim_owned *owned = *at;
    if (owned->object != object || owned->count < count || count == 0)
      continue;
    owned->count -= count;
    if (owned->count == 0) {
      *at = owned->next;
      free(owned);
    }
    sim_object_release(object, count);
    result = CUDA_SUCCESS;
    break;
  }
  sim_unlock();
  return result;
}
