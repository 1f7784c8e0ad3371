/* Setup of snippets before they call their function, through the linked functions of the driver. */
#include "rows.h"

extern const char rows_ptx[];

enum { KERNEL_NS = 100000, FLOAT32 = 0x20 };

/* ---- contexts, memory ---- */

CUcontext context(struct rows *r) {
  if (r->ctx == NULL) {
    need(r, cuInit(0), "cuInit");
    need(r, cuCtxCreate_v2(&r->ctx, 0, r->device), "a context");
  }
  return r->ctx;
}

CUstream stream(struct rows *r) {
  context(r);
  if (r->row->per_thread)
    return CU_STREAM_PER_THREAD;
  if (r->stream == NULL)
    need(r, cuStreamCreate(&r->stream, 0), "a stream");
  return r->stream;
}

CUstream given(struct rows *r) {
  CUstream on = stream(r);
  return r->row->per_thread ? NULL : on;
}

CUdeviceptr memory(struct rows *r, size_t bytes) {
  CUdeviceptr_v1 narrow = 0;
  CUdeviceptr at = 0;
  context(r);
  bytes = bytes < BYTES ? BYTES : bytes;
  if (!r->row->narrow) {
    need(r, cuMemAlloc_v2(&at, bytes), "device memory");
    return at;
  }
  need(r, cuMemAlloc(&narrow, (unsigned)bytes), "device memory");
  return narrow;
}

CUmemGenericAllocationHandle physical(struct rows *r, CUmemAllocationHandleType kind) {
  const CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .requestedHandleTypes = kind,
                                   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle made = 0;
  context(r);
  need(r, cuMemCreate(&made, GRANULE, &how, 0), "physical memory");
  return made;
}

CUevent new_event(struct rows *r) {
  CUevent event = NULL;
  need(r, cuEventCreate(&event, 0), "an event");
  return event;
}

CUgraph empty_graph(struct rows *r) {
  CUgraph graph = NULL;
  context(r);
  need(r, cuGraphCreate(&graph, 0), "a graph");
  return graph;
}

CUarray array_1d(struct rows *r) {
  const CUDA_ARRAY_DESCRIPTOR about = {.Width = BYTES / 16, .Format = FLOAT32, .NumChannels = 4};
  CUarray array = NULL;
  context(r);
  need(r, cuArrayCreate_v2(&array, &about), "an array");
  return array;
}

CUarray array_2d(struct rows *r) {
  const CUDA_ARRAY_DESCRIPTOR about = {
      .Width = PITCH / 4, .Height = BYTES / PITCH, .Format = FLOAT32, .NumChannels = 1};
  CUarray array = NULL;
  context(r);
  need(r, cuArrayCreate_v2(&array, &about), "an array of rows");
  return array;
}

/* Rows run one after another: eight buffers are enough for each. */
unsigned char *zeroes(void) {
  static unsigned char buffer[8][BYTES];
  static unsigned next;
  return memset(buffer[next++ % 8], 0, BYTES);
}

unsigned char *pattern(void) {
  static unsigned char buffer[BYTES], made[BYTES];
  if (made[0] == 0)
    for (unsigned i = 0; i < BYTES; i++)
      made[i] = (unsigned char)(i * 7 + i / 256 + 1);
  return memcpy(buffer, made, BYTES); /* a row may have spoilt it */
}

void settle(struct rows *r) { need(r, cuCtxSynchronize(), "the context's work ends"); }

void put(struct rows *r, CUdeviceptr to, const void *from, size_t bytes) {
  need(r, cuMemcpyHtoD_v2(to, from, bytes), "a copy to the device");
}

void holds(struct rows *r, CUdeviceptr at, const void *wanted, size_t bytes) {
  unsigned char *got = zeroes();
  settle(r);
  need(r, cuMemcpyDtoH_v2(got, at, bytes), "a copy from the device");
  same(r, got, wanted, bytes, "other bytes on the device");
}

/* Arrays of one and of two dimensions have the same bytes in the same order. */
static CUDA_MEMCPY2D whole_array(struct rows *r, CUarray array) {
  CUDA_ARRAY_DESCRIPTOR about;
  need(r, cuArrayGetDescriptor_v2(&about, array), "what the array is");
  size_t width = about.Width * about.NumChannels * 4;
  return (CUDA_MEMCPY2D){
      .srcPitch = width, .dstPitch = width, .WidthInBytes = width, .Height = about.Height ? about.Height : 1};
}

void array_holds(struct rows *r, CUarray array, const void *wanted) {
  unsigned char *got = zeroes();
  CUDA_MEMCPY2D copy = whole_array(r, array);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = got;
  settle(r);
  need(r, cuMemcpy2D_v2(&copy), "a copy from the array");
  same(r, got, wanted, BYTES, "other bytes in the array");
}

void put_array(struct rows *r, CUarray array, const void *from) {
  CUDA_MEMCPY2D copy = whole_array(r, array);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  need(r, cuMemcpy2D_v2(&copy), "a copy into the array");
}

/* ---- copies ---- */

CUdeviceptr number(const void *at) { return (CUdeviceptr)(uintptr_t)at; }

struct copy copy_ready(struct rows *r) {
  struct copy c = {.from = memory(r, BYTES),
                   .to = memory(r, BYTES),
                   .array_from = array_1d(r),
                   .array_to = array_1d(r),
                   .host_from = pattern(),
                   .host_to = zeroes()};
  put(r, c.from, pattern(), BYTES);
  put(r, c.to, c.host_to, BYTES);
  put_array(r, c.array_from, pattern());
  put_array(r, c.array_to, c.host_to);
  return c;
}

void on_device(struct rows *r, const struct copy *c) { holds(r, c->to, pattern(), BYTES); }
void in_array(struct rows *r, const struct copy *c) { array_holds(r, c->array_to, pattern()); }
void on_host(struct rows *r, const struct copy *c) {
  settle(r);
  same(r, c->host_to, pattern(), BYTES, "other bytes on the host");
}

/* ---- kernels and graphs ---- */

void kernel_ready(struct rows *r, struct kernel *k, CUstream on) {
  context(r);
  *k = (struct kernel){.ns = KERNEL_NS, .stream = on};
  k->params[0] = &k->ns;
  need(r, cuModuleLoadData(&k->module, rows_ptx), "the module");
  need(r, cuModuleGetFunction(&k->function, k->module, "spin_ns"), "the kernel");
  need(r, cuEventCreate(&k->before, 0), "an event");
  need(r, cuEventCreate(&k->after, 0), "an event");
  need(r, cuEventRecord(k->before, on), "record an event");
}

void kernel_ran(struct rows *r, struct kernel *k) {
  float ms = 0;
  need(r, cuEventRecord(k->after, k->stream), "record an event");
  need(r, cuEventSynchronize(k->after), "wait for the kernel");
  need(r, cuEventElapsedTime(&ms, k->before, k->after), "the kernel's time");
  /* the milliseconds are a float with 24 bits */
  expect(r, (double)ms * 1e6 >= (double)k->ns * 0.999, "the kernel did not run for its time");
  need(r, cuEventRecord(k->before, k->stream), "record an event"); /* for the next */
}

void capture(struct rows *r, CUstream on) {
  need(r, cuStreamBeginCapture_v2(on, CU_STREAM_CAPTURE_MODE_RELAXED), "begin a capture");
  r->occupied++;
}

CUgraph captured(struct rows *r, CUstream on, size_t nodes) {
  CUgraph graph = NULL;
  size_t count = 0;
  need(r, cuStreamEndCapture(on, &graph), "end the capture");
  r->occupied = 0;
  need(r, cuGraphGetNodes(graph, NULL, &count), "count the nodes");
  expect(r, count == nodes, "other nodes were captured");
  return graph;
}

bool captured_too(struct rows *r) {
  if (r->row->takes_stream)
    capture(r, stream(r));
  return r->row->takes_stream;
}

CUgraphExec instantiated(struct rows *r, CUgraph graph) {
  CUgraphExec exec = NULL;
  need(r, cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate the graph");
  return exec;
}

CUgraph kernel_graph(struct rows *r, struct kernel *k) {
  capture(r, k->stream);
  need(r, cuLaunchKernel(k->function, 1, 1, 1, 1, 1, 1, 0, k->stream, k->params, NULL), "capture a kernel");
  return captured(r, k->stream, 1);
}

void graph_runs(struct rows *r, CUgraphExec exec, struct kernel *k) {
  lease(r);
  need(r, cuEventRecord(k->before, k->stream), "record an event");
  need(r, cuGraphLaunch(exec, k->stream), "launch the graph");
  kernel_ran(r, k);
}

struct hold hold(struct rows *r, CUstream on) {
  struct hold held = {r, NULL, on};
  CUdeviceptr at = 0;
  context(r);
  need(r, cuMemHostAlloc((void **)&held.flag, sizeof *held.flag, 2), "a word the stream waits for");
  need(r, cuMemHostGetDevicePointer_v2(&at, held.flag, 0), "its address");
  __atomic_store_n(held.flag, 0, __ATOMIC_RELEASE);
  need(r, cuStreamWaitValue32_v2(on, at, 1, CU_STREAM_WAIT_VALUE_EQ), "hold the stream");
  r->occupied++;
  return held;
}

void let_go(struct hold *held) {
  __atomic_store_n(held->flag, 1, __ATOMIC_RELEASE);
  held->r->occupied--;
}
