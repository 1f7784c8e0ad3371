/* Graphs whose length is not what it was. */
#include "duel.h"

static CUDA_KERNEL_NODE_PARAMS kernel_of(uint64_t *ns, void **arguments) {
  arguments[0] = ns;
  return (CUDA_KERNEL_NODE_PARAMS){.func = duel.spin,
                                   .gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .kernelParams = arguments};
}

/* A graph of `count` kernels of `ns` one after another; gives the last node. */
static CUgraph graph_of(unsigned count, uint64_t ns, CUgraphNode *last) {
  void *arguments[1];
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(&ns, arguments);
  CUgraph graph;
  MUST(cuGraphCreate(&graph, 0));
  for (unsigned i = 0; i < count; i++)
    MUST(cuGraphAddKernelNode_v2(last, graph, i ? last : NULL, i ? 1 : 0, &kernel));
  return graph;
}

static CUgraphExec instance_of(CUgraph graph) {
  CUgraphExec instance;
  MUST(cuGraphInstantiateWithFlags(&instance, graph, 0));
  return instance;
}

/* One launch holds the device for 200 ms. */
static void graph_long(void) {
  CUgraphNode last;
  CUstream stream = new_stream();
  CUgraphExec instance = instance_of(graph_of(1, 200 * MS, &last));
  begin();
  for (;;) {
    MUST(cuGraphLaunch(instance, stream));
    MUST(cuStreamSynchronize(stream));
  }
}

/* Short when it is looked at, long when it counts. */
static void graph_set_params(void) {
  CUgraphNode last;
  CUstream stream = new_stream();
  CUgraphExec instance = instance_of(graph_of(1, 2 * US, &last));
  begin();
  for (unsigned long i = 0;; i++) {
    uint64_t ns = i % 20 == 19 ? 40 * MS : 2 * US;
    void *arguments[1];
    CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(&ns, arguments);
    MUST(cuGraphExecKernelNodeSetParams_v2(instance, last, &kernel));
    MUST(cuGraphLaunch(instance, stream));
    if (i % 20 >= 18)
      MUST(cuStreamSynchronize(stream));
  }
}

static void graph_update(void) {
  CUgraphNode last;
  CUstream stream = new_stream();
  CUgraph brief = graph_of(3, 2 * US, &last), length = graph_of(3, 15 * MS, &last);
  CUgraphExec instance = instance_of(brief);
  begin();
  for (unsigned long i = 0;; i++) {
    CUgraphExecUpdateResultInfo info;
    MUST(cuGraphExecUpdate_v2(instance, i % 8 == 7 ? length : brief, &info));
    MUST(cuGraphLaunch(instance, stream));
    if (i % 8 >= 6)
      MUST(cuStreamSynchronize(stream));
  }
}

/* The long node is switched off while the graph is measured. */
static void graph_disabled(void) {
  CUgraphNode last;
  CUstream stream = new_stream();
  CUgraphExec instance = instance_of(graph_of(2, 20 * MS, &last));
  begin();
  for (unsigned long i = 0;; i++) {
    MUST(cuGraphNodeSetEnabled(instance, last, i % 2));
    MUST(cuGraphLaunch(instance, stream));
    MUST(cuStreamSynchronize(stream));
  }
}

/* Every launch is of a new instance, as of one that was never seen. */
static void graph_new(void) {
  CUgraphNode last;
  CUstream stream = new_stream();
  CUgraph graph = graph_of(2, 10 * MS, &last);
  begin();
  for (;;) {
    CUgraphExec instance = instance_of(graph);
    MUST(cuGraphLaunch(instance, stream));
    MUST(cuGraphExecDestroy(instance));
    MUST(cuStreamSynchronize(stream));
  }
}

/* 64 kernels side by side in one launch. */
static void graph_wide(void) {
  enum { WIDTH = 64 };
  uint64_t ns = 2 * MS;
  void *arguments[1];
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(&ns, arguments);
  CUgraph graph;
  CUgraphNode node;
  CUstream stream = new_stream();
  MUST(cuGraphCreate(&graph, 0));
  for (int i = 0; i < WIDTH; i++)
    MUST(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel));
  CUgraphExec instance = instance_of(graph);
  begin();
  for (;;) {
    MUST(cuGraphLaunch(instance, stream));
    MUST(cuStreamSynchronize(stream));
  }
}

/* A loop on the device: how often it runs, no program on the host can tell. */
static void graph_loop(void) {
  enum { TIMES = 40 };
  uint64_t ns = MS;
  void *arguments[1], *counted[1];
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(&ns, arguments), count = kernel_of(&ns, counted);
  CUgraph graph, *body;
  CUgraphNode node, spun;
  CUgraphNodeParams loop = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  CUmodule module;
  CUstream stream = new_stream();
  MUST(cuModuleLoadData(&module, program()));
  MUST(cuGraphCreate(&graph, 0));
  loop.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
  loop.conditional.size = 1;
  loop.conditional.ctx = duel.context;
  MUST(cuGraphConditionalHandleCreate(&loop.conditional.handle, graph, duel.context, TIMES,
                                      CU_GRAPH_COND_ASSIGN_DEFAULT));
  MUST(cuGraphAddNode(&node, graph, NULL, 0, &loop));
  body = loop.conditional.phGraph_out;
  MUST(cuGraphAddKernelNode_v2(&spun, body[0], NULL, 0, &kernel));
  count.func = spin_of(module, "count_conditional");
  counted[0] = &loop.conditional.handle;
  MUST(cuGraphAddKernelNode_v2(&node, body[0], &spun, 1, &count));
  CUgraphExec instance = instance_of(graph);
  begin();
  for (;;) {
    MUST(cuGraphLaunch(instance, stream));
    MUST(cuStreamSynchronize(stream));
  }
}

const struct evasion graph_evasions[] = {
    {.name = "graph-long", .about = "a graph with one kernel of 200 ms", .run = graph_long, .seconds = 10},
    {.name = "graph-set-params",
     .about = "a node of 2 us is set to 40 ms before each 20th launch",
     .run = graph_set_params},
    {.name = "graph-update",
     .about = "the instance is updated from 6 us to 45 ms before each 8th launch",
     .run = graph_update},
    {.name = "graph-disabled",
     .about = "a node of 20 ms is switched on for every second launch",
     .run = graph_disabled},
    {.name = "graph-new", .about = "each launch is of a new instance, destroyed at once", .run = graph_new},
    {.name = "graph-wide", .about = "64 kernels of 2 ms side by side in one graph", .run = graph_wide, .seconds = 10},
    {.name = "graph-loop", .about = "a conditional node that loops 40 times over 1 ms", .run = graph_loop},
    {0},
};
