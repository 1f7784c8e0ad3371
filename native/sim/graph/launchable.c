#include "sim/graph/launchable.h"

static struct sim_graph_exec *all;

static bool fits(const struct sim_graph *graph, const struct sim_ctx **ctx) {
  for (const struct sim_graph_node *node = graph->nodes; node; node = node->next) {
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
      if (!fits(node->child, ctx))
        return false;
    } else if (node->type == CU_GRAPH_NODE_TYPE_KERNEL || node->type == CU_GRAPH_NODE_TYPE_MEMCPY ||
               node->type == CU_GRAPH_NODE_TYPE_MEMSET) {
      if (*ctx && *ctx != node->ctx)
        return false;
      *ctx = node->ctx;
    } else {
      return false;
    }
  }
  return true;
}

bool sim_graph_on_device(const struct sim_graph *graph) {
  const struct sim_ctx *ctx = NULL;
  return fits(graph, &ctx) && ctx != NULL;
}

void sim_launchable_add(struct sim_graph_exec *exec) {
  sim_lock();
  exec->next = all;
  all = exec;
  sim_unlock();
}

void sim_launchable_remove(struct sim_graph_exec *exec) {
  for (struct sim_graph_exec **at = &all; *at; at = &(*at)->next)
    if (*at == exec) {
      *at = exec->next;
      return;
    }
}

const struct sim_graph_exec *sim_launchable_find(uint64_t handle) {
  const struct sim_graph_exec *exec = all;
  while (exec && (uintptr_t)exec != handle)
    exec = exec->next;
  return exec;
}
