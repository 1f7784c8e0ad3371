/* Allocation and free with the basic functions. */
#include "rows.h"

enum { ATTACH_GLOBAL = 1, ROWS = 33, WIDTH = 1000 };

static void writable(struct rows *r, CUdeviceptr at, size_t bytes) {
  put(r, at, pattern(), bytes);
  holds(r, at, pattern(), bytes);
}

void row_cuMemAlloc(struct rows *r) {
  CUdeviceptr_v1 at = 0;
  context(r);
  if (!done(r, start(r)->cuMemAlloc(&at, 4097)))
    return;
  meet(r, "allocated");
  writable(r, at, 4097);
  need(r, cuMemFree(at), "free it");
  meet(r, "freed");
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

void row_cuMemAllocPitch(struct rows *r) {
  CUdeviceptr_v1 at = 0;
  unsigned pitch = 0;
  context(r);
  if (!done(r, start(r)->cuMemAllocPitch(&at, &pitch, WIDTH, ROWS, 4)))
    return;
  meet(r, "allocated");
  expect(r, pitch >= WIDTH, "a pitch below the width");
  writable(r, at, (size_t)pitch * ROWS);
  need(r, cuMemFree(at), "free it");
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

void row_cuMemFree(struct rows *r) {
  CUdeviceptr at = memory(r, 5000);
  meet(r, "allocated");
  done(r, start(r)->cuMemFree((CUdeviceptr_v1)at));
  meet(r, "freed");
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuMemFree((CUdeviceptr_v1)at));
}

void row_cuMemFree_v2(struct rows *r) {
  CUdeviceptr at = 0;
  context(r);
  need(r, cuMemAlloc_v2(&at, 5000), "memory to free");
  meet(r, "allocated");
  done(r, start(r)->cuMemFree_v2(at));
  meet(r, "freed");
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuMemFree_v2(at));
}
