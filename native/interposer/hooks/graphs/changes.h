/* Counts collectives in executable graphs whose nodes are changed. */
#ifndef GPUSHARE_GRAPH_CHANGES_H
#define GPUSHARE_GRAPH_CHANGES_H

#include "interposer/process/process.h"

/* Collectives of one node, or of all nodes, of an executable graph, before and after a call that changes it. */
struct gs_graph_change {
  CUgraphExec graph;                                     /* NULL: nothing to count */
  CUgraphNode node;                                      /* NULL: all */
  bool toggles;                                          /* the call only enables or disables the node */
  bool enabled;                                          /* after the call */
  int32_t before[GS_MAX_DEVICES], after[GS_MAX_DEVICES]; /* while the node is enabled */
};

/* Before calls that change what an executable graph runs: all of it, what one of its kernel nodes launches, what one of
 * its nodes of a graph contains, or whether a node runs. */
void gs_graph_change_all(struct gs_graph_change *change, CUgraphExec executable, CUgraph graph);
void gs_graph_change_kernel(struct gs_graph_change *change, CUgraphExec executable, CUgraphNode node,
                            CUfunction function);
void gs_graph_change_child(struct gs_graph_change *change, CUgraphExec executable, CUgraphNode node, CUgraph child);
void gs_graph_change_enabled(struct gs_graph_change *change, CUgraphExec executable, CUgraphNode node, bool is);
/* To be called after those calls. */
void gs_graph_changed(const struct gs_graph_change *change, CUresult result);
/* Forgets what the graph's nodes were changed to. */
void gs_graph_nodes_gone(CUgraphExec graph);

#endif
