/* Conditional nodes. */
#include "client.h"

static const uint64_t MS = 1000000;
static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry spin_ns(.param .u64 ns)\n{\n  ret;\n}\n"
                          ".visible .entry set_conditional(.param .u64 handle, .param .u32 value)\n{\n  ret;\n}\n"
                          ".visible .entry count_conditional(.param .u64 handle)\n{\n  ret;\n}\n"
                          ".visible .entry launch_graph(.param .u64 exec)\n{\n  ret;\n}\n"
                          ".visible .entry deep(.param .u64 ns)\n{\n  .local .b8 frame[16384];\n  ret;\n}\n";
static CUmodule module;
static CUfunction spins, sets, counts, launches, deep;
static CUstream stream;
static CUcontext ctx;

static CUgraphNode add_kernel(CUgraph graph, CUfunction function, void **params, const CUgraphNode *after) {
  CUgraphNode node;
  CUDA_KERNEL_NODE_PARAMS launch = {function, 1, 1, 1, 1, 1, 1, 0, params, NULL, NULL, NULL};
  OK(cuGraphAddKernelNode_v2(&node, graph, after, after != NULL, &launch));
  return node;
}
static CUgraphNode add_spin(CUgraph graph, uint64_t ns, const CUgraphNode *after) {
  return add_kernel(graph, spins, (void *[]){&ns}, after);
}
static CUgraphNode add_set(CUgraph graph, CUgraphConditionalHandle handle, unsigned value, const CUgraphNode *after) {
  return add_kernel(graph, sets, (void *[]){&handle, &value}, after);
}
static CUgraphNode add_count(CUgraph graph, CUgraphConditionalHandle handle, const CUgraphNode *after) {
  return add_kernel(graph, counts, (void *[]){&handle}, after);
}

static CUgraph *add_condition(CUgraph graph, CUgraphConditionalHandle handle, int type, unsigned size,
                              const CUgraphNode *after) {
  CUgraphNode node;
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {handle, type, size, NULL, ctx}};
  OK(cuGraphAddNode(&node, graph, after, after != NULL, &params));
  return params.conditional.phGraph_out;
}

static CUgraphConditionalHandle handle_of(CUgraph graph, unsigned initial) {
  CUgraphConditionalHandle handle;
  OK(cuGraphConditionalHandleCreate(&handle, graph, ctx, initial, CU_GRAPH_COND_ASSIGN_DEFAULT));
  return handle;
}

/* Device time of one launch, less the short kernels that change conditions. */
static bool takes(CUgraphExec exec, uint64_t ns, unsigned changes) {
  struct client c = {.spin = spins};
  const uint64_t change = 10000; /* the engine is started with this --kernel-ns */
  CUevent a, b;
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  gate_close(&c, stream);
  OK(cuEventRecord(a, stream));
  OK(cuGraphLaunch(exec, stream));
  OK(cuEventRecord(b, stream));
  gate_open();
  OK(cuStreamSynchronize(stream));
  bool so = is_time(between(a, b), (double)(ns + changes * change));
  OK(cuEventDestroy_v2(a));
  OK(cuEventDestroy_v2(b));
  return so;
}

static void if_and_else(void) {
  CUgraph graph;
  CUgraphExec exec;
  OK(cuGraphCreate(&graph, 0));
  CUgraphConditionalHandle handle = handle_of(graph, 1);
  CUgraphNode before = add_set(graph, handle, 0, NULL);
  CUgraph *bodies = add_condition(graph, handle, CU_GRAPH_COND_TYPE_IF, 2, &before);
  add_spin(bodies[0], 2 * MS, NULL);
  add_spin(bodies[1], 3 * MS, NULL);
  EXPECT(cuGraphDestroy(bodies[0]), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuGraphInstantiateWithFlags(&exec, bodies[0], 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK(takes(exec, 3 * MS, 1));
  OK(cuGraphNodeSetEnabled(exec, before, 0));
  CHECK(takes(exec, 2 * MS, 0)); /* the default again */
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

static void loops(void) {
  CUgraph graph, clone;
  CUgraphExec exec, second;
  CUgraphNode node;
  OK(cuGraphCreate(&graph, 0));
  CUgraphConditionalHandle outer = handle_of(graph, 5), inner = handle_of(graph, 0);
  CUgraph *body = add_condition(graph, outer, CU_GRAPH_COND_TYPE_WHILE, 1, NULL);
  CUgraphNode reset = add_set(body[0], inner, 3, NULL);
  CUgraph *nested = add_condition(body[0], inner, CU_GRAPH_COND_TYPE_WHILE, 1, &reset);
  add_count(body[0], outer, NULL);
  CUgraphNode spun = add_spin(nested[0], MS, NULL);
  add_count(nested[0], inner, &spun);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK(takes(exec, 15 * MS, 5 + 5 + 15));
  EXPECT(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_INVALID_VALUE); /* one at a time */
  EXPECT(cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
  OK(cuGraphCreate(&clone, 0));
  EXPECT(cuGraphAddChildGraphNode(&node, clone, NULL, 0, graph), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphDestroy(clone));
  OK(cuGraphDestroy(graph)); /* the executable has what it needs */
  CHECK(takes(exec, 15 * MS, 25));
  OK(cuGraphExecDestroy(exec));

  /* without a kernel that ends it: once */
  OK(cuGraphCreate(&graph, 0));
  body = add_condition(graph, handle_of(graph, 1), CU_GRAPH_COND_TYPE_WHILE, 1, NULL);
  add_spin(body[0], MS, NULL);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK(takes(exec, MS, 0));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

static void switches(void) {
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode set = NULL;
  CUgraphExecUpdateResultInfo info;
  for (unsigned value = 0; value < 4; value++) {
    OK(cuGraphCreate(&graph, 0));
    CUgraphConditionalHandle handle = handle_of(graph, value);
    CUgraph *bodies = add_condition(graph, handle, CU_GRAPH_COND_TYPE_SWITCH, 3, NULL);
    CHECK(bodies[2] != NULL);
    for (unsigned i = 0; i < 3; i++)
      set = add_spin(bodies[i], (i + 1) * MS, NULL);
    if (value == 0)
      OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    else
      OK(cuGraphExecUpdate_v2(exec, graph, &info)); /* takes the new default */
    CHECK(takes(exec, value < 3 ? (value + 1) * MS : 0, 0));
    if (value < 3)
      OK(cuGraphDestroy(graph));
  }
  OK(cuGraphDestroyNode(set));
  EXPECT(cuGraphExecUpdate_v2(exec, graph, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

static void nothing(void *data) { (void)data; }

/* Captured into a body; and what a body may not have. */
static void captured(void) {
  CUgraph graph, into;
  CUgraphExec exec;
  CUgraphNode node;
  CUstream other;
  CUevent event;
  CUDA_HOST_NODE_PARAMS host = {nothing, NULL};
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  OK(cuGraphCreate(&graph, 0));
  CUgraph *body = add_condition(graph, handle_of(graph, 7), CU_GRAPH_COND_TYPE_IF, 1, NULL);
  OK(cuStreamBeginCaptureToGraph(other, body[0], NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  struct client c = {.spin = spins};
  spin(&c, MS, other);
  spin(&c, MS, other);
  OK(cuStreamEndCapture(other, &into));
  CHECK(into == body[0]);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK(takes(exec, 2 * MS, 0));
  OK(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(cuGraphLaunch(exec, other), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); /* it would be a child graph */
  OK(cuStreamEndCapture(other, &into));
  OK(cuGraphDestroy(into));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphAddHostNode(&node, body[0], NULL, 0, &host));
  EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy_v2(other));
}

static void errors(void) {
  CUgraph graph;
  CUgraphNode node;
  CUgraphConditionalHandle handle;
  OK(cuGraphCreate(&graph, 0));
  EXPECT(cuGraphConditionalHandleCreate(NULL, graph, ctx, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuGraphConditionalHandleCreate(&handle, graph, ctx, 0, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuGraphConditionalHandleCreate(&handle, NULL, ctx, 0, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphConditionalHandleCreate(&handle, graph, NULL, 0, 0));
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                              .conditional = {handle, CU_GRAPH_COND_TYPE_WHILE, 2, NULL, ctx}};
  EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE); /* a loop has one body */
  params.conditional.size = 1;
  params.conditional.handle = handle + 1;
  EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
  params.conditional.handle = handle;
  OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
  EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE); /* a handle is for one node */
  OK(cuGraphDestroyNode(node));
  OK(cuGraphDestroy(graph));
}

/* A kernel launches another graph, which is done before its own. */
static void from_the_device(void) {
  CUgraph graph, inner;
  CUgraphExec exec, target;
  OK(cuGraphCreate(&inner, 0));
  OK(cuGraphCreate(&graph, 0));
  EXPECT(cuGraphInstantiateWithFlags(&target, inner, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH),
         CUDA_ERROR_INVALID_VALUE); /* empty */
  add_spin(inner, 4 * MS, NULL);
  OK(cuGraphInstantiateWithFlags(&target, inner, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
  uint64_t handle = (uint64_t)(uintptr_t)target;
  CUgraphNode first = add_kernel(graph, launches, (void *[]){&handle}, NULL);
  add_kernel(graph, launches, (void *[]){&handle}, &first);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK(takes(exec, 0, 2)); /* it is not on the device yet */
  OK(cuGraphUpload(target, stream));
  CHECK(takes(exec, 8 * MS, 2));
  OK(cuGraphExecDestroy(target));
  CHECK(takes(exec, 0, 2));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuGraphDestroy(inner));
}

/* Local memory of a body's kernels is taken when the graph is instantiated. */
static void memory(void) {
  CUgraph graph;
  CUgraphExec exec;
  size_t before, after, total;
  uint64_t ns = 0;
  OK(cuGraphCreate(&graph, 0));
  CUgraph *body = add_condition(graph, handle_of(graph, 0), CU_GRAPH_COND_TYPE_IF, 1, NULL);
  add_kernel(body[0], deep, (void *[]){&ns}, NULL);
  OK(cuMemGetInfo_v2(&before, &total));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuMemGetInfo_v2(&after, &total));
  CHECK(before - after > 1u << 30);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

int main(void) {
  OK(cuInit(0));
  OK(cuCtxCreate_v2(&ctx, 0, 0));
  OK(cuModuleLoadData(&module, ptx));
  OK(cuModuleGetFunction(&spins, module, "spin_ns"));
  OK(cuModuleGetFunction(&sets, module, "set_conditional"));
  OK(cuModuleGetFunction(&counts, module, "count_conditional"));
  OK(cuModuleGetFunction(&launches, module, "launch_graph"));
  OK(cuModuleGetFunction(&deep, module, "deep"));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if_and_else();
  loops();
  switches();
  captured();
  errors();
  from_the_device();
  memory();
  OK(cuCtxDestroy_v2(ctx));
  return 0;
}
