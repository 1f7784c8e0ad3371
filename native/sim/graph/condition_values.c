/* Handles of conditions, their values, and the effects of a graph's nodes on them. */
#include "sim/graph/conditions.h"

#include <stdlib.h>

static struct sim_condition_handle *handles;
static uint64_t numbers, changes;

struct sim_condition_handle *sim_condition_find(uint64_t number) {
  struct sim_condition_handle *handle = handles;
  while (handle && handle->number != number)
    handle = handle->next;
  return handle;
}

void sim_condition_release(struct sim_condition_handle *handle) {
  if (--handle->refs)
    return;
  struct sim_condition_handle **at = &handles;
  while (*at != handle)
    at = &(*at)->next;
  *at = handle->next;
  free(handle);
}

CUresult sim_condition_new(const struct sim_condition_handle *like, struct sim_condition_handle **out) {
  struct sim_condition_handle *made = malloc(sizeof *made);
  if (made == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *made = *like;
  made->number = ++numbers;
  made->refs = 1;
  made->next = handles;
  handles = made;
  *out = made;
  return CUDA_SUCCESS;
}

bool sim_graph_conditional(const struct sim_graph *graph) {
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next)
    if (node->bodies || (node->child && sim_graph_conditional(node->child)))
      return true;
  return false;
}

bool sim_bodies_valid(const struct sim_graph *graph) {
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next) {
    switch (node->type) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
      case CU_GRAPH_NODE_TYPE_MEMCPY:
      case CU_GRAPH_NODE_TYPE_MEMSET:
      case CU_GRAPH_NODE_TYPE_EMPTY: break;
      case CU_GRAPH_NODE_TYPE_GRAPH:
        if (!sim_bodies_valid(node->child))
          return false;
        break;
      case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        for (unsigned i = 0; i < node->bodies->count; i++)
          if (!sim_bodies_valid(node->bodies->graph[i]))
            return false;
        break;
      default: return false;
    }
  }
  return true;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

void sim_conditions_begin(const struct sim_graph *graph) {
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next) {
    struct sim_bodies *bodies = node->bodies;
    if (bodies == NULL)
      continue;
    if (bodies->handle->assigned)
      bodies->handle->value = bodies->handle->initial;
    for (unsigned i = 0; i < bodies->count; i++)
      sim_conditions_begin(bodies->graph[i]);
  }
}

void sim_condition_change(const struct sim_op *op) {
  struct sim_condition_handle *handle = op->condition ? sim_condition_find(op->condition) : NULL;
  unsigned value = handle && op->counts ? handle->value - 1 : op->value;
  if (handle == NULL || handle->value == value)
    return;
  handle->value = value;
  changes++;
}

uint64_t sim_condition_changes(void) { return changes; }

int sim_bodies_selected(const struct sim_bodies *bodies) {
  unsigned value = bodies->handle->value;
  if (bodies->type == CU_GRAPH_COND_TYPE_SWITCH)
    return value < bodies->count ? (int)value : -1;
  if (value)
    return 0;
  return bodies->count == 2 ? 1 : -1; /* the body of else */
}

bool sim_bodies_change(const struct sim_graph *graph) {
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next) {
    if (node->op.condition || (node->child && sim_bodies_change(node->child)))
      return true;
    for (unsigned i = 0; node->bodies && i < node->bodies->count; i++)
      if (sim_bodies_change(node->bodies->graph[i]))
        return true;
  }
  return false;
}
