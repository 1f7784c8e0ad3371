/* Calls that launch executable graphs or allocate their memory. */
#include <errno.h>

#include "interposer/hooks/graphs/graphs.h"
#include "interposer/hooks/graphs/memory.h"
#include "interposer/process/passage/room.h"
#include "interposer/process/refused.h"
#include "interposer/time/gate/collectives.h"
#include "interposer/time/streams/capture.h"

static void end_launch(struct gs_graph_need *need, CUresult result) {
  gs_graph_memory_end(need);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    if (need->devices >> ordinal & 1 && need->collectives[ordinal] > 0)
      gs_collective_end(ordinal, need->collectives[ordinal], result);
  need->devices = 0;
}

/* Out of line, so that launches of other graphs do not save the registers that this path uses. */
static __attribute__((noinline)) CUresult begin_launch(struct gs_around_graph_launch *around, CUgraphExec graph,
                                                       CUstream stream) {
  struct gs_graph_need *need = &around->need;
  if (!gs_stream_capturing(stream)) /* else the work becomes part of another graph */
    gs_graph_find(graph, need);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    if (need->devices >> ordinal & 1 && need->collectives[ordinal] > 0)
      gs_collective_begin(ordinal, need->collectives[ordinal]);
  CUresult result;
  int rc;
  do { /* the room may go between the gate and the reservation */
    result = gs_enter_submit(&around->submission, gs_graph_key(graph), stream);
    rc = result == CUDA_SUCCESS && need->devices ? gs_graph_memory_begin(need, stream) : 0;
    if (rc < 0)
      result = gs_submitted(&around->submission,
                            rc == -ENOMEM ? gs_refused(CUDA_ERROR_OUT_OF_MEMORY) : CUDA_ERROR_OUT_OF_MEMORY);
  } while (rc == -EAGAIN && gs_room_await(NULL));
  if (result != CUDA_SUCCESS)
    end_launch(need, result);
  return result;
}

CUresult gs_before_graph_launch(struct gs_around_graph_launch *around, CUgraphExec graph, CUstream stream) {
  around->need.devices = 0;
  if (GS_LIKELY(!gs_graphs_known()))
    return gs_enter_submit(&around->submission, gs_graph_key(graph), stream);
  around->need.growing = 0;
  return begin_launch(around, graph, stream);
}

CUresult gs_after_graph_launch(struct gs_around_graph_launch *around, CUresult result) {
  gs_submitted(&around->submission, result);
  if (around->need.devices)
    end_launch(&around->need, result);
  return result;
}

CUresult gs_before_graph_upload(struct gs_around_graph_upload *around, CUgraphExec graph, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->need.growing = 0;
  if (!gs_enter(&result) || !gs_graphs_known())
    return result;
  gs_graph_find(graph, &around->need);
  return gs_graph_memory_await(&around->need, stream);
}

CUresult gs_after_graph_upload(struct gs_around_graph_upload *around, CUresult result) {
  if (around->need.growing)
    gs_graph_memory_end(&around->need);
  return result;
}
