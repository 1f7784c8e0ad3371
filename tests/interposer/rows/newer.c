/* Functions that the simulated driver always refuses: they need hardware, a graphics program, or a newer driver. */
#include "rows.h"

static void fabric(struct rows *r, CUresult result) {
  r->tentative = true; /* needs endpoints connected by a switch */
  done(r, result);
}

void row_cuFabricCpyBatchAsync(struct rows *r) {
  CUstream on = stream(r);
  fabric(r, work(r)->cuFabricCpyBatchAsync(0, NULL, 0, on));
}

void row_cuFabricCpyBatchAsync_ptsz(struct rows *r) {
  context(r);
  fabric(r, work(r)->cuFabricCpyBatchAsync_ptsz(0, NULL, 0, NULL));
}

/* A refused capture leaves no capture open: work is still gated and metered. */
static void refused_capture(struct rows *r, CUresult result) {
  struct kernel k;
  r->tentative = true;
  done(r, result);
  kernel_ready(r, &k, stream(r));
  lease(r);
  need(r, cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, k.stream, k.params, NULL), "launch the kernel");
  kernel_ran(r, &k);
}

static CUgraph empty_graph(struct rows *r) {
  CUgraph graph = NULL;
  context(r);
  need(r, cuGraphCreate(&graph, 0), "a graph");
  return graph;
}

void row_cuStreamBeginRecaptureToGraph(struct rows *r) {
  CUgraph graph = empty_graph(r);
  CUstream on = stream(r);
  refused_capture(r, start(r)->cuStreamBeginRecaptureToGraph(on, 0, graph, NULL, NULL));
}

void row_cuStreamBeginRecaptureToGraph_ptsz(struct rows *r) {
  CUgraph graph = empty_graph(r);
  refused_capture(r, start(r)->cuStreamBeginRecaptureToGraph_ptsz(NULL, 0, graph, NULL, NULL));
}

void row_cuStreamBeginCaptureToCig(struct rows *r) {
  CUstream on = stream(r);
  refused_capture(r, start(r)->cuStreamBeginCaptureToCig(on, NULL));
}

void row_cuStreamBeginCaptureToCig_ptsz(struct rows *r) {
  context(r);
  refused_capture(r, start(r)->cuStreamBeginCaptureToCig_ptsz(NULL, NULL));
}

void row_cuStreamEndCaptureToCig(struct rows *r) {
  CUstream on = stream(r);
  refused_capture(r, start(r)->cuStreamEndCaptureToCig(on));
}

void row_cuStreamEndCaptureToCig_ptsz(struct rows *r) {
  context(r);
  refused_capture(r, start(r)->cuStreamEndCaptureToCig_ptsz(NULL));
}
