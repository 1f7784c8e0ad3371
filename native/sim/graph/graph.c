/* The structure of graphs: nodes, dependencies, clones, order. */
#define _GNU_SOURCE
#include "sim/graph/graph.h"

#include <stdlib.h>
#include <string.h>

#include "sim/graph/conditions.h"
#include "sim/program/images/image.h"

struct sim_kind sim_graph_kind = {sizeof(struct sim_graph), 0x67726170, NULL};
struct sim_kind sim_node_kind = {sizeof(struct sim_graph_node), 0x6e6f6465, NULL};
struct sim_kind sim_object_kind = {sizeof(struct sim_user_object), 0x756f626a, NULL};

CUresult sim_graph_get(CUgraph handle, struct sim_graph **graph) {
  *graph = (struct sim_graph *)handle;
  return *graph && (*graph)->magic == sim_graph_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_node_get(CUgraphNode handle, struct sim_graph_node **node) {
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

/* Copies a kernel node's arguments, which must outlive the call that passed them: an array of pointers followed by the
 * arguments, in one block. If the kernel's parameters are unknown, only the single argument of spin_ns is kept. */
static bool copy_arguments(struct sim_graph_node *node) {
  CUDA_KERNEL_NODE_PARAMS *params = (CUDA_KERNEL_NODE_PARAMS *)(uintptr_t)node->op.params;
  const struct sim_function *function = sim_kernel_of(params);
  unsigned count = function->params_known ? function->nparams : function->spins;
  size_t total = (count + 1) * sizeof(void *);
  if (params->extra) {
    params->extra = NULL; /* the arguments' only effect, the duration, is already in the op */
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
  if (node->bodies)
    sim_bodies_free(node->bodies);
  drop_op(node);
  free(node->attributes);
  free(node->deps);
  sim_handle_free(&sim_node_kind, node);
}

/* ---- bodies of conditional nodes --------------------------------------------------------------------------------- */

struct sim_bodies *sim_bodies_empty(int type, unsigned count, struct sim_condition_handle *handle) {
  struct sim_bodies *bodies = calloc(1, sizeof *bodies + count * sizeof(struct sim_graph *));
  if (bodies) {
    *bodies = (struct sim_bodies){.type = type, .count = count, .handle = handle};
    handle->refs++;
  }
  return bodies;
}

void sim_bodies_free(struct sim_bodies *bodies) {
  for (unsigned i = 0; i < bodies->count; i++)
    if (bodies->graph[i])
      sim_graph_free(bodies->graph[i]);
  sim_condition_release(bodies->handle);
  free(bodies);
}

struct sim_bodies *sim_bodies_clone(const struct sim_bodies *bodies) {
  struct sim_bodies *copy = sim_bodies_empty(bodies->type, bodies->count, bodies->handle);
  for (unsigned i = 0; copy && i < copy->count; i++) {
    copy->graph[i] = sim_graph_clone(bodies->graph[i]);
    if (copy->graph[i] == NULL) {
      sim_bodies_free(copy);
      return NULL;
    }
    copy->graph[i]->internal = copy->graph[i]->body = true;
  }
  return copy;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

struct sim_graph *sim_graph_new(void) {
  static uint64_t ids;
  struct sim_graph *graph = sim_handle_new(&sim_graph_kind);
  if (graph)
    graph->id = ++ids;
  return graph;
}

void sim_object_release(struct sim_user_object *object, unsigned count) {
  object->refs = object->refs > count ? object->refs - count : 0;
  if (object->refs)
    return;
  CUhostFn destroy = object->destroy;
  void *data = object->data;
  sim_handle_free(&sim_object_kind, object);
  sim_unlock(); /* calls the program's code */
  destroy(data);
  sim_lock();
}

void sim_graph_free(struct sim_graph *graph) {
  for (struct sim_graph_node *node = graph->nodes, *next; node; node = next) {
    next = node->next;
    sim_node_free(node);
  }
  for (unsigned i = 0; i < graph->nconditions; i++)
    sim_condition_release(graph->conditions[i]);
  free(graph->conditions);
  struct sim_owned *owned = graph->owned;
  sim_handle_free(&sim_graph_kind, graph);
  for (struct sim_owned *next; owned; owned = next) {
    next = owned->next;
    sim_object_release(owned->object, owned->count);
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
  if (node->bodies)
    made->bodies = sim_bodies_clone(node->bodies);
  if (node->attributes && (made->attributes = malloc(sizeof *made->attributes)) != NULL)
    *made->attributes = *node->attributes;
  made->deps = malloc((node->ndeps + 1) * sizeof *made->deps);
  made->ndeps = made->deps ? node->ndeps : 0;
  return made->deps && (made->child || !node->child) && (made->bodies || !node->bodies) &&
         (made->attributes || !node->attributes);
}

struct sim_graph_node *sim_node_clone(const struct sim_graph *copy, const struct sim_graph_node *node) {
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
      made->deps[i] = sim_node_clone(copy, made->origin->deps[i]);
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

/* Depth-first search. visit: 1 while on the path, 2 when placed. */
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
