/* The structure of graphs: nodes, dependencies, clones, order. */
#define _GNU_SOURCE
#include "sim/graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/program/image.h"

struct sim_kind sim_graph_kind = {sizeof(struct sim_graph), 0x67726170, NULL};
struct sim_kind sim_node_kind = {sizeof(struct sim_graph_node), 0x6e6f6465, NULL};
static struct sim_kind object_kind = {sizeof(struct sim_user_object), 0x756f626a, NULL};

CUresult sim_graph_get(CUgraph handle, struct sim_graph **graph) {
  CUresult result = sim_ready();
  if (result)
    return result;
  *graph = (struct sim_graph *)handle;
  return *graph && (*graph)->magic == sim_graph_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_node_get(CUgraphNode handle, struct sim_graph_node **node) {
  CUresult result = sim_ready();
  if (result)
    return result;
  *node = (struct sim_graph_node *)handle;
  return *node && (*node)->magic == sim_node_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static void *copy_of(const void *data, size_t bytes) {
  void *copy = data && bytes ? malloc(bytes) : NULL;
  if (copy)
    memcpy(copy, data, bytes);
  return copy;
}

/* A kernel node's arguments outlive the call that gave them: a pointer per argument and the arguments behind them, in
 * one block. Of a kernel whose arguments are not known only spin_ns's one is kept. */
static bool copy_arguments(struct sim_graph_node *node) {
  CUDA_KERNEL_NODE_PARAMS *params = (CUDA_KERNEL_NODE_PARAMS *)(uintptr_t)node->op.params;
  const struct sim_function *function =
      (const struct sim_function *)(params->func ? (void *)params->func : (void *)params->kern);
  unsigned count = function->params_known ? function->nparams : function->spins;
  size_t total = (count + 1) * sizeof(void *);
  if (params->extra) {
    params->extra = NULL; /* their effect, the duration, is in the op already */
    return true;
  }
  if (params->kernelParams == NULL)
    return true;
  for (unsigned i = 0; i < count; i++)
    total += function->params_known ? (function->params[i].size + 15) & ~15ul : 16;
  char *block = calloc(1, total + 16);
  if (block == NULL)
    return false;
  void **pointers = (void **)block;
  char *at = block + (((count + 1) * sizeof(void *) + 15) & ~15ul);
  for (unsigned i = 0; i < count; i++) {
    size_t bytes = function->params_known ? function->params[i].size : sizeof(uint64_t);
    memcpy(at, params->kernelParams[i], bytes);
    pointers[i] = at;
    at += (bytes + 15) & ~15ul;
  }
  node->arguments = block;
  params->kernelParams = pointers;
  return true;
}

static void drop_op(struct sim_graph_node *node) {
  free((void *)(uintptr_t)node->op.payload);
  free((void *)(uintptr_t)node->op.params);
  free(node->arguments);
  node->op.payload = node->op.params = node->arguments = NULL;
}

bool sim_node_set_op(struct sim_graph_node *node, const struct sim_op *op) {
  struct sim_graph_node made = {.op = *op};
  made.op.payload = copy_of(op->payload, op->payload_bytes);
  made.op.params = copy_of(op->params, op->params_bytes);
  bool whole = (made.op.payload || !op->payload_bytes) && (made.op.params || !op->params_bytes);
  if (whole && node->type == CU_GRAPH_NODE_TYPE_KERNEL)
    whole = copy_arguments(&made);
  if (!whole) {
    drop_op(&made);
    return false;
  }
  drop_op(node);
  node->op = made.op;
  node->arguments = made.arguments;
  return true;
}

struct sim_graph_node *sim_node_new(struct sim_graph *graph, int type, const struct sim_op *op,
                                    struct sim_graph_node *const *deps, unsigned ndeps) {
  struct sim_graph_node *node = sim_handle_new(&sim_node_kind);
  if (node == NULL)
    return NULL;
  node->type = type;
  node->enabled = true;
  node->graph = graph;
  node->ndeps = ndeps;
  node->deps = copy_of(deps, ndeps * sizeof *deps);
  if ((ndeps && node->deps == NULL) || !sim_node_set_op(node, op)) {
    free(node->deps);
    sim_handle_free(&sim_node_kind, node);
    return NULL;
  }
  struct sim_graph_node **tail = &graph->nodes;
  while (*tail)
    tail = &(*tail)->next;
  *tail = node;
  graph->nnodes++;
  return node;
}

void sim_node_free(struct sim_graph_node *node) {
  if (node->memory && --node->memory->refs == 0) {
    sim_graph_mem_destroy(node->memory->address);
    free(node->memory);
  }
  if (node->child)
    sim_graph_free(node->child);
  drop_op(node);
  free(node->deps);
  sim_handle_free(&sim_node_kind, node);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

struct sim_graph *sim_graph_new(void) { return sim_handle_new(&sim_graph_kind); }

static void object_release(struct sim_user_object *object, unsigned count) {
  object->refs = object->refs > count ? object->refs - count : 0;
  if (object->refs)
    return;
  CUhostFn destroy = object->destroy;
  void *data = object->data;
  sim_handle_free(&object_kind, object);
  sim_unlock(); /* the program's code */
  destroy(data);
  sim_lock();
}

void sim_graph_free(struct sim_graph *graph) {
  for (struct sim_graph_node *node = graph->nodes, *next; node; node = next) {
    next = node->next;
    sim_node_free(node);
  }
  struct sim_owned *owned = graph->owned;
  sim_handle_free(&sim_graph_kind, graph);
  for (struct sim_owned *next; owned; owned = next) {
    next = owned->next;
    object_release(owned->object, owned->count);
    free(owned);
  }
}

static bool clone_node(struct sim_graph *copy, struct sim_graph_node *node) {
  struct sim_graph_node *made = sim_node_new(copy, node->type, &node->op, NULL, 0);
  if (made == NULL)
    return false;
  made->origin = node;
  made->enabled = node->enabled;
  made->ctx = node->ctx;
  made->event = node->event;
  made->memory = node->memory;
  if (made->memory)
    made->memory->refs++;
  if (node->child)
    made->child = sim_graph_clone(node->child);
  if (made->child)
    made->child->internal = true;
  made->deps = malloc((node->ndeps + 1) * sizeof *made->deps);
  made->ndeps = made->deps ? node->ndeps : 0;
  return made->deps && (made->child || !node->child);
}

static struct sim_graph_node *clone_of(const struct sim_graph *copy, const struct sim_graph_node *node) {
  for (struct sim_graph_node *made = copy->nodes; made; made = made->next)
    if (made->origin == node)
      return made;
  return NULL;
}

struct sim_graph *sim_graph_clone(const struct sim_graph *graph) {
  struct sim_graph *copy = sim_graph_new();
  bool whole = copy != NULL;
  for (struct sim_graph_node *node = graph->nodes; whole && node; node = node->next)
    whole = clone_node(copy, node);
  if (copy && !whole) {
    sim_graph_free(copy);
    return NULL;
  }
  for (struct sim_graph_node *made = copy ? copy->nodes : NULL; made; made = made->next)
    for (unsigned i = 0; i < made->ndeps; i++)
      made->deps[i] = clone_of(copy, made->origin->deps[i]);
  for (const struct sim_owned *owned = graph->owned; copy && owned; owned = owned->next) {
    struct sim_owned *again = malloc(sizeof *again);
    if (again == NULL)
      break;
    *again = (struct sim_owned){owned->object, owned->count, copy->owned};
    copy->owned = again;
    owned->object->refs += owned->count;
  }
  return copy;
}

/* Depth first; visit: 1 on the way down, 2 placed. */
static bool place(struct sim_graph_node *node, struct sim_graph_node **order, unsigned *n) {
  if (node->visit == 2)
    return true;
  if (node->visit == 1)
    return false;
  node->visit = 1;
  for (unsigned i = 0; i < node->ndeps; i++)
    if (!place(node->deps[i], order, n))
      return false;
  node->visit = 2;
  order[(*n)++] = node;
  return true;
}

struct sim_graph_node **sim_graph_order(const struct sim_graph *graph) {
  struct sim_graph_node **order = malloc((graph->nnodes + 1) * sizeof *order);
  unsigned n = 0;
  bool sound = order != NULL;
  for (struct sim_graph_node *node = graph->nodes; sound && node; node = node->next)
    sound = place(node, order, &n);
  for (struct sim_graph_node *node = graph->nodes; node; node = node->next)
    node->visit = 0;
  if (sound)
    return order;
  free(order);
  return NULL;
}

/* ---- driver API: graphs ------------------------------------------------------------------------------------------ */

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (phGraph == NULL || flags)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  *phGraph = (CUgraph)sim_graph_new();
  sim_unlock();
  return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
  struct sim_graph *graph;
  CUresult result = sim_graph_get(hGraph, &graph);
  if (result)
    return result;
  if (graph->internal)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  sim_graph_free(graph);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph) {
  struct sim_graph *graph;
  CUresult result = sim_graph_get(originalGraph, &graph);
  if (result)
    return result;
  if (phGraphClone == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next)
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
      return CUDA_ERROR_NOT_SUPPORTED;
  sim_lock();
  *phGraphClone = (CUgraph)sim_graph_clone(graph);
  sim_unlock();
  return *phGraphClone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph) {
  struct sim_graph *copy;
  struct sim_graph_node *node;
  CUresult result = sim_graph_get(hClonedGraph, &copy);
  if (result == CUDA_SUCCESS)
    result = sim_node_get(hOriginalNode, &node);
  if (result)
    return result;
  if (phNode == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *phNode = (CUgraphNode)clone_of(copy, node);
  return *phNode ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Answers an array query of the API: NULL asks for the count; short arrays are filled up with NULL. */
static CUresult answer(struct sim_graph_node *const *found, size_t n, CUgraphNode *out, size_t *count) {
  if (count == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; out && i < *count; i++)
    out[i] = i < n ? (CUgraphNode)found[i] : NULL;
  if (out == NULL || *count > n)
    *count = n;
  return CUDA_SUCCESS;
}

static CUresult answer_nodes(CUgraph handle, CUgraphNode *out, size_t *count, bool roots) {
  struct sim_graph *graph;
  CUresult result = sim_graph_get(handle, &graph);
  if (result)
    return result;
  struct sim_graph_node **found = malloc((graph->nnodes + 1) * sizeof *found);
  if (found == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  size_t n = 0;
  for (struct sim_graph_node *node = graph->nodes; node; node = node->next)
    if (!roots || node->ndeps == 0)
      found[n++] = node;
  result = answer(found, n, out, count);
  free(found);
  return result;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes) {
  return answer_nodes(hGraph, nodes, numNodes, false);
}
CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes) {
  return answer_nodes(hGraph, rootNodes, numRootNodes, true);
}

static void clear_edges(CUgraphEdgeData *edges, const size_t *count) {
  if (edges && count)
    memset(edges, 0, *count * sizeof *edges);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edgeData,
                            size_t *numEdges) {
  struct sim_graph *graph;
  CUresult result = sim_graph_get(hGraph, &graph);
  if (result)
    return result;
  if (numEdges == NULL || (from == NULL) != (to == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  size_t n = 0;
  for (struct sim_graph_node *node = graph->nodes; node; node = node->next)
    for (unsigned i = 0; i < node->ndeps; i++, n++) {
      if (from == NULL || n >= *numEdges)
        continue;
      from[n] = (CUgraphNode)node->deps[i];
      to[n] = (CUgraphNode)node;
    }
  for (size_t i = n; from && i < *numEdges; i++)
    from[i] = to[i] = NULL;
  if (from == NULL || *numEdges > n)
    *numEdges = n;
  clear_edges(edgeData, numEdges);
  return CUDA_SUCCESS;
}
CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges) {
  return cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies, CUgraphEdgeData *edgeData,
                                       size_t *numDependencies) {
  struct sim_graph_node *node;
  CUresult result = sim_node_get(hNode, &node);
  if (result == CUDA_SUCCESS)
    result = answer(node->deps, node->ndeps, dependencies, numDependencies);
  if (result == CUDA_SUCCESS)
    clear_edges(edgeData, numDependencies);
  return result;
}
CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies) {
  return cuGraphNodeGetDependencies_v2(hNode, dependencies, NULL, numDependencies);
}

static bool depends(const struct sim_graph_node *node, const struct sim_graph_node *on) {
  for (unsigned i = 0; i < node->ndeps; i++)
    if (node->deps[i] == on)
      return true;
  return false;
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes, CUgraphEdgeData *edgeData,
                                         size_t *numDependentNodes) {
  struct sim_graph_node *node;
  CUresult result = sim_node_get(hNode, &node);
  if (result)
    return result;
  struct sim_graph_node **found = malloc((node->graph->nnodes + 1) * sizeof *found);
  if (found == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  size_t n = 0;
  for (struct sim_graph_node *other = node->graph->nodes; other; other = other->next)
    if (depends(other, node))
      found[n++] = other;
  result = answer(found, n, dependentNodes, numDependentNodes);
  if (result == CUDA_SUCCESS)
    clear_edges(edgeData, numDependentNodes);
  free(found);
  return result;
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes, size_t *numDependentNodes) {
  return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, NULL, numDependentNodes);
}

/* ---- edges ------------------------------------------------------------------------------------------------------- */

static bool add_edge(struct sim_graph_node *to, struct sim_graph_node *from) {
  struct sim_graph_node **grown = realloc(to->deps, (to->ndeps + 1) * sizeof *grown);
  if (grown == NULL)
    return false;
  to->deps = grown;
  to->deps[to->ndeps++] = from;
  return true;
}

static void remove_edge(struct sim_graph_node *to, const struct sim_graph_node *from) {
  unsigned kept = 0;
  for (unsigned i = 0; i < to->ndeps; i++)
    if (to->deps[i] != from)
      to->deps[kept++] = to->deps[i];
  to->ndeps = kept;
}

static CUresult change_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t n, bool add) {
  struct sim_graph *graph;
  struct sim_graph_node *a, *b;
  CUresult result = sim_graph_get(handle, &graph);
  if (result)
    return result;
  if (n && (from == NULL || to == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < n; i++) {
    if (sim_node_get(from[i], &a) || sim_node_get(to[i], &b))
      return CUDA_ERROR_INVALID_VALUE;
    if (a->graph != graph || b->graph != graph || a == b || depends(b, a) == add)
      return CUDA_ERROR_INVALID_VALUE;
  }
  sim_lock();
  for (size_t i = 0; i < n && result == CUDA_SUCCESS; i++) {
    a = (struct sim_graph_node *)from[i];
    b = (struct sim_graph_node *)to[i];
    if (!add)
      remove_edge(b, a);
    else if (!add_edge(b, a))
      result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_unlock();
  return result;
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t numDependencies) {
  return change_edges(hGraph, from, to, numDependencies, true);
}
CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t numDependencies) {
  return change_edges(hGraph, from, to, numDependencies, false);
}
CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies) {
  (void)edgeData; /* programmatic edges order no less than full ones here */
  return change_edges(hGraph, from, to, numDependencies, true);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *edgeData, size_t numDependencies) {
  (void)edgeData;
  return change_edges(hGraph, from, to, numDependencies, false);
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
  struct sim_graph_node *node;
  CUresult result = sim_node_get(hNode, &node);
  if (result)
    return result;
  if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    return CUDA_ERROR_NOT_SUPPORTED;
  sim_lock();
  struct sim_graph *graph = node->graph;
  struct sim_graph_node **at = &graph->nodes;
  while (*at != node)
    at = &(*at)->next;
  *at = node->next;
  graph->nnodes--;
  for (struct sim_graph_node *other = graph->nodes; other; other = other->next)
    remove_edge(other, node);
  sim_node_free(node);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags) {
  (void)flags;
  struct sim_graph *graph;
  CUresult result = sim_graph_get(hGraph, &graph);
  if (result)
    return result;
  FILE *file = path ? fopen(path, "we") : NULL;
  if (file == NULL)
    return path ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
  fprintf(file, "digraph graph_0 {\n");
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next) {
    fprintf(file, "  \"%p\" [label=\"type %d\"];\n", (const void *)node, node->type);
    for (unsigned i = 0; i < node->ndeps; i++)
      fprintf(file, "  \"%p\" -> \"%p\";\n", (void *)node->deps[i], (const void *)node);
  }
  fprintf(file, "}\n");
  return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* ---- user objects: what a graph keeps alive for the program ------------------------------------------------------ */

static CUresult object_get(CUuserObject handle, struct sim_user_object **object) {
  CUresult result = sim_ready();
  if (result)
    return result;
  *object = (struct sim_user_object *)handle;
  return *object && (*object)->magic == object_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
                            unsigned int flags) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (object_out == NULL || destroy == NULL || initialRefcount == 0 || flags != 1)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  struct sim_user_object *object = sim_handle_new(&object_kind);
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
  object_release(object, count);
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
    object_release(object, count);
    result = CUDA_SUCCESS;
    break;
  }
  sim_unlock();
  return result;
}
