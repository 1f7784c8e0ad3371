#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void launch(struct worker *w, uint64_t amount) {
  struct kernel *k = &w->kernel;
  void *arguments[] = {&amount, &k->data, &k->floats};
  MUST(cuLaunchKernel(k->function, k->grid, 1, 1, k->block, 1, 1, 0, w->stream, arguments, NULL));
}

void work_start(struct worker *w, int ordinal, const char *module, const char *kernel, struct calibration cost) {
  int processors;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&w->device, ordinal));
  MUST(cuDevicePrimaryCtxRetain(&w->context, w->device));
  MUST(cuCtxSetCurrent(w->context));
  MUST(cuModuleLoadData(&w->module, read_file(module)));
  MUST(cuModuleGetFunction(&w->kernel.function, w->module, kernel));
  MUST(cuDeviceGetAttribute(&processors, ATTRIBUTE_MULTIPROCESSORS, w->device));
  MUST(cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
  for (unsigned i = 0; i < DEPTH_MAX; i++) {
    MUST(cuEventCreate(&w->flight[i].begin, 0));
    MUST(cuEventCreate(&w->flight[i].end, 0));
  }
  MUST(cuEventCreate(&w->first, CU_EVENT_DISABLE_TIMING));
  w->kernel.timed = strcmp(kernel, "spin_ns") == 0;
  w->kernel.cost = cost;
  w->kernel.grid = w->kernel.timed ? 1 : (unsigned)processors * 8; /* blocks of 256: see kernels.cu */
  w->kernel.block = w->kernel.timed ? 1 : 256;
  if (w->kernel.timed)
    return;
  MUST(cuMemAlloc_v2(&w->kernel.data, DATA_BYTES));
  MUST(cuMemsetD8Async(w->kernel.data, 0x3c, DATA_BYTES, w->stream));
  w->kernel.floats = DATA_BYTES / sizeof(float);
  launch(w, 1); /* the driver loads a kernel when it is first launched: not within what is measured */
  MUST(cuStreamSynchronize(w->stream));
}

static uint64_t amount_of(const struct worker *w, uint64_t ns) {
  return w->kernel.timed ? ns : calibrated_amount(&w->kernel.cost, ns);
}

static double span_of(const struct flight *flight) {
  float ms;
  MUST(cuEventElapsedTime(&ms, flight->begin, flight->end));
  return (double)ms * 1e6;
}

static double time_of(void *worker, unsigned launches, uint64_t amount) {
  struct worker *w = worker;
  MUST(cuEventRecord(w->flight[0].begin, w->stream));
  for (unsigned i = 0; i < launches; i++)
    launch(w, amount);
  MUST(cuEventRecord(w->flight[0].end, w->stream));
  MUST(cuEventSynchronize(w->flight[0].end));
  return span_of(&w->flight[0]);
}

bool work_calibrate(struct worker *w) { return w->kernel.timed || calibrate(time_of, w, &w->kernel.cost); }

static void capture(struct worker *w, const struct unit *unit) {
  CUgraph graph;
  if (w->graph && w->captured.kernels == unit->kernels && w->captured.kernel_ns == unit->kernel_ns)
    return;
  if (w->graph)
    MUST(cuGraphExecDestroy(w->graph));
  MUST(cuStreamBeginCapture_v2(w->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (unsigned i = 0; i < unit->kernels; i++)
    launch(w, amount_of(w, unit->kernel_ns));
  MUST(cuStreamEndCapture(w->stream, &graph));
  MUST(cuGraphInstantiateWithFlags(&w->graph, graph, 0));
  MUST(cuGraphDestroy(graph));
  w->captured = *unit;
}

static void copy(struct worker *w, size_t bytes) {
  if (w->host_bytes < bytes) {
    MUST(cuMemHostAlloc(&w->host, bytes, 0));
    MUST(cuMemAlloc_v2(&w->landing, bytes));
    w->host_bytes = bytes;
  }
  MUST(cuMemcpyHtoDAsync_v2(w->landing, w->host, bytes, w->stream));
}

static void spin_until(uint64_t at) {
  while (now_ns() < at)
    __builtin_ia32_pause();
}

static void launches(struct worker *w, const struct unit *unit) {
  uint64_t amount = amount_of(w, unit->kernel_ns), next = now_ns();
  for (unsigned i = 0; i < unit->kernels; i++) {
    launch(w, amount);
    if (unit->gap_ns)
      spin_until(next += unit->kernel_ns + unit->gap_ns);
  }
}

/* A launch of next to nothing, waited for. */
static uint64_t first_launch(struct worker *w) {
  uint64_t wanted = now_ns();
  launch(w, amount_of(w, 1000));
  MUST(cuEventRecord(w->first, w->stream));
  MUST(cuEventSynchronize(w->first));
  return now_ns() - wanted;
}

uint64_t work_submit(struct worker *w, const struct unit *unit) {
  uint64_t woke = unit->wake ? first_launch(w) : 0;
  struct flight *flight = &w->flight[w->head++ % DEPTH_MAX];
  if (unit->graph)
    capture(w, unit);
  flight->submitted = now_ns();
  MUST(cuEventRecord(flight->begin, w->stream));
  if (unit->copy)
    copy(w, unit->copy);
  if (unit->graph)
    MUST(cuGraphLaunch(w->graph, w->stream));
  else
    launches(w, unit);
  MUST(cuEventRecord(flight->end, w->stream));
  return woke;
}

void work_reap(struct worker *w, double *span_ns, double *latency_ns) {
  struct flight *oldest = &w->flight[w->tail++ % DEPTH_MAX];
  MUST(cuEventSynchronize(oldest->end));
  *latency_ns = (double)(now_ns() - oldest->submitted);
  *span_ns = span_of(oldest);
}
