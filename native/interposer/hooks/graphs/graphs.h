/* Calls that instantiate, change, launch and destroy executable graphs. */
#ifndef GPUSHARE_HOOKS_GRAPHS_H
#define GPUSHARE_HOOKS_GRAPHS_H

#include "interposer/hooks/graphs/changes.h"
#include "interposer/hooks/graphs/executables.h"
#include "interposer/hooks/graphs/nodes.h"
#include "interposer/memory/implicit/implicit.h"
#include "interposer/time/gate/submit.h"

static inline uint64_t gs_graph_key(CUgraphExec graph) { return (uint64_t)(uintptr_t)graph; }

/* ---- update.c ---------------------------------------------------------------------------------------------------- */

/* The time that the graph takes is measured anew after a change. Part of all the calls below. */
struct gs_around_graph_changed {
  bool active; /* this process is joined */
  uint64_t key;
};
CUresult gs_before_graph_changed(struct gs_around_graph_changed *around, CUgraphExec graph);
CUresult gs_after_graph_changed(struct gs_around_graph_changed *around, CUresult result);

struct gs_around_graph_updated {
  struct gs_around_graph_changed changed;
  struct gs_graph_change collectives;
  struct gs_growing growing;
};
CUresult gs_before_graph_updated(struct gs_around_graph_updated *around, CUgraphExec executable, CUgraph graph);
CUresult gs_after_graph_updated(struct gs_around_graph_updated *around, CUresult result);

struct gs_around_kernel_node {
  struct gs_around_graph_changed changed;
  struct gs_graph_change collectives;
  struct gs_growing growing;
};
CUresult gs_before_kernel_node(struct gs_around_kernel_node *around, CUgraphExec executable, CUgraphNode node,
                               CUfunction function);
CUresult gs_after_kernel_node(struct gs_around_kernel_node *around, CUresult result);

struct gs_around_child_graph {
  struct gs_around_graph_updated updated;
};
CUresult gs_before_child_graph(struct gs_around_child_graph *around, CUgraphExec executable, CUgraphNode node,
                               CUgraph child);
CUresult gs_after_child_graph(struct gs_around_child_graph *around, CUresult result);

struct gs_around_node_enabled {
  struct gs_around_graph_changed changed;
  struct gs_graph_change collectives;
};
CUresult gs_before_node_enabled(struct gs_around_node_enabled *around, CUgraphExec executable, CUgraphNode node,
                                unsigned int enabled);
CUresult gs_after_node_enabled(struct gs_around_node_enabled *around, CUresult result);

/* ---- launch.c, make.c -------------------------------------------------------------------------------------------- */

struct gs_around_graph_launch {
  struct gs_submission submission;
  struct gs_graph_need need;
};
CUresult gs_before_graph_launch(struct gs_around_graph_launch *around, CUgraphExec graph, CUstream stream);
CUresult gs_after_graph_launch(struct gs_around_graph_launch *around, CUresult result);

struct gs_around_graph_upload {
  struct gs_graph_need need;
};
CUresult gs_before_graph_upload(struct gs_around_graph_upload *around, CUgraphExec graph, CUstream stream);
CUresult gs_after_graph_upload(struct gs_around_graph_upload *around, CUresult result);

struct gs_around_instantiate {
  CUgraphExec *made;
  bool uploads; /* the graph's memory is allocated at once */
  struct gs_growing growing;
  struct gs_maker maker;
  struct gs_graph_need need;
};
CUresult gs_before_instantiate(struct gs_around_instantiate *around, CUgraphExec *made, CUgraph graph,
                               const CUDA_GRAPH_INSTANTIATE_PARAMS *params, CUstream stream);
CUresult gs_after_instantiate(struct gs_around_instantiate *around, CUresult result);

struct gs_around_graph_ends {
  struct gs_around_graph_changed changed;
  CUgraphExec graph;
  uint64_t call;
  struct gs_graph_need need;
};
CUresult gs_before_graph_ends(struct gs_around_graph_ends *around, CUgraphExec graph);
CUresult gs_after_graph_ends(struct gs_around_graph_ends *around, CUresult result);

struct gs_around_graph_trim {
  int ordinal;
};
CUresult gs_before_graph_trim(struct gs_around_graph_trim *around, CUdevice device);
CUresult gs_after_graph_trim(struct gs_around_graph_trim *around, CUresult result);

#endif
