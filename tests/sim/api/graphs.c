/* Captures and graphs. */
#include "client.h"

static const uint64_t US = 1000, MS = 1000000;

static void count_up(void *data) { __atomic_add_fetch((int *)data, 1, __ATOMIC_SEQ_CST); }

static size_t node_count(CUgraph graph) {
  size_t n = 0;
  OK(cuGraphGetNodes(graph, NULL, &n));
  return n;
}

/* A chain captured in one stream: nothing runs before the launch, and each launch runs all of it. */
static void chain(const struct client *c) {
  int calls = 0;
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CUevent a, b;
  CUstreamCaptureStatus status;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  for (int i = 0; i < 10; i++)
    spin(c, 100 * US, stream);
  OK(cuLaunchHostFunc(stream, count_up, &calls));
  OK(cuStreamIsCapturing(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamIsCapturing(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(node_count(graph) == 11);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuGraphDestroy(graph));
  gate_close(c, stream);
  OK(cuEventRecord(a, stream));
  OK(cuGraphLaunch(exec, stream));
  OK(cuEventRecord(b, stream));
  CHECK(calls == 0);
  gate_open();
  OK(cuStreamSynchronize(stream));
  CHECK(calls == 1);
  CHECK(between(a, b) >= 1 * MS);
  OK(cuGraphLaunch(exec, stream));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(calls == 3);
  OK(cuGraphExecDestroy(exec));
  EXPECT(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
  OK(cuStreamDestroy_v2(stream));
}

static double graph_time(const struct client *c, CUgraphExec exec, CUstream stream) {
  CUevent a, b;
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  gate_close(c, stream);
  OK(cuEventRecord(a, stream));
  OK(cuGraphLaunch(exec, stream));
  OK(cuEventRecord(b, stream));
  gate_open();
  OK(cuStreamSynchronize(stream));
  double ns = between(a, b);
  OK(cuEventDestroy_v2(a));
  OK(cuEventDestroy_v2(b));
  return ns;
}

/* Fork and join through events, as visible in the graph's structure. */
static void fork_join(const struct client *c) {
  CUstream x, y;
  CUevent fork, join;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode nodes[4], roots[4], from[8], to[8];
  size_t n = 4, edges = 8;
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&y, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&fork, 0));
  OK(cuEventCreate(&join, 0));
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  spin(c, 10 * US, x);
  OK(cuEventRecord(fork, x));
  OK(cuStreamWaitEvent(y, fork, 0));
  spin(c, 20 * US, y);
  spin(c, 30 * US, x);
  EXPECT(cuStreamEndCapture(y, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  OK(cuEventRecord(join, y));
  OK(cuStreamWaitEvent(x, join, 0));
  spin(c, 40 * US, x);
  OK(cuStreamEndCapture(x, &graph));
  CHECK(node_count(graph) == 4);
  OK(cuGraphGetNodes(graph, nodes, &n));
  n = 4;
  OK(cuGraphGetRootNodes(graph, roots, &n));
  CHECK(n == 1 && roots[0] == nodes[0] && roots[1] == NULL);
  OK(cuGraphGetEdges(graph, from, to, &edges));
  CHECK(edges == 4);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK(is_time(graph_time(c, exec, x), 100 * US));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  /* a branch that is not joined */
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(fork, x));
  OK(cuStreamWaitEvent(y, fork, 0));
  spin(c, 20 * US, y);
  EXPECT(cuStreamEndCapture(x, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK(graph == NULL);
  spin(c, 1, y); /* no longer in the capture */
  OK(cuStreamSynchronize(y));
  OK(cuStreamDestroy_v2(x));
  OK(cuStreamDestroy_v2(y));
}

/* Operations that are forbidden during a capture, and their effect on it. */
static void forbidden(const struct client *c) {
  CUstream x, blocking;
  CUevent inside, before;
  CUgraph graph;
  CUdeviceptr memory;
  CUstreamCaptureStatus status;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&blocking, 0));
  OK(cuEventCreate(&inside, 0));
  OK(cuEventCreate(&before, 0));
  spin(c, 1, x);
  OK(cuEventRecord(before, x));
  OK(cuStreamSynchronize(x));

  EXPECT(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT(cuStreamEndCapture(x, &graph), CUDA_ERROR_ILLEGAL_STATE);

  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT(cuStreamSynchronize(x), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  OK(cuStreamIsCapturing(x, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT(cuLaunchHostFunc(x, count_up, &mode), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT(cuStreamEndCapture(x, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  /* an unsafe call: depends on the modes of the capture and of the thread */
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT(cuMemAlloc_v2(&memory, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT(cuStreamEndCapture(x, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemAlloc_v2(&memory, 4096));
  OK(cuStreamEndCapture(x, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  OK(cuEventQuery(before));
  OK(cuMemFree_v2(memory));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
  OK(cuStreamEndCapture(x, &graph));
  OK(cuGraphDestroy(graph));

  /* events cannot be used across the border of a capture, in either direction */
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(inside, x));
  EXPECT(cuEventQuery(inside), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT(cuStreamEndCapture(x, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(cuStreamWaitEvent(x, before, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT(cuStreamEndCapture(x, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  /* the legacy stream would wait for a blocking stream that captures, but not for a non-blocking one */
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_RELAXED));
  spin(c, 1, NULL);
  OK(cuStreamEndCapture(x, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamDestroy_v2(x));
  OK(cuStreamDestroy_v2(blocking));
}

static void *other_thread(void *arg) {
  CUgraph graph;
  EXPECT(cuStreamEndCapture(arg, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  return NULL;
}

/* Only the thread that began a capture may end it, unless the capture is relaxed. */
static void threads(const struct client *c) {
  CUstream x;
  CUgraph graph;
  pthread_t thread;
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture_v2(x, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  spin(c, 1, x);
  pthread_create(&thread, NULL, other_thread, x);
  pthread_join(thread, NULL);
  OK(cuStreamEndCapture(x, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy_v2(x));
}

static CUDA_KERNEL_NODE_PARAMS kernel(const struct client *c, void **params) {
  return (CUDA_KERNEL_NODE_PARAMS){c->spin, 1, 1, 1, 1, 1, 1, 0, params, NULL, NULL, NULL};
}

/* Built explicitly: all kinds of nodes, changed before and after instantiation. */
static void by_hand(const struct client *c) {
  int calls = 0;
  uint64_t ns = 50 * US;
  void *params[] = {&ns};
  unsigned char back[64] = {0};
  unsigned enabled;
  CUstream stream;
  CUgraph graph, child, inner;
  CUgraphExec exec;
  CUgraphNode k, set, copy, host, empty, sub, record, again;
  CUevent event;
  CUdeviceptr memory;
  CUgraphNodeType type;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  OK(cuMemAlloc_v2(&memory, 64));
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphCreate(&child, 0));

  CUDA_KERNEL_NODE_PARAMS launch = kernel(c, params), read;
  OK(cuGraphAddKernelNode_v2(&k, graph, NULL, 0, &launch));
  ns = 1; /* the node has its own copy */
  OK(cuGraphKernelNodeGetParams_v2(k, &read));
  CHECK(*(uint64_t *)read.kernelParams[0] == 50 * US && read.func == c->spin);
  CUDA_MEMSET_NODE_PARAMS fill = {.dst = memory, .value = 0x42, .elementSize = 1, .width = 64, .height = 1};
  OK(cuGraphAddMemsetNode(&set, graph, &k, 1, &fill, c->ctx));
  CUDA_MEMCPY3D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = memory,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = back,
                       .WidthInBytes = 64,
                       .Height = 1,
                       .Depth = 1};
  OK(cuGraphAddMemcpyNode(&copy, graph, &set, 1, &out, c->ctx));
  CUDA_HOST_NODE_PARAMS call = {count_up, &calls};
  OK(cuGraphAddHostNode(&host, graph, &copy, 1, &call));
  OK(cuGraphAddEmptyNode(&empty, graph, &host, 1));
  OK(cuGraphAddKernelNode_v2(&again, child, NULL, 0, &launch));
  OK(cuGraphAddChildGraphNode(&sub, graph, &empty, 1, child));
  OK(cuGraphAddEventRecordNode(&record, graph, &sub, 1, event));
  OK(cuGraphChildGraphNodeGetGraph(sub, &inner));
  CHECK(inner != child && node_count(inner) == 1);
  OK(cuGraphNodeGetType(copy, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMCPY);
  EXPECT(cuGraphAddEmptyNode(&empty, child, &k, 1), CUDA_ERROR_INVALID_VALUE);  /* another graph's node */
  EXPECT(cuGraphAddDependencies(graph, &k, &set, 1), CUDA_ERROR_INVALID_VALUE); /* already exists */
  OK(cuGraphAddDependencies(graph, &record, &k, 1));
  EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE); /* a cycle */
  OK(cuGraphRemoveDependencies(graph, &record, &k, 1));

  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  for (int i = 0; i < 64; i++)
    CHECK(back[i] == 0x42);
  CHECK(calls == 1);
  OK(cuEventQuery(event));

  /* changes the executable, not the graph */
  fill.value = 0x17;
  OK(cuGraphExecMemsetNodeSetParams(exec, set, &fill, c->ctx));
  OK(cuGraphNodeSetEnabled(exec, k, 0));
  OK(cuGraphNodeGetEnabled(exec, k, &enabled));
  CHECK(enabled == 0);
  EXPECT(cuGraphNodeSetEnabled(exec, host, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(back[0] == 0x17 && back[63] == 0x17);

  /* updates the executable from the graph */
  CUgraphExecUpdateResultInfo info;
  OK(cuGraphExecUpdate_v2(exec, graph, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(back[0] == 0x42);
  EXPECT(cuGraphExecUpdate_v2(exec, child, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);

  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroyNode(record));
  CHECK(node_count(graph) == 6);
  OK(cuGraphDestroy(child));
  OK(cuGraphDestroy(graph));
  EXPECT(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree_v2(memory));
  OK(cuStreamDestroy_v2(stream));
}

/* A launch does not affect launches in flight, and launches of one executable never run concurrently. */
static void launches_in_flight(const struct client *c) {
  CUstream x, y;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode node;
  CUevent a, b;
  uint64_t ns = 2 * MS;
  void *params[] = {&ns};
  CUDA_KERNEL_NODE_PARAMS launch = kernel(c, params);
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&y, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &launch));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  gate_close(c, x);
  OK(cuGraphLaunch(exec, x));
  OK(cuEventRecord(a, x));
  ns = 1 * MS;
  OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &launch));
  OK(cuGraphLaunch(exec, y));
  OK(cuEventRecord(b, y));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  gate_open();
  OK(cuCtxSynchronize());
  CHECK(is_time(between(a, b), 1 * MS));
  OK(cuStreamDestroy_v2(x));
  OK(cuStreamDestroy_v2(y));
}

/* Graph memory is accounted from the launch to the free. */
static void graph_memory(const struct client *c) {
  enum { BYTES = 64 << 20 };
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CUdeviceptr memory;
  size_t free0, free1, free2, total;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemGetInfo_v2(&free0, &total));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemAllocAsync(&memory, BYTES, stream));
  OK(cuMemsetD8Async(memory, 1, BYTES / 1024, stream));
  spin(c, 5 * MS, stream);
  OK(cuMemFreeAsync(memory, stream));
  OK(cuStreamEndCapture(stream, &graph));
  CHECK(node_count(graph) == 4);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuMemGetInfo_v2(&free1, &total));
  CHECK(free1 == free0);
  gate_close(c, stream);
  OK(cuGraphLaunch(exec, stream));
  OK(cuMemGetInfo_v2(&free1, &total));
  CHECK(free1 <= free0 - BYTES);
  gate_open();
  OK(cuStreamSynchronize(stream));
  OK(cuMemGetInfo_v2(&free2, &total));
  CHECK(free2 == free1); /* kept for the next launch */
  OK(cuDeviceGraphMemTrim(0));
  OK(cuMemGetInfo_v2(&free2, &total));
  CHECK(free2 == free0);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy_v2(stream));
}

static void user_objects(void) {
  int gone = 0;
  CUuserObject object;
  CUgraph graph, copy;
  OK(cuUserObjectCreate(&object, &gone, count_up, 1, 1));
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphRetainUserObject(graph, object, 1, 1));
  OK(cuGraphClone(&copy, graph));
  OK(cuGraphDestroy(graph));
  CHECK(gone == 0);
  OK(cuGraphDestroy(copy));
  CHECK(gone == 1);
}

int main(void) {
  struct client c = client_start();
  chain(&c);
  fork_join(&c);
  forbidden(&c);
  threads(&c);
  by_hand(&c);
  launches_in_flight(&c);
  graph_memory(&c);
  user_objects();
  OK(cuCtxDestroy_v2(c.ctx));
  return 0;
}
