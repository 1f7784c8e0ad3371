/* Kernels and graphs. */
#include "rows.h"

static CUlaunchConfig shape_on(CUstream on) {
  return (CUlaunchConfig){
      .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .hStream = on};
}

void row_cuLaunchKernel(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  if (done(r, work(r)->cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, given(r), k.params, NULL)))
    kernel_ran(r, &k);
  capture(r, on);
  done(r, start(r)->cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, given(r), k.params, NULL));
  captured(r, on, 1);
}

void row_cuLaunchKernelEx(struct rows *r) {
  CUstream on = stream(r);
  const CUlaunchConfig shape = shape_on(given(r));
  struct kernel k;
  kernel_ready(r, &k, on);
  if (done(r, work(r)->cuLaunchKernelEx(&shape, k.function, k.params, NULL)))
    kernel_ran(r, &k);
  capture(r, on);
  done(r, start(r)->cuLaunchKernelEx(&shape, k.function, k.params, NULL));
  captured(r, on, 1);
}

void row_cuLaunchCooperativeKernelMultiDevice(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  CUDA_LAUNCH_PARAMS list[] = {{.function = k.function,
                                .gridDimX = 1,
                                .gridDimY = 1,
                                .gridDimZ = 1,
                                .blockDimX = 1,
                                .blockDimY = 1,
                                .blockDimZ = 1,
                                .hStream = on,
                                .kernelParams = k.params}};
  if (done(r, work(r)->cuLaunchCooperativeKernelMultiDevice(list, 1, 0)))
    kernel_ran(r, &k);
}

/* The oldest launch functions take the shape and the arguments from the function. */
static void kernel_set(struct rows *r, struct kernel *k) {
  need(r, cuFuncSetBlockShape(k->function, 1, 1, 1), "a block's shape");
  need(r, cuParamSetSize(k->function, sizeof k->ns), "the size of the arguments");
  need(r, cuParamSetv(k->function, 0, &k->ns, sizeof k->ns), "the argument");
}

void row_cuLaunch(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, NULL);
  kernel_set(r, &k);
  if (done(r, work(r)->cuLaunch(k.function)))
    kernel_ran(r, &k);
}

void row_cuLaunchGridAsync(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  kernel_set(r, &k);
  if (done(r, work(r)->cuLaunchGridAsync(k.function, 1, 1, given(r))))
    kernel_ran(r, &k);
  if (captured_too(r)) {
    done(r, start(r)->cuLaunchGridAsync(k.function, 1, 1, given(r)));
    captured(r, on, 1);
  }
}

void row_cuGraphLaunch(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  CUgraphExec exec = instantiated(r, kernel_graph(r, &k));
  need(r, cuEventRecord(k.before, on), "record an event");
  if (done(r, work(r)->cuGraphLaunch(exec, given(r))))
    kernel_ran(r, &k);
  capture(r, on);
  done(r, start(r)->cuGraphLaunch(exec, given(r)));
  captured(r, on, 1);
}

/* ---- captures: captured work is neither gated nor counted; the resulting graph is, when it is launched ---- */

/* Captures a kernel, ends the capture, and launches the graph. */
static void captures(struct rows *r, struct kernel *k) {
  CUstream on = k->stream;
  CUstreamCaptureStatus status = -1;
  need(r, cuStreamIsCapturing(on, &status), "is it captured");
  expect(r, status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the stream is not captured");
  need(r, cuLaunchKernel(k->function, 1, 1, 1, 1, 1, 1, 0, on, k->params, NULL), "capture a kernel");
  CUgraphExec exec = instantiated(r, captured(r, on, 1));
  lease(r);
  need(r, cuGraphLaunch(exec, on), "launch the graph");
  kernel_ran(r, k);
}

void row_cuStreamBeginCapture_v2(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, stream(r));
  if (done(r, start(r)->cuStreamBeginCapture_v2(given(r), CU_STREAM_CAPTURE_MODE_RELAXED)))
    captures(r, &k);
}

void row_cuStreamBeginCaptureToGraph(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, stream(r));
  CUgraph graph = empty_graph(r);
  if (done(r, start(r)->cuStreamBeginCaptureToGraph(given(r), graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED)))
    captures(r, &k);
}

void row_cuStreamEndCapture(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  CUgraph graph = NULL;
  kernel_ready(r, &k, on);
  capture(r, on);
  need(r, cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, on, k.params, NULL), "capture a kernel");
  if (!done(r, start(r)->cuStreamEndCapture(given(r), &graph)))
    return;
  CUgraphExec exec = instantiated(r, graph);
  lease(r); /* the capture has ended: from here on it is work */
  need(r, cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, on, k.params, NULL), "launch the kernel");
  lease(r);
  need(r, cuGraphLaunch(exec, on), "launch the graph");
  kernel_ran(r, &k);
}

/* ---- instantiation and upload of graphs ---- */

/* A graph of one kernel. */
static CUgraph graph_of(struct rows *r, struct kernel *k) {
  kernel_ready(r, k, stream(r));
  return kernel_graph(r, k);
}

void row_cuGraphInstantiate_v2(struct rows *r) {
  struct kernel k;
  CUgraph graph = graph_of(r, &k);
  CUgraphExec exec = NULL;
  if (done(r, start(r)->cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0)))
    graph_runs(r, exec, &k);
}

void row_cuGraphInstantiateWithFlags(struct rows *r) {
  struct kernel k;
  CUgraph graph = graph_of(r, &k);
  CUgraphExec exec = NULL;
  if (done(r, start(r)->cuGraphInstantiateWithFlags(&exec, graph, 0)))
    graph_runs(r, exec, &k);
}

void row_cuGraphInstantiateWithParams(struct rows *r) {
  struct kernel k;
  CUgraph graph = graph_of(r, &k);
  CUgraphExec exec = NULL;
  CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
  if (done(r, start(r)->cuGraphInstantiateWithParams(&exec, graph, &how)))
    graph_runs(r, exec, &k);
}

void row_cuGraphUpload(struct rows *r) {
  struct kernel k;
  CUgraphExec exec = instantiated(r, graph_of(r, &k));
  if (done(r, start(r)->cuGraphUpload(exec, given(r))))
    graph_runs(r, exec, &k);
}

void row_cuDeviceGraphMemTrim(struct rows *r) {
  context(r);
  done(r, start(r)->cuDeviceGraphMemTrim(r->device));
}
