/* Captures: captured work is neither gated nor counted; the resulting graph is, when it is launched. */
#include "rows.h"

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

void row_cuStreamBeginCapture(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, stream(r));
  if (done(r, start(r)->cuStreamBeginCapture(k.stream)))
    captures(r, &k);
}

void row_cuStreamBeginCapture_ptsz(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, CU_STREAM_PER_THREAD);
  if (done(r, start(r)->cuStreamBeginCapture_ptsz(NULL)))
    captures(r, &k);
}

void row_cuStreamBeginCapture_v2(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, stream(r));
  if (done(r, start(r)->cuStreamBeginCapture_v2(k.stream, CU_STREAM_CAPTURE_MODE_RELAXED)))
    captures(r, &k);
}

void row_cuStreamBeginCapture_v2_ptsz(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, CU_STREAM_PER_THREAD);
  if (done(r, start(r)->cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_RELAXED)))
    captures(r, &k);
}

void row_cuStreamBeginCaptureToGraph(struct rows *r) {
  CUgraph graph = NULL;
  struct kernel k;
  kernel_ready(r, &k, stream(r));
  need(r, cuGraphCreate(&graph, 0), "a graph");
  if (done(r, start(r)->cuStreamBeginCaptureToGraph(k.stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED)))
    captures(r, &k);
}

void row_cuStreamBeginCaptureToGraph_ptsz(struct rows *r) {
  CUgraph graph = NULL;
  struct kernel k;
  kernel_ready(r, &k, CU_STREAM_PER_THREAD);
  need(r, cuGraphCreate(&graph, 0), "a graph");
  if (done(r, start(r)->cuStreamBeginCaptureToGraph_ptsz(NULL, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED)))
    captures(r, &k);
}

void row_cuStreamEndCapture(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  CUgraph graph = NULL;
  kernel_ready(r, &k, on);
  capture(r, on);
  need(r, cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, on, k.params, NULL), "capture a kernel");
  if (!done(r, start(r)->cuStreamEndCapture(on, &graph)))
    return;
  CUgraphExec exec = instantiated(r, graph);
  lease(r); /* the capture has ended: from here on it is work */
  need(r, cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, on, k.params, NULL), "launch the kernel");
  lease(r);
  need(r, cuGraphLaunch(exec, on), "launch the graph");
  kernel_ran(r, &k);
}

void row_cuStreamEndCapture_ptsz(struct rows *r) {
  struct kernel k;
  CUgraph graph = NULL;
  kernel_ready(r, &k, CU_STREAM_PER_THREAD);
  capture(r, CU_STREAM_PER_THREAD);
  need(r, cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, k.params, NULL), "capture a kernel");
  if (!done(r, start(r)->cuStreamEndCapture_ptsz(NULL, &graph)))
    return;
  CUgraphExec exec = instantiated(r, graph);
  lease(r); /* the capture has ended: from here on it is work */
  need(r, cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, k.params, NULL), "launch the kernel");
  lease(r);
  need(r, cuGraphLaunch(exec, CU_STREAM_PER_THREAD), "launch the graph");
  kernel_ran(r, &k);
}
