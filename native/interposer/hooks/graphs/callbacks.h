/* Calls that pass a function of the program to the driver. Each handler replaces the function in the caller's
 * parameter. */
#ifndef GPUSHARE_HOOKS_CALLBACKS_H
#define GPUSHARE_HOOKS_CALLBACKS_H

#include "interposer/hooks/graphs/bodies.h"
#include "interposer/hooks/graphs/graphs.h"
#include "interposer/process/process.h"

CUresult gs_before_host_function(CUhostFn *function, CUstream stream);
CUresult gs_before_callback(CUstreamCallback *function, CUstream stream);

struct gs_around_host_node {
  CUDA_HOST_NODE_PARAMS node; /* as the driver gets it */
};
CUresult gs_before_host_node(struct gs_around_host_node *around, const CUDA_HOST_NODE_PARAMS **params);

struct gs_around_host_node_changed {
  struct gs_around_host_node host;
  struct gs_around_graph_changed changed;
};
CUresult gs_before_host_node_changed(struct gs_around_host_node_changed *around, CUgraphExec graph,
                                     const CUDA_HOST_NODE_PARAMS **params);
CUresult gs_after_host_node_changed(struct gs_around_host_node_changed *around, CUresult result);

struct gs_around_host_node_asked {
  CUDA_HOST_NODE_PARAMS *asked;
};
CUresult gs_before_host_node_asked(struct gs_around_host_node_asked *around, CUDA_HOST_NODE_PARAMS *params);
CUresult gs_after_host_node_asked(struct gs_around_host_node_asked *around, CUresult result);

struct gs_around_any_node {
  CUgraphNodeParams node; /* as the driver gets it */
};
CUresult gs_before_any_node(struct gs_around_any_node *around, CUgraphNodeParams **params);

struct gs_around_new_node {
  struct gs_around_any_node any;
  struct gs_around_bodies bodies;
};
CUresult gs_before_new_node(struct gs_around_new_node *around, CUgraphNode *node, CUgraphNodeParams **params);
CUresult gs_after_new_node(struct gs_around_new_node *around, CUresult result);

struct gs_around_any_node_asked {
  CUgraphNodeParams *asked;
};
CUresult gs_before_any_node_asked(struct gs_around_any_node_asked *around, CUgraphNodeParams *params);
CUresult gs_after_any_node_asked(struct gs_around_any_node_asked *around, CUresult result);

struct gs_around_any_node_changed {
  struct gs_around_any_node any;
  struct gs_around_kernel_node kernel;
};
CUresult gs_before_any_node_changed(struct gs_around_any_node_changed *around, CUgraphExec graph, CUgraphNode node,
                                    CUgraphNodeParams **params);
CUresult gs_after_any_node_changed(struct gs_around_any_node_changed *around, CUresult result);

#endif
