/* Executable graphs in the books: the memory that a graph can allocate, and its collectives, are summed when it is
 * instantiated, so that a launch of a graph with neither costs one load. */
#include "interposer/hooks/graphs/executables.h"

#include <sys/mman.h>

#include "interposer/hooks/graphs/bodies.h"
#include "interposer/hooks/graphs/nodes.h"
#include "interposer/memory/books/books.h"
#include "interposer/memory/implicit/collectives.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"
#include "interposer/time/marks/waits.h"

enum { DEPTH = 16 /* of graphs in graphs */ };

/* ---- what a graph takes ------------------------------------------------------------------------------------------ */

void gs_graph_collective(CUgraphNode node, struct gs_graph_need *need) {
  CUfunction function;
  CUcontext context;
  if (!gs_collectives_known() || gs_graph_node_kernel(node, &function, &context) != CUDA_SUCCESS ||
      !gs_collective(function))
    return;
  int ordinal = gs_graph_kernel_device(function, context);
  if (ordinal == GS_NO_DEVICE)
    return;
  need->devices |= 1u << ordinal;
  need->collectives[ordinal]++;
}

static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

static void add_node(CUgraphNode node, struct gs_graph_need *need) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {0};
  if (gs_real.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS ||
      params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return;
  need->elsewhere = need->elsewhere || gs_place_elsewhere(&params.poolProps.location, 1, &need->where);
  int ordinal = gs_device_ordinal(params.poolProps.location.id);
  if (ordinal == GS_NO_DEVICE)
    return;
  need->devices |= 1u << ordinal;
  need->bytes[ordinal] = add(need->bytes[ordinal], gs_round_up(params.bytesize, GS_DEVICE_PAGE));
}

/* False: out of memory. */
static bool add_graph(CUgraph graph, struct gs_graph_need *need, int depth) {
  size_t count = 0, got;
  if (depth > DEPTH || gs_real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
    return true;
  CUgraphNode *nodes = gs_private_map(count * sizeof *nodes);
  if (!nodes)
    return false;
  bool whole = true;
  got = count;
  if (gs_real.cuGraphGetNodes(graph, nodes, &got) != CUDA_SUCCESS)
    got = 0;
  for (size_t i = 0; i < got && i < count && whole; i++) {
    CUgraphNodeType type = 0;
    CUgraph child;
    if (gs_real.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
      continue;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      add_node(nodes[i], need);
    else if (type == CU_GRAPH_NODE_TYPE_KERNEL)
      gs_graph_collective(nodes[i], need);
    else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
             gs_real.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
      whole = add_graph(child, need, depth + 1);
    else if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
      gs_events_recorded_elsewhere();
    CUgraph *bodies;
    size_t n = type == CU_GRAPH_NODE_TYPE_CONDITIONAL ? gs_graph_bodies(nodes[i], &bodies) : 0;
    for (size_t k = 0; k < n && whole; k++)
      whole = add_graph(bodies[k], need, depth + 1);
  }
  munmap(nodes, count * sizeof *nodes);
  return whole;
}

bool gs_graph_look(CUgraph graph, struct gs_graph_need *need) {
  *need = (struct gs_graph_need){0};
  return add_graph(graph, need, 0);
}

/* ---- executable graphs in the books ------------------------------------------------------------------------------ */

static uint64_t key_of(CUgraphExec graph, int ordinal) { return (uint64_t)(uintptr_t)graph << 4 | (unsigned)ordinal; }

void gs_graph_announce(struct gs_maker *maker) {
  __atomic_fetch_add(&gs_process->graphs, 1, __ATOMIC_SEQ_CST);
  gs_maker_begin(maker, &gs_books()->graphs_made, NULL);
}

void gs_graph_gone(CUgraphExec graph, uint64_t call) {
  struct gs_table *graphs = &gs_books()->graphs;
  uint32_t gone = 0;
  gs_table_lock(graphs);
  for (uint32_t ordinal = 0; ordinal < gs_process->ndevices; ordinal++)
    for (struct gs_graph *each = NULL; (each = gs_table_same(graphs, key_of(graph, (int)ordinal), each));)
      if (each->living.made <= call) {
        gs_table_remove(graphs, each);
        each = NULL; /* others may have moved */
        gone++;
      }
  gs_table_unlock(graphs);
  __atomic_fetch_sub(&gs_process->graphs, gone, __ATOMIC_RELEASE);
}

void gs_graph_remember(const struct gs_maker *maker, CUgraphExec graph, const struct gs_graph_need *need) {
  uint32_t count = 0;
  if (graph)
    gs_graph_gone(graph, maker->number);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES && graph; ordinal++)
    if (need->devices >> ordinal & 1) {
      gs_life_put(maker, &gs_books()->graphs,
                  &(struct gs_graph){.living.key = key_of(graph, ordinal),
                                     .bytes = need->bytes[ordinal],
                                     .collectives = need->collectives[ordinal]});
      count++;
    }
  __atomic_fetch_add(&gs_process->graphs, count - 1, __ATOMIC_RELEASE); /* the announced one has ended */
  gs_maker_end(maker);
}

/* Returns the devices on which it needs something. With the lock held. */
static uint32_t devices_of(CUgraphExec graph, struct gs_graph_need *need) {
  uint32_t devices = 0;
  for (uint32_t ordinal = 0; ordinal < gs_process->ndevices; ordinal++) {
    const struct gs_graph *known = gs_life_find(&gs_books()->graphs, key_of(graph, (int)ordinal));
    if (!known)
      continue;
    devices |= 1u << ordinal;
    need->bytes[ordinal] = known->bytes;
    need->collectives[ordinal] = known->collectives;
  }
  return devices;
}

struct sought {
  CUgraphExec graph;
  struct gs_graph_need *need;
};

static bool is_known(void *with) {
  const struct sought *sought = with;
  gs_table_lock(&gs_books()->graphs);
  sought->need->devices = devices_of(sought->graph, sought->need);
  gs_table_unlock(&gs_books()->graphs);
  return sought->need->devices != 0;
}

/* A graph that is not known needs nothing, unless it is still being made. */
void gs_graph_find(CUgraphExec graph, struct gs_graph_need *need) {
  need->growing = 0;
  gs_making_wait(&gs_books()->graphs_made, is_known, &(struct sought){graph, need});
}

void gs_graph_recount(CUgraphExec graph, int ordinal, int64_t more) {
  struct gs_table *graphs = &gs_books()->graphs;
  struct gs_graph_need need;
  if (more == 0 || !gs_table_room(graphs, 1))
    return;
  gs_graph_find(graph, &need);
  gs_table_lock(graphs);
  struct gs_graph *known = gs_life_find(graphs, key_of(graph, ordinal));
  if (known)
    known->collectives = (uint32_t)(known->collectives + more > 0 ? known->collectives + more : 0);
  else if (more > 0)
    gs_table_add(graphs, &(struct gs_graph){.living = {.key = key_of(graph, ordinal), .made = gs_next_call()},
                                            .collectives = (uint32_t)more});
  gs_table_unlock(graphs);
  if (!known && more > 0)
    __atomic_fetch_add(&gs_process->graphs, 1, __ATOMIC_RELEASE);
}
