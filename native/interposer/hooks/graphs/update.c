/* Calls that change executable graphs. */
#include "interposer/hooks/graphs/graphs.h"
#include "interposer/hooks/graphs/kernels.h"
#include "interposer/time/streams/functions.h"

CUresult gs_before_graph_changed(struct gs_around_graph_changed *around, CUgraphExec graph) {
  CUresult result = CUDA_SUCCESS;
  around->active = gs_enter(&result);
  around->key = gs_graph_key(graph);
  return result;
}

CUresult gs_after_graph_changed(struct gs_around_graph_changed *around, CUresult result) {
  if (around->active)
    gs_function_changed(around->key);
  return result;
}

CUresult gs_before_graph_updated(struct gs_around_graph_updated *around, CUgraphExec executable, CUgraph graph) {
  CUresult result = gs_before_graph_changed(&around->changed, executable);
  gs_graph_change_all(&around->collectives, executable, graph);
  around->growing = (struct gs_growing){0};
  return result == CUDA_SUCCESS && around->changed.active ? gs_graph_kernels_begin(&around->growing, graph) : result;
}

CUresult gs_after_graph_updated(struct gs_around_graph_updated *around, CUresult result) {
  gs_graph_changed(&around->collectives, result);
  gs_implicit_end(&around->growing, result == CUDA_SUCCESS);
  return gs_after_graph_changed(&around->changed, result);
}

CUresult gs_before_kernel_node(struct gs_around_kernel_node *around, CUgraphExec executable, CUgraphNode node,
                               CUfunction function) {
  CUresult result = gs_before_graph_changed(&around->changed, executable);
  gs_graph_change_kernel(&around->collectives, executable, node, function);
  around->growing = (struct gs_growing){0};
  return result == CUDA_SUCCESS && around->changed.active ? gs_graph_kernel_begin(&around->growing, function) : result;
}

CUresult gs_after_kernel_node(struct gs_around_kernel_node *around, CUresult result) {
  gs_graph_changed(&around->collectives, result);
  gs_implicit_end(&around->growing, result == CUDA_SUCCESS);
  return gs_after_graph_changed(&around->changed, result);
}

CUresult gs_before_child_graph(struct gs_around_child_graph *around, CUgraphExec executable, CUgraphNode node,
                               CUgraph child) {
  CUresult result = gs_before_graph_updated(&around->updated, executable, child);
  gs_graph_change_child(&around->updated.collectives, executable, node, child);
  return result;
}

CUresult gs_after_child_graph(struct gs_around_child_graph *around, CUresult result) {
  return gs_after_graph_updated(&around->updated, result);
}

CUresult gs_before_node_enabled(struct gs_around_node_enabled *around, CUgraphExec executable, CUgraphNode node,
                                unsigned int is) {
  CUresult result = gs_before_graph_changed(&around->changed, executable);
  gs_graph_change_enabled(&around->collectives, executable, node, is != 0);
  return result;
}

CUresult gs_after_node_enabled(struct gs_around_node_enabled *around, CUresult result) {
  gs_graph_changed(&around->collectives, result);
  return gs_after_graph_changed(&around->changed, result);
}
