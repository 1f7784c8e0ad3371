/* Nodes of graphs that use memory: the driver looks at their addresses when it makes them. */
#include "rows.h"

enum { BYTE = 0x5a, OTHER = 0xc3, NEW = 77 };

static void run_graph(struct rows *r, CUgraph graph) {
  CUgraphExec exec = instantiated(r, graph);
  lease(r);
  need(r, cuGraphLaunch(exec, stream(r)), "launch the graph");
  settle(r);
}

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
  const uint32_t after = NEW;
  run_graph(r, graph);
  holds(r, at, &after, sizeof after);
}

void row_cuGraphAddBatchMemOpNode(struct rows *r) {
  CUstreamBatchMemOpParams step = {0};
  const CUDA_BATCH_MEM_OP_NODE_PARAMS how = write_of(r, &step, NEW);
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
  how = write_of(r, &step, NEW);
  if (done(r, start(r)->cuGraphBatchMemOpNodeSetParams(node, &how)))
    written(r, graph, step.value.address);
}
