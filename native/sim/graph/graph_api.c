/* The API of graphs: creation, cloning, queries, and changes of edges. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/graph/conditions.h"
#include "sim/graph/graph.h"

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags) {
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
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE || node->bodies)
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
  *phNode = (CUgraphNode)sim_node_clone(copy, node);
  return *phNode ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Fills an output array of the API: a NULL array asks for the count; surplus elements are set to NULL. */
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
  (void)edgeData; /* programmatic edges are treated like full dependencies */
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
