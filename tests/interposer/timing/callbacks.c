/* Functions that launch while the driver calls them. callbacks MODE PTX NS: submits one, prints a line, and lets it
 * launch a kernel of NS when a line is read. The stream stands still until the function returned. */
#include <sys/mman.h>

#include "program.h"

CUresult cuLaunchHostFunc(CUstream, CUhostFn, void *);
CUresult cuStreamAddCallback(CUstream, CUstreamCallback, void *, unsigned int);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int);
CUresult cuGraphCreate(CUgraph *, unsigned int);
CUresult cuGraphAddHostNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphHostNodeSetParams(CUgraphNode, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphExecHostNodeSetParams(CUgraphExec, CUgraphNode, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                           CUgraphNodeParams *);
CUresult cuGraphExecNodeSetParams(CUgraphExec, CUgraphNode, CUgraphNodeParams *);

struct call {
  int go, calls;
  uint64_t ns, took;
  CUresult answer;
};

static void launches(void *data) {
  struct call *call = data;
  void *arguments[] = {&call->ns};
  while (!__atomic_load_n(&call->go, __ATOMIC_ACQUIRE))
    usleep(100);
  call->answer = cuLaunchKernel(kernels[0], 1, 1, 1, 1, 1, 1, 0, streams[1], arguments, NULL);
  __atomic_add_fetch(&call->calls, 1, __ATOMIC_RELEASE);
}

static void called_back(CUstream stream, CUresult status, void *data) {
  if (stream == streams[0] && status == CUDA_SUCCESS)
    launches(data);
}

/* Many, into a stream that waits for this very function to return. */
static void launches_many(void *data) {
  struct call *call = data;
  void *arguments[] = {&call->ns};
  uint64_t began;
  while (!__atomic_load_n(&call->go, __ATOMIC_ACQUIRE))
    usleep(100); /* the stream waits */
  began = now();
  for (int i = 0; i < 40; i++)
    OK(cuLaunchKernel(kernels[0], 1, 1, 1, 1, 1, 1, 0, streams[1], arguments, NULL));
  call->took = now() - began;
}

static void bounded(struct call *call) {
  CUevent returned;
  OK(cuEventCreate(&returned, 2 /* no timing */));
  OK(cuLaunchHostFunc(streams[0], launches_many, call));
  OK(cuEventRecord(returned, streams[0]));
  OK(cuStreamWaitEvent(streams[1], returned, 0));
  __atomic_store_n(&call->go, 1, __ATOMIC_RELEASE);
  OK(cuCtxSynchronize());
  printf("{\"took_ns\": %llu}\n", (unsigned long long)call->took);
}

static void nothing(void *unused) { (void)unused; }

static CUgraphNode host_node(CUgraph graph, const CUDA_HOST_NODE_PARAMS *how) {
  CUgraphNode node;
  OK(cuGraphAddHostNode(&node, graph, NULL, 0, how));
  return node;
}

static CUgraphExec executable(CUgraph graph) {
  CUgraphExec made;
  OK(cuGraphInstantiateWithFlags(&made, graph, 0));
  return made;
}

/* A graph that calls `launches`, made in the way of its mode. */
static CUgraphExec graph_of(const char *mode, struct call *call) {
  const CUDA_HOST_NODE_PARAMS how = {launches, call}, other = {nothing, NULL};
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = how};
  CUgraphNode node;
  CUgraphExec made;
  CUgraph graph;
  if (!strcmp(mode, "captured")) {
    OK(cuStreamBeginCapture_v2(streams[0], 0));
    OK(cuLaunchHostFunc(streams[0], launches, call));
    OK(cuStreamEndCapture(streams[0], &graph));
    return executable(graph);
  }
  OK(cuGraphCreate(&graph, 0));
  if (!strcmp(mode, "node")) {
    host_node(graph, &how);
  } else if (!strcmp(mode, "anynode")) {
    OK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &any));
  } else {
    node = host_node(graph, &other);
    if (!strcmp(mode, "changed"))
      OK(cuGraphHostNodeSetParams(node, &how));
    made = executable(graph);
    if (!strcmp(mode, "execchanged"))
      OK(cuGraphExecHostNodeSetParams(made, node, &how));
    if (!strcmp(mode, "anychanged"))
      OK(cuGraphExecNodeSetParams(made, node, &any));
    return made;
  }
  return executable(graph);
}

/* Functions by the hundred, as languages make them that build one for each closure: 16 bytes of code each. */
static void many(void) {
  enum { FUNCTIONS = 600, BYTES = 16 };
  static unsigned called[FUNCTIONS];
  unsigned wrong = 0;
  unsigned char *code =
      mmap(NULL, FUNCTIONS * BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code == MAP_FAILED)
    exit(4);
  for (unsigned i = 0; i < FUNCTIONS; i++) {
#if defined(__x86_64__)
    /* addl $i, (%rdi); ret */
    const unsigned char add[] = {0x81, 0x07, (unsigned char)i, (unsigned char)(i >> 8), 0, 0, 0xc3};
#else
    /* w1 = [x0] + i; [x0] = w1; ret */
    const uint32_t add[] = {0xb9400001, 0x11000021 | i << 10, 0xb9000001, 0xd65f03c0};
#endif
    memcpy(code + (size_t)i * BYTES, add, sizeof add);
  }
  __builtin___clear_cache((char *)code, (char *)code + FUNCTIONS * BYTES);
  for (int round = 0; round < 2; round++)
    for (unsigned i = 0; i < FUNCTIONS; i++) {
      CUhostFn function;
      void *at = code + (size_t)i * BYTES;
      memcpy(&function, &at, sizeof function);
      OK(cuLaunchHostFunc(streams[i & 1], function, &called[i]));
    }
  OK(cuCtxSynchronize());
  for (unsigned i = 0; i < FUNCTIONS; i++)
    wrong += called[i] != 2 * i;
  printf("{\"functions\": %d, \"wrong\": %u}\n", FUNCTIONS, wrong);
}

int main(int argc, char **argv) {
  const char *mode = argv[1];
  struct call call = {.ns = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000};
  char line[16];
  start(argv[2]);
  if (!strcmp(mode, "many")) {
    many();
    return 0;
  }
  for (int i = 0; i < 3; i++)
    spin(0, call.ns, streams[1]); /* how long it takes is known by now */
  OK(cuCtxSynchronize());
  if (!strcmp(mode, "bounded")) {
    bounded(&call);
    return 0;
  }
  if (!strcmp(mode, "function"))
    OK(cuLaunchHostFunc(streams[0], launches, &call));
  else if (!strcmp(mode, "callback"))
    OK(cuStreamAddCallback(streams[0], called_back, &call, 0));
  else
    OK(cuGraphLaunch(graph_of(mode, &call), streams[0]));
  printf("{\"before_ns\": %llu}\n", (unsigned long long)truth);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin))
    return 3;
  __atomic_store_n(&call.go, 1, __ATOMIC_RELEASE);
  OK(cuStreamSynchronize(streams[0]));
  OK(cuStreamSynchronize(streams[1]));
  printf("{\"calls\": %d, \"answer\": %d}\n", __atomic_load_n(&call.calls, __ATOMIC_ACQUIRE), call.answer);
  fflush(stdout);
  /* the thread that called back is an ordinary one again */
  spin(0, 1000, streams[1]);
  OK(cuCtxSynchronize());
  printf("{\"truth_ns\": %llu}\n", (unsigned long long)(truth + call.ns));
  return 0;
}
