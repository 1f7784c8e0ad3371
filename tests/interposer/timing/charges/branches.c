/* Graphs whose launches take as long as their conditions say: branches MODE PTX N. Prints the device time of the
 * kernels that were launched, then waits for its input to end. */
#include "program.h"

enum { CHANGE_NS = 10000 /* duration of a kernel that changes a condition or launches a graph */ };
static CUfunction set, count, launch;
static CUgraphExec exec;
static CUgraphNode setting;
static CUgraphConditionalHandle handle;

static CUgraphNode add(CUgraph graph, CUfunction function, void **arguments, const CUgraphNode *after) {
  CUgraphNode node;
  CUDA_KERNEL_NODE_PARAMS params = {function, 1, 1, 1, 1, 1, 1, 0, arguments, NULL, NULL, NULL};
  OK(cuGraphAddKernelNode_v2(&node, graph, after, after != NULL, &params));
  return node;
}

/* Adds a kernel that sets the condition, and a conditional node; returns its bodies. */
static CUgraph *begin(CUgraph graph, int type, unsigned size) {
  unsigned value = 0;
  CUgraphNode node;
  OK(cuGraphConditionalHandleCreate(&handle, graph, context, 0, CU_GRAPH_COND_ASSIGN_DEFAULT));
  setting = add(graph, set, (void *[]){&handle, &value}, NULL);
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                              .conditional = {handle, type, size, NULL, context}};
  OK(cuGraphAddNode(&node, graph, &setting, 1, &params));
  return params.conditional.phGraph_out;
}

static void run(unsigned value) {
  void *arguments[] = {&handle, &value};
  CUDA_KERNEL_NODE_PARAMS params = {set, 1, 1, 1, 1, 1, 1, 0, arguments, NULL, NULL, NULL};
  OK(cuGraphExecKernelNodeSetParams_v2(exec, setting, &params));
  OK(cuGraphLaunch(exec, streams[0]));
  truth += CHANGE_NS;
}

/* A body of 1 ms, taken in every third launch; with waits, every launch is waited for. */
static void branches(CUgraph graph, int n, bool waits) {
  uint64_t ns = 1000000;
  CUgraph *body = begin(graph, CU_GRAPH_COND_TYPE_IF, 1);
  add(body[0], kernels[0], (void *[]){&ns}, NULL);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < n; i++) {
    run(i % 3 == 0);
    truth += i % 3 == 0 ? ns : 0;
    if (waits)
      OK(cuStreamSynchronize(streams[0]));
  }
}

/* A body of 100 us that runs 0 to 39 times. */
static void loops(CUgraph graph, int n, bool waits) {
  uint64_t ns = 100000;
  CUgraph *body = begin(graph, CU_GRAPH_COND_TYPE_WHILE, 1);
  CUgraphNode spun = add(body[0], kernels[0], (void *[]){&ns}, NULL);
  add(body[0], count, (void *[]){&handle}, &spun);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < n; i++) {
    unsigned rounds = (unsigned)i * 7919 % 40;
    run(rounds);
    truth += rounds * (ns + CHANGE_NS);
    if (waits)
      OK(cuStreamSynchronize(streams[0]));
  }
}

/* One of three bodies, of 0.2, 0.8 and 3.2 ms, or none. */
static void switches(CUgraph graph, int n, bool waits) {
  uint64_t ns[] = {200000, 800000, 3200000};
  CUgraph *body = begin(graph, CU_GRAPH_COND_TYPE_SWITCH, 3);
  for (int i = 0; i < 3; i++)
    add(body[i], kernels[0], (void *[]){&ns[i]}, NULL);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < n; i++) {
    unsigned value = (unsigned)i * 7919 % 41 % 4;
    run(value);
    truth += value < 3 ? ns[value] : 0;
    if (waits)
      OK(cuStreamSynchronize(streams[0]));
  }
}

/* A kernel that launches another graph, of 0.5 ms, from the device. */
static void launches(CUgraph graph, int n, bool waits) {
  uint64_t ns = 500000;
  CUgraph inner;
  CUgraphExec target;
  OK(cuGraphCreate(&inner, 0));
  add(inner, kernels[0], (void *[]){&ns}, NULL);
  OK(cuGraphInstantiateWithFlags(&target, inner, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
  OK(cuGraphUpload(target, streams[0]));
  add(graph, launch, (void *[]){&target}, NULL);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < n; i++) {
    OK(cuGraphLaunch(exec, streams[0]));
    truth += ns + CHANGE_NS;
    if (waits)
      OK(cuStreamSynchronize(streams[0]));
  }
}

int main(int argc, char **argv) {
  static char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                      ".visible .entry set_conditional(.param .u64 handle, .param .u32 value)\n{\n  ret;\n}\n"
                      ".visible .entry launch_graph(.param .u64 exec)\n{\n  ret;\n}\n"
                      ".visible .entry count_conditional(.param .u64 handle)\n{\n  ret;\n}\n";
  CUmodule module;
  CUgraph graph;
  if (argc < 4)
    return 2;
  start(argv[2]);
  OK(cuModuleLoadData(&module, ptx));
  OK(cuModuleGetFunction(&set, module, "set_conditional"));
  OK(cuModuleGetFunction(&launch, module, "launch_graph"));
  OK(cuModuleGetFunction(&count, module, "count_conditional"));
  OK(cuGraphCreate(&graph, 0));
  int n = atoi(argv[3]);
  bool waits = strstr(argv[1], "wait") != NULL;
  if (argv[1][0] == 'i')
    branches(graph, n, waits);
  else if (argv[1][0] == 'w')
    loops(graph, n, waits);
  else if (argv[1][0] == 'd')
    launches(graph, n, waits);
  else
    switches(graph, n, waits);
  OK(cuStreamSynchronize(streams[0]));
  report("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
  return stay();
}
