/* Work submitted where a program must not be held back. */
#include "duel.h"

static CUstream chain;
static CUgraphExec host_graph;

/* A host function launches the next kernel and the next host function: no other thread ever submits. */
static void again(void *stream) {
  MUST(cuCtxSetCurrent(duel.context));
  spin(stream, 10 * MS);
  MUST(cuLaunchHostFunc(stream, again, stream));
}

static void host_function_chain(void) {
  for (int i = 0; i < 4; i++) {
    chain = new_stream();
    MUST(cuLaunchHostFunc(chain, again, chain));
  }
  begin();
  for (;;)
    sleep_ns(1000 * (uint64_t)MS);
}

static void callback_again(CUstream stream, CUresult result, void *unused) {
  (void)unused;
  MUST(result);
  MUST(cuCtxSetCurrent(duel.context));
  spin(stream, 10 * MS);
  MUST(cuStreamAddCallback(stream, callback_again, NULL, 0));
}

static void callback_chain(void) {
  for (int i = 0; i < 4; i++)
    MUST(cuStreamAddCallback(new_stream(), callback_again, NULL, 0));
  begin();
  for (;;)
    sleep_ns(1000 * (uint64_t)MS);
}

/* One host function that never ends and submits everything. */
static void floods(void *stream) {
  MUST(cuCtxSetCurrent(duel.context));
  for (;;) {
    for (int i = 0; i < 4; i++)
      spin(stream, 10 * MS);
    sleep_ns(40 * MS);
  }
}

static void host_function_endless(void) {
  chain = new_stream();
  MUST(cuLaunchHostFunc(new_stream(), floods, chain));
  begin();
  for (;;)
    sleep_ns(1000 * (uint64_t)MS);
}

/* A host node of a graph launches the next graph, elsewhere. */
static void next_graph(void *unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(duel.context));
  spin(chain, 10 * MS);
  MUST(cuGraphLaunch(host_graph, chain));
}

static void host_node_chain(void) {
  CUDA_HOST_NODE_PARAMS params = {next_graph, NULL};
  CUgraph graph;
  CUgraphNode node;
  chain = new_stream();
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphAddHostNode(&node, graph, NULL, 0, &params));
  MUST(cuGraphInstantiateWithFlags(&host_graph, graph, 0));
  MUST(cuGraphLaunch(host_graph, chain));
  begin();
  for (;;)
    sleep_ns(1000 * (uint64_t)MS);
}

/* Destructors of user objects run on a thread of the driver as well. */
static void destructor(void *unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(duel.context));
  for (int i = 0; i < 4; i++)
    spin(chain, 10 * MS);
}

static void user_objects(void) {
  chain = new_stream();
  begin();
  for (;;) {
    CUuserObject object;
    MUST(cuUserObjectCreate(&object, NULL, destructor, 1, 1));
    MUST(cuUserObjectRelease(object, 1));
    MUST(cuStreamSynchronize(chain));
  }
}

const struct evasion callback_evasions[] = {
    {.name = "host-function-chain",
     .about = "each host function launches a kernel and the next host function",
     .run = host_function_chain},
    {.name = "callback-chain",
     .about = "each callback launches a kernel and adds the next callback",
     .run = callback_chain},
    {.name = "host-function-endless",
     .about = "one host function that never returns submits everything",
     .run = host_function_endless},
    {.name = "host-node-chain",
     .about = "a graph's host node launches a kernel and the graph again",
     .run = host_node_chain},
    {.name = "user-objects", .about = "the destructors of user objects submit everything", .run = user_objects},
    {0},
};
