/* Collectives in graphs. The number that an executable graph has on each device is counted when the graph is
 * instantiated (executables.c) and updated here when a node is changed. The change of each node is stored, because the
 * driver only reports the node from which it was instantiated. */
#include "interposer/hooks/graphs/changes.h"

#include "interposer/hooks/graphs/executables.h"
#include "interposer/hooks/graphs/nodes.h"
#include "interposer/memory/books/books.h"
#include "interposer/memory/implicit/collectives.h"
#include "interposer/process/device.h"

/* ---- what nodes were changed to ---------------------------------------------------------------------------------- */

static uint64_t key_of(CUgraphExec graph, CUgraphNode node, int ordinal) {
  uint64_t hash = (uintptr_t)graph * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
  return ((hash ^ (uintptr_t)node) * 0xd6e8feb86659fd93u & ~(uint64_t)(GS_MAX_DEVICES - 1)) | (unsigned)ordinal;
}

static bool is_of(const void *node, void *graph) { return ((const struct gs_node *)node)->graph == (uintptr_t)graph; }

void gs_graph_nodes_gone(CUgraphExec graph) {
  if (gs_collectives_known())
    gs_table_drop(&gs_books()->nodes, is_of, graph);
}

static bool node_is(CUgraphNode node, CUgraphNodeType type) {
  CUgraphNodeType found;
  return gs_real.cuGraphNodeGetType(node, &found) == CUDA_SUCCESS && found == type;
}

static void made_of(CUgraphNode node, struct gs_graph_need *need) {
  CUgraph child;
  *need = (struct gs_graph_need){0};
  if (node_is(node, CU_GRAPH_NODE_TYPE_KERNEL))
    gs_graph_collective(node, need);
  else if (node_is(node, CU_GRAPH_NODE_TYPE_GRAPH) &&
           gs_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
    gs_graph_look(child, need);
}

static void count_node(CUgraphExec graph, CUgraphNode node, int32_t counts[GS_MAX_DEVICES]) {
  struct gs_graph_need need;
  made_of(node, &need);
  struct gs_table *nodes = &gs_books()->nodes;
  gs_table_lock(nodes);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++) {
    const struct gs_node *changed = gs_table_find(nodes, key_of(graph, node, ordinal));
    counts[ordinal] = changed ? changed->collectives : (int32_t)need.collectives[ordinal];
  }
  gs_table_unlock(nodes);
}

static void remember(CUgraphExec graph, CUgraphNode node, int ordinal, int32_t count) {
  struct gs_table *nodes = &gs_books()->nodes;
  struct gs_node changed = {key_of(graph, node, ordinal), (uintptr_t)graph, count};
  if (!gs_table_room(nodes, 1))
    return;
  gs_table_lock(nodes);
  struct gs_node *known = gs_table_find(nodes, changed.key);
  if (known)
    *known = changed;
  else
    gs_table_add(nodes, &changed);
  gs_table_unlock(nodes);
}

/* ---- calls that change one --------------------------------------------------------------------------------------- */

static bool begin(struct gs_graph_change *change, CUgraphExec graph, CUgraphNode node) {
  change->graph = NULL;
  if (!gs_collectives_known())
    return false;
  *change = (struct gs_graph_change){.graph = graph, .node = node, .enabled = true};
  if (node)
    count_node(graph, node, change->before);
  return true;
}

static bool enabled(CUgraphExec graph, CUgraphNode node) {
  unsigned int is = 1;
  return gs_real.cuGraphNodeGetEnabled(graph, node, &is) != CUDA_SUCCESS || is;
}

static void set_after(struct gs_graph_change *change, const struct gs_graph_need *need) {
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    change->after[ordinal] = (int32_t)need->collectives[ordinal];
}

void gs_graph_change_all(struct gs_graph_change *change, CUgraphExec executable, CUgraph graph) {
  struct gs_graph_need need;
  if (!begin(change, executable, NULL))
    return;
  gs_graph_find(executable, &need);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    change->before[ordinal] = need.devices >> ordinal & 1 ? (int32_t)need.collectives[ordinal] : 0;
  gs_graph_look(graph, &need);
  set_after(change, &need);
}

void gs_graph_change_kernel(struct gs_graph_change *change, CUgraphExec executable, CUgraphNode node,
                            CUfunction function) {
  CUfunction before;
  CUcontext context = NULL;
  if (!begin(change, executable, node))
    return;
  change->enabled = enabled(executable, node);
  if (!function || !gs_collective(function))
    return;
  gs_graph_node_kernel(node, &before, &context);
  int ordinal = gs_graph_kernel_device(function, context);
  if (ordinal != GS_NO_DEVICE)
    change->after[ordinal] = 1;
}

void gs_graph_change_child(struct gs_graph_change *change, CUgraphExec executable, CUgraphNode node, CUgraph child) {
  struct gs_graph_need need;
  if (!begin(change, executable, node))
    return;
  change->enabled = enabled(executable, node);
  gs_graph_look(child, &need);
  set_after(change, &need);
}

void gs_graph_change_enabled(struct gs_graph_change *change, CUgraphExec executable, CUgraphNode node, bool is) {
  if (!begin(change, executable, node))
    return;
  change->toggles = enabled(executable, node) != is;
  change->enabled = is;
  if (!change->toggles)
    change->graph = NULL;
}

void gs_graph_changed(const struct gs_graph_change *change, CUresult result) {
  if (!change->graph || result != CUDA_SUCCESS)
    return;
  if (!change->node)
    gs_graph_nodes_gone(change->graph);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++) {
    int32_t before = change->before[ordinal], after = change->after[ordinal];
    if (change->toggles)
      gs_graph_recount(change->graph, ordinal, change->enabled ? before : -before);
    else if (change->enabled)
      gs_graph_recount(change->graph, ordinal, after - before);
    if (change->node && !change->toggles && before != after)
      remember(change->graph, change->node, ordinal, after);
  }
}
