/* Calls that instantiate and destroy executable graphs. */
#include "interposer/hooks/graphs/graphs.h"
#include "interposer/hooks/graphs/kernels.h"
#include "interposer/hooks/graphs/memory.h"
#include "interposer/memory/books/books.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"

/* Memory is allocated by the first launch, unless the program uploads the graph at instantiation. */
CUresult gs_before_instantiate(struct gs_around_instantiate *around, CUgraphExec *made, CUgraph graph,
                               const CUDA_GRAPH_INSTANTIATE_PARAMS *params, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->made = made;
  around->need.devices = 0;
  around->growing = (struct gs_growing){0};
  if (!gs_enter(&result) || (result = gs_graph_kernels_begin(&around->growing, graph)) != CUDA_SUCCESS || !made)
    return result;
  around->uploads = params && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  bool looked = gs_graph_look(graph, &around->need);
  if (around->need.elsewhere)
    result = gs_refuse_elsewhere(around->need.where);
  else if (!looked || (around->need.devices && !gs_table_room(&gs_books()->graphs, GS_MAX_DEVICES)))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  else if (around->uploads && around->need.devices)
    result = gs_graph_memory_await(&around->need, stream);
  if (result != CUDA_SUCCESS)
    gs_implicit_end(&around->growing, false);
  else if (around->need.devices)
    gs_graph_announce(&around->maker);
  return result;
}

CUresult gs_after_instantiate(struct gs_around_instantiate *around, CUresult result) {
  gs_implicit_end(&around->growing, result == CUDA_SUCCESS);
  if (around->need.devices == 0)
    return result;
  gs_graph_remember(&around->maker, result == CUDA_SUCCESS ? *around->made : NULL, &around->need);
  if (around->uploads)
    gs_graph_memory_end(&around->need);
  return result;
}

/* ---- what gives memory back -------------------------------------------------------------------------------------- */

CUresult gs_before_graph_ends(struct gs_around_graph_ends *around, CUgraphExec graph) {
  CUresult result = gs_before_graph_changed(&around->changed, graph);
  around->need.devices = 0;
  around->graph = graph;
  if (around->changed.active && gs_graphs_known()) {
    gs_graph_find(graph, &around->need);
    around->call = gs_next_call();
  }
  return result;
}

CUresult gs_after_graph_ends(struct gs_around_graph_ends *around, CUresult result) {
  gs_after_graph_changed(&around->changed, result);
  if (around->need.devices && result == CUDA_SUCCESS)
    gs_graph_gone(around->graph, around->call);
  if (around->changed.active && result == CUDA_SUCCESS)
    gs_graph_nodes_gone(around->graph);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES && result == CUDA_SUCCESS; ordinal++)
    if (around->need.devices >> ordinal & 1)
      gs_graph_memory_settle(ordinal);
  return result;
}

CUresult gs_before_graph_trim(struct gs_around_graph_trim *around, CUdevice device) {
  CUresult result = CUDA_SUCCESS;
  around->ordinal = gs_enter(&result) ? gs_device_ordinal(device) : GS_NO_DEVICE;
  return result;
}

CUresult gs_after_graph_trim(struct gs_around_graph_trim *around, CUresult result) {
  if (result == CUDA_SUCCESS && around->ordinal != GS_NO_DEVICE)
    gs_graph_memory_settle(around->ordinal);
  return result;
}
