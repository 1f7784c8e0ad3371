/* What launches of executable graphs mean to the devices: memory, and collectives to count.
 *
 * Memory of graph allocation nodes: a device has one pool of it for all graphs of a process; it grows when a graph is
 * launched or uploaded, by no more than that graph's nodes allocate, and shrinks when it is trimmed. What a graph can
 * take, and the collectives in it, are summed when it is made executable, so that a launch of a graph with neither
 * costs one load more than without this file. */
#include <sys/mman.h>

#include "interposer/time/collectives.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"
#include "interposer/hooks/graphs.h"
#include "interposer/memory/pool_charge.h"

enum { DEPTH = 16 /* of graphs in graphs */ };

/* ---- what a graph takes ------------------------------------------------------------------------------------------ */

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
  need->bytes[ordinal] = add(need->bytes[ordinal], gs_round_up(params.bytesize, GS_POOL_GRAIN));
}

/* False: no memory to look. */
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

static void remember(CUgraphExec graph, const struct gs_graph_need *need) {
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    if (need->devices >> ordinal & 1)
      gs_book_put(&(struct gs_entry){.key = key_of(graph, ordinal),
                                     .kind = GS_BOOK_GRAPH,
                                     .ordinal = GS_NO_DEVICE,
                                     .link = need->bytes[ordinal],
                                     .count = need->collectives[ordinal]});
  __atomic_fetch_add(&gs_process->graphs, 1, __ATOMIC_RELEASE);
}

void gs_graph_find(CUgraphExec graph, struct gs_graph_need *need) {
  need->devices = need->growing = 0;
  gs_book_lock();
  for (uint32_t ordinal = 0; ordinal < gs_process->ndevices; ordinal++) {
    struct gs_entry *entry = gs_book_find(GS_BOOK_GRAPH, key_of(graph, (int)ordinal));
    if (!entry)
      continue;
    need->devices |= 1u << ordinal;
    need->bytes[ordinal] = entry->link;
    need->collectives[ordinal] = entry->count;
  }
  gs_book_unlock();
}

void gs_graph_recount(CUgraphExec graph, int ordinal, int64_t more) {
  struct gs_graph_need need;
  if (more == 0 || !gs_book_room(1))
    return;
  gs_graph_find(graph, &need);
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_GRAPH, key_of(graph, ordinal));
  if (entry)
    entry->count = (uint32_t)(entry->count + more > 0 ? entry->count + more : 0);
  else if (more > 0)
    gs_book_add(&(struct gs_entry){
        .key = key_of(graph, ordinal), .kind = GS_BOOK_GRAPH, .ordinal = GS_NO_DEVICE, .count = (uint32_t)more});
  gs_book_unlock();
  if (!entry && more > 0 && need.devices == 0)
    __atomic_fetch_add(&gs_process->graphs, 1, __ATOMIC_RELEASE);
}

static void forget(CUgraphExec graph) {
  struct gs_entry entry;
  bool known = false;
  for (uint32_t ordinal = 0; ordinal < gs_process->ndevices; ordinal++)
    known = gs_book_take(GS_BOOK_GRAPH, key_of(graph, (int)ordinal), &entry) || known;
  if (known)
    __atomic_fetch_sub(&gs_process->graphs, 1, __ATOMIC_RELEASE);
}

/* ---- calls that can make the pool grow --------------------------------------------------------------------------- */

static void end(struct gs_graph_need *need) {
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    if (need->growing >> ordinal & 1)
      gs_growth_end(&(struct gs_growth){gs_graph_pool(ordinal), ordinal, need->reserved[ordinal], 0});
  need->growing = 0;
}

/* Turns what the graph may take into growths begun; false, and nothing begun: it does not fit. */
static bool begin(struct gs_graph_need *need, CUstream stream) {
  uint32_t wanted = 0;
  need->growing = 0;
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    wanted |= (uint32_t)(need->devices >> ordinal & 1 && need->bytes[ordinal] > 0) << ordinal;
  if (!gs_book_room(2 * GS_MAX_DEVICES)) /* the pools, and who takes from them */
    return wanted == 0;
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++) {
    struct gs_growth growth;
    if (!(wanted >> ordinal & 1))
      continue;
    uint64_t pool = gs_graph_pool(ordinal), bytes = need->bytes[ordinal];
    if (!gs_growth_begin(&growth, pool, ordinal, bytes, stream) &&
        !(gs_growth_make_room(pool, ordinal, bytes, stream) &&
          gs_growth_begin(&growth, pool, ordinal, bytes, stream))) {
      end(need);
      return false;
    }
    need->reserved[ordinal] = growth.need;
    need->growing |= 1u << ordinal;
  }
  return true;
}

static void end_launch(struct gs_graph_need *need, CUresult result) {
  end(need);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    if (need->devices >> ordinal & 1 && need->collectives[ordinal] > 0)
      gs_collective_end(ordinal, need->collectives[ordinal], result);
  need->devices = 0;
}

/* Out of line: what it needs saved, a launch of any other graph would pay for. */
static __attribute__((noinline)) CUresult begin_launch(struct gs_around_graph_launch *around, CUgraphExec graph,
                                                       CUstream stream) {
  struct gs_graph_need *need = &around->need;
  if (!gs_stream_capturing(stream)) /* else it becomes part of another graph */
    gs_graph_find(graph, need);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    if (need->devices >> ordinal & 1 && need->collectives[ordinal] > 0)
      gs_collective_begin(ordinal, need->collectives[ordinal]);
  CUresult result = gs_enter_submit(&around->submission, gs_graph_key(graph), stream);
  if (result == CUDA_SUCCESS && need->devices && !begin(need, stream))
    result = gs_submitted(&around->submission, CUDA_ERROR_OUT_OF_MEMORY);
  if (result != CUDA_SUCCESS)
    end_launch(need, result);
  return result;
}

CUresult gs_before_graph_launch(struct gs_around_graph_launch *around, CUgraphExec graph, CUstream stream) {
  around->need.devices = 0;
  if (GS_LIKELY(__atomic_load_n(&gs_process->graphs, __ATOMIC_ACQUIRE) == 0))
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
  if (!gs_enter(&result) || __atomic_load_n(&gs_process->graphs, __ATOMIC_ACQUIRE) == 0)
    return result;
  gs_graph_find(graph, &around->need);
  return begin(&around->need, stream) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gs_after_graph_upload(struct gs_around_graph_upload *around, CUresult result) {
  if (around->need.growing)
    end(&around->need);
  return result;
}

/* Memory comes with the first launch, unless the program wants the graph uploaded at once. */
CUresult gs_before_instantiate(struct gs_around_instantiate *around, CUgraphExec *made, CUgraph graph,
                               const CUDA_GRAPH_INSTANTIATE_PARAMS *params, CUstream stream) {
  enum { UPLOAD = 2 /* CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD */ };
  CUresult result = CUDA_SUCCESS;
  around->made = made;
  around->need.devices = 0;
  around->first = (struct gs_first){0};
  if (!gs_enter(&result) || (result = gs_graph_kernels_begin(&around->first, graph)) != CUDA_SUCCESS || !made)
    return result;
  around->uploads = params && params->flags & UPLOAD;
  bool looked = gs_graph_look(graph, &around->need);
  if (around->need.elsewhere)
    result = gs_refuse_elsewhere(around->need.where);
  else if (!looked || (around->need.devices && !gs_book_room(GS_MAX_DEVICES)) ||
           (around->uploads && around->need.devices && !begin(&around->need, stream)))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS)
    gs_implicit_end(&around->first, false);
  return result;
}

CUresult gs_after_instantiate(struct gs_around_instantiate *around, CUresult result) {
  gs_implicit_end(&around->first, result == CUDA_SUCCESS);
  if (around->need.devices == 0)
    return result;
  if (result == CUDA_SUCCESS)
    remember(*around->made, &around->need);
  if (around->uploads)
    end(&around->need);
  return result;
}

/* ---- what gives memory back -------------------------------------------------------------------------------------- */

/* The handle can come back as another graph's as soon as the driver is done with it. */
CUresult gs_before_graph_ends(struct gs_around_graph_ends *around, CUgraphExec graph) {
  CUresult result = gs_before_graph_changed(&around->changed, graph);
  around->need.devices = 0;
  around->graph = graph;
  if (around->changed.active && __atomic_load_n(&gs_process->graphs, __ATOMIC_ACQUIRE)) {
    gs_graph_find(graph, &around->need);
    forget(graph);
  }
  return result;
}

CUresult gs_after_graph_ends(struct gs_around_graph_ends *around, CUresult result) {
  gs_after_graph_changed(&around->changed, result);
  if (around->need.devices && result != CUDA_SUCCESS)
    remember(around->graph, &around->need);
  if (around->changed.active && result == CUDA_SUCCESS)
    gs_graph_nodes_gone(around->graph);
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES && result == CUDA_SUCCESS; ordinal++)
    if (around->need.devices >> ordinal & 1)
      gs_memory_synced(ordinal);
  return result;
}

CUresult gs_before_graph_trim(struct gs_around_graph_trim *around, CUdevice device) {
  CUresult result = CUDA_SUCCESS;
  around->ordinal = gs_enter(&result) ? gs_device_ordinal(device) : GS_NO_DEVICE;
  return result;
}

CUresult gs_after_graph_trim(struct gs_around_graph_trim *around, CUresult result) {
  if (result == CUDA_SUCCESS)
    gs_memory_synced(around->ordinal);
  return result;
}
