/* Host functions as graph nodes: each launch calls the function set last, with its own data, and queries return what
 * the program set. */
#include "rows.h"

static void count_up(void *number) { __atomic_add_fetch((unsigned *)number, 1, __ATOMIC_RELEASE); }
static void count_ten(void *number) { __atomic_add_fetch((unsigned *)number, 10, __ATOMIC_RELEASE); }

/* Two launches of the graph leave `wanted` in `number`. */
static void twice(struct rows *r, CUgraph graph, unsigned *number, unsigned wanted) {
  CUgraphExec exec = instantiated(r, graph);
  for (int i = 0; i < 2; i++) {
    lease(r);
    need(r, cuGraphLaunch(exec, stream(r)), "launch the graph");
  }
  settle(r);
  expect(r, __atomic_load_n(number, __ATOMIC_ACQUIRE) == wanted, "not called once a launch");
}

void row_cuGraphAddHostNode(struct rows *r) {
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  unsigned number = 0;
  const CUDA_HOST_NODE_PARAMS how = {count_up, &number};
  if (done(r, start(r)->cuGraphAddHostNode(&node, graph, NULL, 0, &how)))
    twice(r, graph, &number, 2);
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuGraphAddHostNode(&node, graph, NULL, 0, NULL));
}

void row_cuGraphHostNodeSetParams(struct rows *r) {
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  unsigned first = 0, second = 0;
  const CUDA_HOST_NODE_PARAMS before = {count_up, &first}, how = {count_ten, &second};
  need(r, cuGraphAddHostNode(&node, graph, NULL, 0, &before), "a call in it");
  if (done(r, start(r)->cuGraphHostNodeSetParams(node, &how)))
    twice(r, graph, &second, 20);
  expect(r, first == 0, "the old function was called");
}

void row_cuGraphHostNodeGetParams(struct rows *r) {
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  unsigned number = 0;
  const CUDA_HOST_NODE_PARAMS how = {count_up, &number};
  CUDA_HOST_NODE_PARAMS is = {NULL, NULL};
  need(r, cuGraphAddHostNode(&node, graph, NULL, 0, &how), "a call in it");
  if (done(r, start(r)->cuGraphHostNodeGetParams(node, &is)))
    expect(r, is.fn == count_up && is.userData == &number, "another function or other data");
  need(r, cuGraphHostNodeSetParams(node, &is), "as it is");
  twice(r, graph, &number, 2);
}

void row_cuGraphAddNode_v3(struct rows *r) {
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  unsigned number = 0;
  CUgraphNodeParams how = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {count_up, &number}};
  if (done(r, start(r)->cuGraphAddNode_v3(&node, graph, NULL, NULL, 0, &how)))
    twice(r, graph, &number, 2);
  expect(r, how.host.fn == count_up, "the program's own structure was changed");
}

void row_cuGraphNodeSetParams_v2(struct rows *r) {
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  unsigned first = 0, second = 0;
  const CUDA_HOST_NODE_PARAMS before = {count_up, &first};
  CUgraphNodeParams how = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {count_ten, &second}};
  need(r, cuGraphAddHostNode(&node, graph, NULL, 0, &before), "a call in it");
  if (done(r, start(r)->cuGraphNodeSetParams_v2(node, &how)))
    twice(r, graph, &second, 20);
  expect(r, first == 0, "the old function was called");
}

void row_cuGraphNodeGetParams(struct rows *r) {
  CUgraph graph = empty_graph(r);
  CUgraphNode node = NULL;
  unsigned number = 0;
  const CUDA_HOST_NODE_PARAMS how = {count_up, &number};
  CUgraphNodeParams is = {0};
  need(r, cuGraphAddHostNode(&node, graph, NULL, 0, &how), "a call in it");
  if (done(r, start(r)->cuGraphNodeGetParams(node, &is)))
    expect(r, is.host.fn == count_up && is.host.userData == &number, "another function or other data");
  expect(r, is.type == CU_GRAPH_NODE_TYPE_HOST, "another kind of node");
}
