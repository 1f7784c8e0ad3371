/* Captures and graphs. captures MODE PTX [CAPTURE_MODE]: prints the result of every relevant call as one JSON line,
 * which must be the same with and without gpushare. */
#include "program.h"

static int results[256], count;
static void say(CUresult result) {
  if (count < 256)
    results[count++] = (int)result;
}

static CUresult launch(CUstream stream, uint64_t ns) {
  void *arguments[] = {&ns};
  return cuLaunchKernel(kernels[0], 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static size_t nodes_of(CUgraph graph) {
  size_t nodes = 0;
  OK(cuGraphGetNodes(graph, NULL, &nodes));
  return nodes;
}

static void run_graph(CUgraph graph, int times) {
  CUgraphExec executable;
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int i = 0; i < times; i++)
    OK(cuGraphLaunch(executable, streams[0]));
  OK(cuStreamSynchronize(streams[0]));
}

/* Both streams have work in flight and open segments when a capture begins in one and spreads to the other. */
static void spread(int mode) {
  CUevent fork, join;
  CUgraph graph;
  CUstreamCaptureStatus status;
  OK(cuEventCreate(&fork, 2));
  OK(cuEventCreate(&join, 2));
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 12; i++)
      spin(0, 20000, streams[i & 1]);
    OK(cuStreamBeginCapture_v2(streams[0], mode));
    OK(launch(streams[0], 20000));
    OK(cuEventRecord(fork, streams[0]));
    OK(cuStreamWaitEvent(streams[1], fork, 0));
    for (int i = 0; i < 60; i++)
      OK(launch(streams[i & 1], 20000)); /* more work than is between two marks */
    OK(cuStreamIsCapturing(streams[1], &status));
    say((CUresult)status);
    OK(cuEventRecord(join, streams[1]));
    OK(cuStreamWaitEvent(streams[0], join, 0));
    OK(cuStreamEndCapture(streams[0], &graph));
    say((CUresult)nodes_of(graph));
    OK(cuStreamIsCapturing(streams[1], &status));
    say((CUresult)status);
  }
  run_graph(graph, 10);
}

static volatile int watching, stop;
static CUevent watched;
static bool relaxed;
static volatile CUresult worst;

/* Like the watchdog of a collective library, for an event recorded before the capture. */
static void *watchdog(void *unused) {
  CUstreamCaptureMode mode = 2;
  OK(cuCtxSetCurrent(context));
  while (!stop) {
    CUresult result;
    if (relaxed)
      OK(cuThreadExchangeStreamCaptureMode(&mode));
    result = cuEventQuery(watched);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
      worst = result;
    if (relaxed)
      OK(cuThreadExchangeStreamCaptureMode(&mode));
    watching++;
    usleep(200);
  }
  return unused;
}

static void watch(int mode) {
  CUgraph graph = NULL;
  pthread_t thread;
  OK(cuEventCreate(&watched, 2));
  for (int i = 0; i < 60; i++)
    spin(0, 20000, streams[1]);
  OK(cuEventRecord(watched, streams[1]));
  pthread_create(&thread, NULL, watchdog, NULL);
  while (!watching)
    usleep(100);
  for (int round = 0; round < 5; round++) {
    int seen = watching;
    OK(cuStreamBeginCapture_v2(streams[0], mode));
    CUresult first = launch(streams[0], 20000);
    if (mode != 0 || relaxed)
      say(first); /* otherwise this result, like the next launch's, depends on when the watchdog queries */
    while (watching < seen + 3)
      usleep(100);
    launch(streams[0], 20000);
    while (watching < seen + 5)
      usleep(100);
    say(cuStreamEndCapture(streams[0], &graph));
    say((CUresult)(graph ? nodes_of(graph) : 0));
  }
  stop = 1;
  pthread_join(thread, NULL);
  say(worst);
  OK(cuStreamSynchronize(streams[1]));
}

static void to_graph(int mode) {
  CUgraph graph, ended;
  CUgraphNode nodes[64];
  size_t n = 64;
  OK(cuGraphCreate(&graph, 0));
  OK(cuStreamBeginCaptureToGraph(streams[0], graph, NULL, NULL, 0, mode));
  for (int i = 0; i < 30; i++)
    OK(launch(streams[0], 20000));
  OK(cuStreamEndCapture(streams[0], &ended));
  say((CUresult)(ended == graph));
  OK(cuGraphGetNodes(graph, nodes, &n));
  OK(cuStreamBeginCaptureToGraph(streams[1], graph, &nodes[n - 1], NULL, 1, mode));
  OK(launch(streams[1], 20000));
  OK(cuStreamEndCapture(streams[1], &ended));
  say((CUresult)nodes_of(graph));
  run_graph(graph, 20);
}

/* Invalid use by the program: the driver's own results. */
static void mistakes(int mode) {
  CUevent fork;
  CUgraph graph;
  CUstream third;
  OK(cuEventCreate(&fork, 2));
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 40; i++)
      spin(0, 20000, streams[i & 1]);
    /* waits for a stream that captures */
    OK(cuStreamBeginCapture_v2(streams[0], mode));
    say(launch(streams[0], 20000));
    say(cuStreamSynchronize(streams[0]));
    say(launch(streams[0], 20000));
    say(cuStreamEndCapture(streams[0], &graph));
    /* queries a stream that captures */
    OK(cuStreamBeginCapture_v2(streams[0], mode));
    say(cuStreamQuery(streams[0]));
    say(cuStreamEndCapture(streams[0], &graph));
    /* a fork that never joins */
    OK(cuStreamBeginCapture_v2(streams[0], mode));
    OK(launch(streams[0], 20000));
    OK(cuEventRecord(fork, streams[0]));
    OK(cuStreamWaitEvent(streams[1], fork, 0));
    say(launch(streams[1], 20000));
    say(cuStreamEndCapture(streams[1], &graph));
    say(cuEventQuery(fork));
    say(launch(streams[1], 20000));
    say(cuStreamEndCapture(streams[0], &graph));
    say(launch(streams[1], 20000));
    /* a stream destroyed while it captures */
    OK(cuStreamCreate(&third, 1));
    OK(cuStreamBeginCapture_v2(third, mode));
    say(launch(third, 20000));
    say(cuStreamDestroy_v2(third));
    /* the legacy stream while a blocking one captures */
    OK(cuStreamCreate(&third, 0));
    OK(cuStreamBeginCapture_v2(third, mode));
    say(launch(NULL, 20000));
    say(cuStreamEndCapture(third, &graph));
    say(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(third));
    /* and everything works again */
    OK(cuStreamBeginCapture_v2(streams[0], mode));
    OK(launch(streams[0], 20000));
    say(cuStreamEndCapture(streams[0], &graph));
    say((CUresult)nodes_of(graph));
    OK(cuStreamSynchronize(streams[0]));
    OK(cuStreamSynchronize(streams[1]));
  }
}

static CUgraph chain(int n, uint64_t ns) {
  CUgraph graph;
  OK(cuStreamBeginCapture_v2(streams[0], 2));
  for (int i = 0; i < n; i++)
    OK(launch(streams[0], ns));
  OK(cuStreamEndCapture(streams[0], &graph));
  return graph;
}

static void launches(CUgraphExec executable, int times, uint64_t ns) {
  for (int i = 0; i < times; i++) {
    OK(cuGraphLaunch(executable, streams[0]));
    OK(cuStreamSynchronize(streams[0]));
  }
  truth += (uint64_t)times * ns;
}

/* An executable graph becomes longer and shorter. The program waits for each launch, so only history predicts its
 * duration. */
static void update(void) {
  CUgraphExecUpdateResultInfo info;
  CUDA_KERNEL_NODE_PARAMS params;
  CUgraphExec executable;
  CUgraphNode node;
  size_t one = 1;
  uint64_t ns = 10000;
  void *arguments[] = {&ns};
  CUgraph graph = chain(1, 20000);
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  launches(executable, 200, 20000);
  OK(cuGraphExecUpdate_v2(executable, chain(1, 150000), &info));
  launches(executable, 40, 150000);
  OK(cuGraphGetNodes(graph, &node, &one));
  OK(cuGraphKernelNodeGetParams_v2(node, &params));
  params.kernelParams = arguments;
  OK(cuGraphExecKernelNodeSetParams_v2(executable, node, &params));
  launches(executable, 40, ns);
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  const char *what = argv[1];
  int mode = argc > 3 ? atoi(argv[3]) : 0;
  start(argv[2]);
  if (!strcmp(what, "spread"))
    spread(mode);
  else if (!strcmp(what, "watch"))
    watch(mode);
  else if (!strcmp(what, "watchrelaxed"))
    relaxed = true, watch(mode);
  else if (!strcmp(what, "tograph"))
    to_graph(mode);
  else if (!strcmp(what, "mistakes"))
    mistakes(mode);
  else if (!strcmp(what, "update"))
    update();
  else
    return 2;
  OK(cuCtxSynchronize());
  printf("{\"truth_ns\": %llu, \"results\": [", (unsigned long long)truth);
  for (int i = 0; i < count; i++)
    printf("%s%d", i ? ", " : "", results[i]);
  report("]}\n");
  return stay();
}
