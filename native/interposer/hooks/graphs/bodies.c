#include "interposer/hooks/graphs/bodies.h"

#include "interposer/memory/books/books.h"

CUresult gs_bodies_begin(struct gs_around_bodies *around, CUgraphNode *node, const CUgraphNodeParams *params) {
  around->node = node;
  around->params = node && params && params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL ? params : NULL;
  return !around->params || gs_table_room(&gs_books()->bodies, 1) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void gs_bodies_end(const struct gs_around_bodies *around, CUresult result) {
  struct gs_table *bodies = &gs_books()->bodies;
  if (result != CUDA_SUCCESS || !around->params)
    return;
  const struct gs_bodies made = {(uintptr_t)*around->node, around->params->conditional.phGraph_out,
                                 around->params->conditional.size};
  if (!gs_table_replace(bodies, &made))
    gs_table_put(bodies, &made);
}

size_t gs_graph_bodies(CUgraphNode node, CUgraph **bodies) {
  struct gs_bodies known;
  if (!gs_table_copy(&gs_books()->bodies, (uintptr_t)node, &known))
    return 0;
  *bodies = known.graphs;
  return known.count;
}
