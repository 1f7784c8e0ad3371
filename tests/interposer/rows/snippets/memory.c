/* Allocation and free with the basic functions; host memory, and graph nodes that allocate, take no device memory. */
#include <stdlib.h>

#include "rows.h"

enum { ATTACH_GLOBAL = 1, ROWS = 33, WIDTH = 1000 };

static void writable(struct rows *r, CUdeviceptr at, size_t bytes) {
  put(r, at, pattern(), bytes);
  holds(r, at, pattern(), bytes);
}

void row_cuMemAlloc_v2(struct rows *r) {
  CUdeviceptr at = 0;
  context(r);
  if (!done(r, start(r)->cuMemAlloc_v2(&at, 100000)))
    return;
  meet(r, "allocated");
  writable(r, at, 100000);
  need(r, cuMemFree_v2(at), "free it");
  meet(r, "freed");
}

void row_cuMemAllocPitch_v2(struct rows *r) {
  CUdeviceptr at = 0;
  size_t pitch = 0;
  context(r);
  if (!done(r, start(r)->cuMemAllocPitch_v2(&at, &pitch, WIDTH, ROWS, 4)))
    return;
  meet(r, "allocated");
  expect(r, pitch >= WIDTH, "a pitch below the width");
  writable(r, at, pitch * ROWS);
  need(r, cuMemFree_v2(at), "free it");
  meet(r, "freed");
}

void row_cuMemAllocManaged(struct rows *r) {
  CUdeviceptr at = 0;
  context(r);
  if (!done(r, start(r)->cuMemAllocManaged(&at, 70000, ATTACH_GLOBAL)))
    return;
  meet(r, "allocated");
  memcpy((void *)(uintptr_t)at, pattern(), 70000); /* the host writes to it directly */
  holds(r, at, pattern(), 70000);
  need(r, cuMemFree_v2(at), "free it");
  meet(r, "freed");
}

void row_cuMemFree_v2(struct rows *r) {
  CUdeviceptr at = memory(r, 5000);
  meet(r, "allocated");
  done(r, start(r)->cuMemFree_v2(at));
  meet(r, "freed");
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuMemFree_v2(at));
}

/* ---- host memory; a graph's launch takes device memory, not the node ---- */

enum { MAPPED = 2, PAGE = 4096 };

/* The device sees the host's writes: it copies what the host wrote. */
static void seen_by_device(struct rows *r, void *host) {
  CUdeviceptr at = 0, to = memory(r, BYTES);
  memcpy(host, pattern(), BYTES);
  need(r, cuMemHostGetDevicePointer_v2(&at, host, 0), "its address on the device");
  need(r, cuMemcpy(to, at, BYTES), "a copy from it");
  holds(r, to, pattern(), BYTES);
}

void row_cuMemAllocHost_v2(struct rows *r) {
  void *host = NULL;
  context(r);
  if (!done(r, start(r)->cuMemAllocHost_v2(&host, BYTES)))
    return;
  meet(r, "allocated");
  seen_by_device(r, host);
  need(r, cuMemFreeHost(host), "free it");
}

void row_cuMemHostAlloc(struct rows *r) {
  void *host = NULL;
  context(r);
  if (!done(r, start(r)->cuMemHostAlloc(&host, BYTES, MAPPED)))
    return;
  meet(r, "allocated");
  seen_by_device(r, host);
  need(r, cuMemFreeHost(host), "free it");
}

void row_cuMemHostRegister_v2(struct rows *r) {
  void *host = aligned_alloc(PAGE, BYTES);
  context(r);
  if (done(r, start(r)->cuMemHostRegister_v2(host, BYTES, MAPPED))) {
    meet(r, "allocated");
    seen_by_device(r, host);
    need(r, cuMemHostUnregister(host), "unregister it");
  }
  free(host);
}

void row_cuMemFreeHost(struct rows *r) {
  void *host = NULL;
  context(r);
  need(r, cuMemAllocHost_v2(&host, BYTES), "host memory");
  done(r, start(r)->cuMemFreeHost(host));
  meet(r, "freed");
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuMemFreeHost(host));
}

void row_cuGraphAddMemAllocNode(struct rows *r) {
  CUDA_MEM_ALLOC_NODE_PARAMS how = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
      .bytesize = BYTES};
  CUgraphNode node = NULL;
  CUgraphNodeType type = -1;
  context(r);
  CUgraph graph = empty_graph(r);
  if (done(r, start(r)->cuGraphAddMemAllocNode(&node, graph, NULL, 0, &how))) {
    need(r, cuGraphNodeGetType(node, &type), "what the node is");
    expect(r, type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && how.dptr, "no node that allocates");
    meet(r, "allocated"); /* the launch allocates the memory */
  }
  need(r, cuGraphDestroy(graph), "destroy the graph");
  meet(r, "freed");
}
