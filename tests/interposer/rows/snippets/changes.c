/* Nodes of graphs, executable graphs that are updated, and functions that are unloaded: old estimates are dropped, and
 * the new version runs. */
#include "rows.h"

enum { LONGER = 3 /* times as long as before */, BYTE = 0x5a, OTHER = 0xc3 };

/* A graph of one kernel, with its executable. */
struct one {
  struct kernel kernel;
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec exec;
};

static CUgraphNode only_node(struct rows *r, CUgraph graph) {
  CUgraphNode node = NULL;
  size_t count = 1;
  need(r, cuGraphGetNodes(graph, &node, &count), "the node");
  return node;
}

static void kernel_in_graph(struct rows *r, struct one *o) {
  kernel_ready(r, &o->kernel, stream(r));
  o->graph = kernel_graph(r, &o->kernel);
  o->node = only_node(r, o->graph);
  o->exec = instantiated(r, o->graph);
}

static void launch(struct rows *r, CUgraphExec exec) {
  lease(r);
  need(r, cuGraphLaunch(exec, stream(r)), "launch the graph");
  settle(r);
}

/* It takes the current kernel.ns. */
static void runs(struct rows *r, struct one *o) { graph_runs(r, o->exec, &o->kernel); }

static CUDA_KERNEL_NODE_PARAMS longer(struct one *o) {
  o->kernel.ns *= LONGER;
  return (CUDA_KERNEL_NODE_PARAMS){.func = o->kernel.function,
                                   .gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .kernelParams = o->kernel.params};
}

void row_cuGraphExecKernelNodeSetParams_v2(struct rows *r) {
  struct one o;
  kernel_in_graph(r, &o);
  const CUDA_KERNEL_NODE_PARAMS how = longer(&o);
  if (done(r, start(r)->cuGraphExecKernelNodeSetParams_v2(o.exec, o.node, &how)))
    runs(r, &o);
}

void row_cuGraphExecNodeSetParams(struct rows *r) {
  struct one o;
  kernel_in_graph(r, &o);
  CUgraphNodeParams how = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = longer(&o)};
  if (done(r, start(r)->cuGraphExecNodeSetParams(o.exec, o.node, &how)))
    runs(r, &o);
}

void row_cuGraphExecUpdate(struct rows *r) {
  struct one o;
  CUgraphNode wrong = NULL;
  CUgraphExecUpdateResult why = -1;
  kernel_in_graph(r, &o);
  o.kernel.ns *= LONGER;
  CUgraph other = kernel_graph(r, &o.kernel);
  if (done(r, start(r)->cuGraphExecUpdate(o.exec, other, &wrong, &why)))
    runs(r, &o);
  expect(r, why == CU_GRAPH_EXEC_UPDATE_SUCCESS, "the graphs are not alike");
}

void row_cuGraphExecUpdate_v2(struct rows *r) {
  struct one o;
  CUgraphExecUpdateResultInfo why = {.result = -1};
  kernel_in_graph(r, &o);
  o.kernel.ns *= LONGER;
  CUgraph other = kernel_graph(r, &o.kernel);
  if (done(r, start(r)->cuGraphExecUpdate_v2(o.exec, other, &why)))
    runs(r, &o);
  expect(r, why.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, "the graphs are not alike");
}

void row_cuGraphExecChildGraphNodeSetParams(struct rows *r) {
  struct one o;
  CUgraphNode child = NULL;
  kernel_in_graph(r, &o);
  CUgraph outer = empty_graph(r);
  need(r, cuGraphAddChildGraphNode(&child, outer, NULL, 0, o.graph), "a graph in it");
  o.exec = instantiated(r, outer);
  o.kernel.ns *= LONGER;
  CUgraph other = kernel_graph(r, &o.kernel);
  r->tentative = true;
  if (done(r, start(r)->cuGraphExecChildGraphNodeSetParams(o.exec, child, other)))
    runs(r, &o);
}

void row_cuGraphExecDestroy(struct rows *r) {
  struct one o;
  kernel_in_graph(r, &o);
  runs(r, &o);
  done(r, start(r)->cuGraphExecDestroy(o.exec));
  o.exec = instantiated(r, o.graph); /* possibly at the same address */
  runs(r, &o);
}

/* ---- fills and copies ---- */

void row_cuGraphNodeSetEnabled(struct rows *r) {
  CUgraphNode node = NULL;
  CUDA_MEMSET_NODE_PARAMS fill = {memory(r, BYTES), 0, BYTE, 1, 1, 1};
  put(r, fill.dst, zeroes(), 1);
  CUgraph graph = empty_graph(r);
  need(r, cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, r->ctx), "a fill in it");
  CUgraphExec exec = instantiated(r, graph);
  done(r, start(r)->cuGraphNodeSetEnabled(exec, node, 0));
  launch(r, exec);
  holds(r, fill.dst, zeroes(), 1);
  done(r, start(r)->cuGraphNodeSetEnabled(exec, node, 1));
  launch(r, exec);
  holds(r, fill.dst, (const unsigned char[]){BYTE}, 1);
}

void row_cuGraphExecMemsetNodeSetParams(struct rows *r) {
  CUgraphNode node = NULL;
  CUDA_MEMSET_NODE_PARAMS fill = {memory(r, BYTES), 0, BYTE, 1, 1, 1};
  CUgraph graph = empty_graph(r);
  need(r, cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, r->ctx), "a fill in it");
  CUgraphExec exec = instantiated(r, graph);
  fill.value = OTHER;
  done(r, start(r)->cuGraphExecMemsetNodeSetParams(exec, node, &fill, r->ctx));
  launch(r, exec);
  holds(r, fill.dst, (const unsigned char[]){OTHER}, 1);
}

void row_cuGraphExecMemcpyNodeSetParams(struct rows *r) {
  CUgraphNode node = NULL;
  struct copy c = copy_ready(r);
  CUDA_MEMCPY3D how = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = c.to,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = c.to,
                       .WidthInBytes = BYTES,
                       .Height = 1,
                       .Depth = 1};
  CUgraph graph = empty_graph(r);
  need(r, cuGraphAddMemcpyNode(&node, graph, NULL, 0, &how, r->ctx), "a copy in it");
  CUgraphExec exec = instantiated(r, graph);
  how.srcDevice = c.from;
  done(r, start(r)->cuGraphExecMemcpyNodeSetParams(exec, node, &how, r->ctx));
  launch(r, exec);
  on_device(r, &c);
}

/* ---- host functions, events, values ---- */

static void count_up(void *number) { (*(unsigned *)number)++; }

void row_cuGraphExecHostNodeSetParams(struct rows *r) {
  CUgraphNode node = NULL;
  unsigned first = 0, second = 0;
  CUDA_HOST_NODE_PARAMS how = {count_up, &first};
  context(r);
  CUgraph graph = empty_graph(r);
  need(r, cuGraphAddHostNode(&node, graph, NULL, 0, &how), "a call in it");
  CUgraphExec exec = instantiated(r, graph);
  how.userData = &second;
  done(r, start(r)->cuGraphExecHostNodeSetParams(exec, node, &how));
  launch(r, exec);
  expect(r, first == 0 && second == 1, "the old function was called");
}

void row_cuGraphExecEventRecordNodeSetEvent(struct rows *r) {
  CUgraphNode node = NULL;
  float ms = -1;
  context(r);
  CUevent first = new_event(r);
  CUevent second = new_event(r);
  need(r, cuEventRecord(first, stream(r)), "record it");
  CUgraph graph = empty_graph(r);
  need(r, cuGraphAddEventRecordNode(&node, graph, NULL, 0, first), "an event in it");
  CUgraphExec exec = instantiated(r, graph);
  done(r, start(r)->cuGraphExecEventRecordNodeSetEvent(exec, node, second));
  launch(r, exec);
  need(r, cuEventElapsedTime(&ms, first, second), "the second event was recorded");
  expect(r, ms >= 0, "before the first");
}

void row_cuGraphExecEventWaitNodeSetEvent(struct rows *r) {
  CUgraphNode node = NULL;
  CUstream held_stream = NULL;
  context(r);
  CUevent first = new_event(r);
  CUevent second = new_event(r);
  need(r, cuStreamCreate(&held_stream, 1), "another stream");
  struct hold held = hold(r, held_stream);
  need(r, cuEventRecord(second, held_stream), "record an event");
  CUgraph graph = empty_graph(r);
  need(r, cuGraphAddEventWaitNode(&node, graph, NULL, 0, first), "a wait in it");
  CUgraphExec exec = instantiated(r, graph);
  done(r, start(r)->cuGraphExecEventWaitNodeSetEvent(exec, node, second));
  lease(r);
  need(r, cuGraphLaunch(exec, stream(r)), "launch the graph");
  expect(r, cuStreamQuery(r->stream) == CUDA_ERROR_NOT_READY, "the graph does not wait");
  let_go(&held);
  settle(r);
}

void row_cuGraphExecBatchMemOpNodeSetParams(struct rows *r) {
  CUgraphNode node = NULL;
  CUdeviceptr at = memory(r, 4);
  CUstreamBatchMemOpParams step = {
      .value = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = at, .value = BYTE}};
  CUDA_BATCH_MEM_OP_NODE_PARAMS how = {.ctx = r->ctx, .count = 1, .paramArray = &step};
  CUgraph graph = empty_graph(r);
  if (cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &how) != CUDA_SUCCESS)
    need(r, cuGraphAddEmptyNode(&node, graph, NULL, 0), "a node in it");
  CUgraphExec exec = instantiated(r, graph);
  step.value.value = OTHER;
  r->tentative = true;
  if (!done(r, start(r)->cuGraphExecBatchMemOpNodeSetParams(exec, node, &how)))
    return;
  launch(r, exec);
  holds(r, at, (const uint32_t[]){OTHER}, 4);
}

/* Semaphore nodes cannot be created where no semaphore can be imported: then the driver's refusal is compared. */
void row_cuGraphExecExternalSemaphoresSignalNodeSetParams(struct rows *r) {
  struct one o;
  const uint64_t none[8] = {0};
  kernel_in_graph(r, &o);
  r->tentative = true;
  done(r, start(r)->cuGraphExecExternalSemaphoresSignalNodeSetParams(o.exec, o.node, (const void *)none));
}

void row_cuGraphExecExternalSemaphoresWaitNodeSetParams(struct rows *r) {
  struct one o;
  const uint64_t none[8] = {0};
  kernel_in_graph(r, &o);
  r->tentative = true;
  done(r, start(r)->cuGraphExecExternalSemaphoresWaitNodeSetParams(o.exec, o.node, (const void *)none));
}

/* ---- nodes that use memory: the driver looks at their addresses when it makes them ---- */

static void run_graph(struct rows *r, CUgraph graph) { launch(r, instantiated(r, graph)); }

static CUDA_MEMSET_NODE_PARAMS fill_of(struct rows *r) {
  return (CUDA_MEMSET_NODE_PARAMS){memory(r, BYTES), 0, BYTE, 1, 1, 1};
}

void row_cuGraphAddMemsetNode(struct rows *r) {
  const CUDA_MEMSET_NODE_PARAMS fill = fill_of(r);
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  if (!done(r, start(r)->cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, r->ctx)))
    return;
  run_graph(r, graph);
  holds(r, fill.dst, (const unsigned char[]){BYTE}, 1);
}

void row_cuGraphMemsetNodeSetParams(struct rows *r) {
  CUDA_MEMSET_NODE_PARAMS fill = fill_of(r);
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  need(r, cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, r->ctx), "a fill in it");
  fill.value = OTHER;
  done(r, start(r)->cuGraphMemsetNodeSetParams(node, &fill));
  run_graph(r, graph);
  holds(r, fill.dst, (const unsigned char[]){OTHER}, 1);
}

static CUDA_MEMCPY3D copy_of(const struct copy *c) {
  return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = c->from,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = c->to,
                         .WidthInBytes = BYTES,
                         .Height = 1,
                         .Depth = 1};
}

void row_cuGraphAddMemcpyNode(struct rows *r) {
  struct copy c = copy_ready(r);
  const CUDA_MEMCPY3D how = copy_of(&c);
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  if (!done(r, start(r)->cuGraphAddMemcpyNode(&node, graph, NULL, 0, &how, r->ctx)))
    return;
  run_graph(r, graph);
  on_device(r, &c);
}

void row_cuGraphMemcpyNodeSetParams(struct rows *r) {
  struct copy c = copy_ready(r);
  CUDA_MEMCPY3D how = copy_of(&c);
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  how.srcDevice = c.to; /* onto itself */
  need(r, cuGraphAddMemcpyNode(&node, graph, NULL, 0, &how, r->ctx), "a copy in it");
  how.srcDevice = c.from;
  done(r, start(r)->cuGraphMemcpyNodeSetParams(node, &how));
  run_graph(r, graph);
  on_device(r, &c);
}

/* Writes a word that is 0 before. */
static CUDA_BATCH_MEM_OP_NODE_PARAMS write_of(struct rows *r, CUstreamBatchMemOpParams *step, uint32_t value) {
  const uint32_t before = 0;
  if (step->value.address == 0) {
    step->value.address = memory(r, sizeof before);
    put(r, step->value.address, &before, sizeof before);
  }
  step->value.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  step->value.value = value;
  return (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = r->ctx, .count = 1, .paramArray = step};
}

static void written(struct rows *r, CUgraph graph, CUdeviceptr at) {
  const uint32_t after = OTHER;
  run_graph(r, graph);
  holds(r, at, &after, sizeof after);
}

void row_cuGraphAddBatchMemOpNode(struct rows *r) {
  CUstreamBatchMemOpParams step = {0};
  const CUDA_BATCH_MEM_OP_NODE_PARAMS how = write_of(r, &step, OTHER);
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  r->tentative = true;
  if (done(r, start(r)->cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &how)))
    written(r, graph, step.value.address);
}

void row_cuGraphBatchMemOpNodeSetParams(struct rows *r) {
  CUstreamBatchMemOpParams step = {0};
  CUDA_BATCH_MEM_OP_NODE_PARAMS how = write_of(r, &step, 0);
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  r->tentative = cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &how) != CUDA_SUCCESS;
  how = write_of(r, &step, OTHER);
  if (done(r, start(r)->cuGraphBatchMemOpNodeSetParams(node, &how)))
    written(r, graph, step.value.address);
}

/* ---- functions ---- */

static void kernel_runs(struct rows *r, struct kernel *k) {
  lease(r);
  need(r, cuLaunchKernel(k->function, 1, 1, 1, 1, 1, 1, 0, k->stream, k->params, NULL), "a kernel");
  kernel_ran(r, k);
}

void row_cuModuleUnload(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, stream(r));
  kernel_runs(r, &k);
  done(r, start(r)->cuModuleUnload(k.module));
  kernel_ready(r, &k, r->stream); /* possibly at the same address */
  kernel_runs(r, &k);
}

void row_cuLibraryUnload(struct rows *r) {
  extern const char rows_ptx[];
  CUlibrary library = NULL;
  CUkernel kernel = NULL;
  struct kernel k;
  kernel_ready(r, &k, stream(r));
  need(r, cuLibraryLoadData(&library, rows_ptx, NULL, NULL, 0, NULL, NULL, 0), "a library");
  need(r, cuLibraryGetKernel(&kernel, library, "spin_ns"), "its kernel");
  k.function = (CUfunction)kernel;
  kernel_runs(r, &k);
  done(r, start(r)->cuLibraryUnload(library));
  kernel_ready(r, &k, r->stream);
  kernel_runs(r, &k);
}
