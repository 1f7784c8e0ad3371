/* Instantiation and upload of graphs. */
#include "rows.h"

/* A graph of one kernel. */
static CUgraph graph_of(struct rows *r, struct kernel *k) {
  kernel_ready(r, k, stream(r));
  capture(r, k->stream);
  need(r, cuLaunchKernel(k->function, 1, 1, 1, 1, 1, 1, 0, k->stream, k->params, NULL), "capture a kernel");
  return captured(r, k->stream, 1);
}

static void runs(struct rows *r, CUgraphExec exec, struct kernel *k) {
  lease(r);
  need(r, cuEventRecord(k->before, k->stream), "record an event");
  need(r, cuGraphLaunch(exec, k->stream), "launch the graph");
  kernel_ran(r, k);
}

void row_cuGraphInstantiate(struct rows *r) {
  struct kernel k;
  CUgraph graph = graph_of(r, &k);
  CUgraphExec exec = NULL;
  if (done(r, start(r)->cuGraphInstantiate(&exec, graph, NULL, NULL, 0)))
    runs(r, exec, &k);
}

void row_cuGraphInstantiate_v2(struct rows *r) {
  struct kernel k;
  CUgraph graph = graph_of(r, &k);
  CUgraphExec exec = NULL;
  if (done(r, start(r)->cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0)))
    runs(r, exec, &k);
}

void row_cuGraphInstantiateWithFlags(struct rows *r) {
  struct kernel k;
  CUgraph graph = graph_of(r, &k);
  CUgraphExec exec = NULL;
  if (done(r, start(r)->cuGraphInstantiateWithFlags(&exec, graph, 0)))
    runs(r, exec, &k);
}

void row_cuGraphInstantiateWithParams(struct rows *r) {
  struct kernel k;
  CUgraph graph = graph_of(r, &k);
  CUgraphExec exec = NULL;
  CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
  if (done(r, start(r)->cuGraphInstantiateWithParams(&exec, graph, &how)))
    runs(r, exec, &k);
}

void row_cuGraphInstantiateWithParams_ptsz(struct rows *r) {
  struct kernel k;
  CUgraph graph = graph_of(r, &k);
  CUgraphExec exec = NULL;
  CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
  if (done(r, start(r)->cuGraphInstantiateWithParams_ptsz(&exec, graph, &how)))
    runs(r, exec, &k);
}

void row_cuGraphUpload(struct rows *r) {
  struct kernel k;
  CUgraphExec exec = instantiated(r, graph_of(r, &k));
  if (done(r, start(r)->cuGraphUpload(exec, k.stream)))
    runs(r, exec, &k);
}

void row_cuGraphUpload_ptsz(struct rows *r) {
  struct kernel k;
  CUgraphExec exec = instantiated(r, graph_of(r, &k));
  if (done(r, start(r)->cuGraphUpload_ptsz(exec, k.stream)))
    runs(r, exec, &k);
}

void row_cuDeviceGraphMemTrim(struct rows *r) {
  context(r);
  done(r, start(r)->cuDeviceGraphMemTrim(r->device));
}
