/* Host memory, and graph nodes that allocate: these calls take no device memory, a launch of the graph does. */
#include <stdlib.h>

#include "rows.h"

enum { MAPPED = 2, PAGE = 4096 };

/* The device sees the host's writes: it copies what the host wrote. */
static void seen_by_device(struct rows *r, void *host) {
  CUdeviceptr at = 0, to = memory(r, BYTES);
  memcpy(host, pattern(), BYTES);
  need(r, cuMemHostGetDevicePointer_v2(&at, host, 0), "its address on the device");
  need(r, cuMemcpy(to, at, BYTES), "a copy from it");
  holds(r, to, pattern(), BYTES);
}

void row_cuMemAllocHost(struct rows *r) {
  void *host = NULL;
  context(r);
  if (!done(r, start(r)->cuMemAllocHost(&host, BYTES)))
    return;
  meet(r, "allocated");
  seen_by_device(r, host);
  need(r, cuMemFreeHost(host), "free it");
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

void row_cuMemHostRegister(struct rows *r) {
  void *host = aligned_alloc(PAGE, BYTES);
  context(r);
  if (done(r, start(r)->cuMemHostRegister(host, BYTES, MAPPED))) {
    meet(r, "allocated");
    seen_by_device(r, host);
    need(r, cuMemHostUnregister(host), "unregister it");
  }
  free(host);
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
  CUgraph graph = NULL;
  CUgraphNode node = NULL;
  CUgraphNodeType type = -1;
  context(r);
  need(r, cuGraphCreate(&graph, 0), "a graph");
  if (done(r, start(r)->cuGraphAddMemAllocNode(&node, graph, NULL, 0, &how))) {
    need(r, cuGraphNodeGetType(node, &type), "what the node is");
    expect(r, type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && how.dptr, "no node that allocates");
    meet(r, "allocated"); /* the launch allocates the memory */
  }
  need(r, cuGraphDestroy(graph), "destroy the graph");
  meet(r, "freed");
}
