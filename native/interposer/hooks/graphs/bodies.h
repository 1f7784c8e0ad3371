/* Bodies of conditional nodes. Graphs with such nodes cannot be cloned, captured or used in a child node, so every one
 * of their bodies was made by a call that added its node. */
#ifndef GPUSHARE_GRAPH_BODIES_H
#define GPUSHARE_GRAPH_BODIES_H

#include "interposer/process/process.h"

/* Around calls that add a node of any type: remembers the bodies that the driver made. The entries stay: when the
 * driver reuses a node's handle, the next conditional node under it replaces the entry. */
struct gs_around_bodies {
  CUgraphNode *node;
  const CUgraphNodeParams *params; /* NULL: not a conditional node */
};
/* OUT_OF_MEMORY if bodies could not be remembered. */
CUresult gs_bodies_begin(struct gs_around_bodies *around, CUgraphNode *node, const CUgraphNodeParams *params);
void gs_bodies_end(const struct gs_around_bodies *around, CUresult result);

/* The driver's array of a live conditional node's bodies, and their number; 0: unknown. */
size_t gs_graph_bodies(CUgraphNode node, CUgraph **bodies);

#endif
