/* Functions that the simulated driver always refuses: they need hardware, a graphics program, or a newer driver. */
#include "rows.h"

static void fabric(struct rows *r, CUresult result) {
  r->tentative = true; /* needs endpoints connected by a switch */
  done(r, result);
}

void row_cuFabricCpyBatchAsync(struct rows *r) {
  CUstream on = given(r);
  fabric(r, work(r)->cuFabricCpyBatchAsync(0, NULL, 0, on));
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

void row_cuStreamBeginRecaptureToGraph(struct rows *r) {
  CUgraph graph = empty_graph(r);
  refused_capture(r, start(r)->cuStreamBeginRecaptureToGraph(given(r), 0, graph, NULL, NULL));
}

void row_cuStreamBeginCaptureToCig(struct rows *r) {
  CUstream on = given(r);
  refused_capture(r, start(r)->cuStreamBeginCaptureToCig(on, NULL));
}

void row_cuStreamEndCaptureToCig(struct rows *r) {
  CUstream on = given(r);
  refused_capture(r, start(r)->cuStreamEndCaptureToCig(on));
}
