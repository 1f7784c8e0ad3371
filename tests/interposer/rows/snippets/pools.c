/* Memory pools: charged the memory they reserve. */
#include "rows.h"

enum {
  RELEASE_THRESHOLD = 4,
  RESERVED_CURRENT = 5,
  USED_CURRENT = 7,
  READ_WRITE = 3,
  PINNED = CU_MEM_ALLOCATION_TYPE_PINNED
};

static CUmemPoolProps properties(CUmemAllocationHandleType handles) {
  return (CUmemPoolProps){.allocType = PINNED, .handleTypes = handles, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
}

static CUmemoryPool pool(struct rows *r) {
  const CUmemPoolProps plain = properties(CU_MEM_HANDLE_TYPE_NONE);
  CUmemoryPool made = NULL;
  context(r);
  need(r, cuMemPoolCreate(&made, &plain), "a pool");
  return made;
}

/* A pool that never releases memory automatically. */
static CUmemoryPool keeping_pool(struct rows *r) {
  CUmemoryPool made = pool(r);
  uint64_t all = UINT64_MAX;
  need(r, cuMemPoolSetAttribute(made, RELEASE_THRESHOLD, &all), "a threshold");
  return made;
}

static CUdeviceptr from_pool(struct rows *r, CUmemoryPool pool, size_t bytes) {
  CUdeviceptr at = 0;
  need(r, cuMemAllocFromPoolAsync(&at, bytes, pool, NULL), "memory of the pool");
  settle(r);
  return at;
}

static uint64_t attribute(struct rows *r, CUmemoryPool pool, int which) {
  uint64_t value = 0;
  need(r, cuMemPoolGetAttribute(pool, which, &value), "a pool's attribute");
  return value;
}

static void used_and_freed(struct rows *r, CUdeviceptr at, CUstream on) {
  need(r, cuStreamSynchronize(on), "the allocation is done");
  meet(r, "allocated");
  put(r, at, pattern(), BYTES);
  holds(r, at, pattern(), BYTES);
  need(r, cuMemFreeAsync(at, on), "free it");
  settle(r);
  meet(r, "freed");
}

void row_cuMemAllocAsync(struct rows *r) {
  CUstream on = stream(r);
  CUdeviceptr at = 0;
  if (done(r, start(r)->cuMemAllocAsync(&at, BYTES, given(r))))
    used_and_freed(r, at, on);
}

void row_cuMemAllocFromPoolAsync(struct rows *r) {
  CUmemoryPool from = pool(r);
  CUstream on = stream(r);
  CUdeviceptr at = 0;
  if (done(r, start(r)->cuMemAllocFromPoolAsync(&at, BYTES, from, given(r))))
    used_and_freed(r, at, on);
  need(r, cuMemPoolDestroy(from), "destroy the pool");
}

void row_cuMemFreeAsync(struct rows *r) {
  CUmemoryPool of = pool(r);
  CUdeviceptr at = from_pool(r, of, BYTES);
  meet(r, "allocated");
  done(r, start(r)->cuMemFreeAsync(at, given(r)));
  settle(r);
  meet(r, "freed");
  expect(r, attribute(r, of, USED_CURRENT) == 0, "the pool still counts it");
  need(r, cuMemPoolDestroy(of), "destroy the pool");
}

void row_cuMemPoolCreate(struct rows *r) {
  const CUmemPoolProps plain = properties(CU_MEM_HANDLE_TYPE_NONE);
  CUmemoryPool made = NULL;
  context(r);
  if (!done(r, start(r)->cuMemPoolCreate(&made, &plain)))
    return;
  CUdeviceptr at = from_pool(r, made, BYTES);
  meet(r, "allocated");
  need(r, cuMemFreeAsync(at, NULL), "free it");
  settle(r);
  need(r, cuMemPoolDestroy(made), "destroy the pool");
  meet(r, "freed");
}

void row_cuMemPoolDestroy(struct rows *r) {
  CUmemoryPool made = keeping_pool(r);
  CUdeviceptr at = from_pool(r, made, BYTES);
  need(r, cuMemFreeAsync(at, NULL), "free it");
  settle(r);
  meet(r, "allocated"); /* it keeps all reserved memory */
  done(r, start(r)->cuMemPoolDestroy(made));
  meet(r, "freed");
}

void row_cuMemPoolTrimTo(struct rows *r) {
  CUmemoryPool made = keeping_pool(r);
  CUdeviceptr at = from_pool(r, made, BYTES);
  need(r, cuMemFreeAsync(at, NULL), "free it");
  settle(r);
  meet(r, "allocated");
  expect(r, attribute(r, made, RESERVED_CURRENT) > 0, "the pool kept nothing");
  done(r, start(r)->cuMemPoolTrimTo(made, 0));
  meet(r, "freed");
  expect(r, attribute(r, made, RESERVED_CURRENT) == 0, "the pool was not trimmed");
  need(r, cuMemPoolDestroy(made), "destroy the pool");
}

/* `made` is the device's current pool: an allocation without a pool uses it. */
static void is_current(struct rows *r, CUmemoryPool made) {
  CUmemoryPool standard = NULL;
  CUdeviceptr at = 0;
  need(r, cuMemAllocAsync(&at, BYTES, NULL), "memory of the device's pool");
  settle(r);
  expect(r, attribute(r, made, USED_CURRENT) >= BYTES, "another pool gave it");
  meet(r, "allocated");
  need(r, cuMemFreeAsync(at, NULL), "free it");
  settle(r);
  meet(r, "freed");
  need(r, cuDeviceGetDefaultMemPool(&standard, r->device), "the standard pool");
  need(r, cuDeviceSetMemPool(r->device, standard), "the standard pool again");
  need(r, cuMemPoolDestroy(made), "destroy the pool");
}

void row_cuDeviceSetMemPool(struct rows *r) {
  CUmemoryPool made = pool(r);
  done(r, start(r)->cuDeviceSetMemPool(r->device, made));
  is_current(r, made);
}

void row_cuMemSetMemPool(struct rows *r) {
  CUmemoryPool made = pool(r);
  CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, r->device};
  done(r, start(r)->cuMemSetMemPool(&where, PINNED, made));
  is_current(r, made);
}

void row_cuMemPoolSetAttribute(struct rows *r) {
  CUmemoryPool made = pool(r);
  uint64_t threshold = 123456;
  done(r, start(r)->cuMemPoolSetAttribute(made, RELEASE_THRESHOLD, &threshold));
  expect(r, attribute(r, made, RELEASE_THRESHOLD) == threshold, "another threshold");
  need(r, cuMemPoolDestroy(made), "destroy the pool");
}

void row_cuMemPoolGetAttribute(struct rows *r) {
  CUmemoryPool made = keeping_pool(r);
  uint64_t threshold = 0;
  done(r, start(r)->cuMemPoolGetAttribute(made, RELEASE_THRESHOLD, &threshold));
  expect(r, threshold == UINT64_MAX, "another threshold");
  need(r, cuMemPoolDestroy(made), "destroy the pool");
}

void row_cuMemPoolGetAccess(struct rows *r) {
  CUmemoryPool made = pool(r);
  CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, r->device};
  CUmemAccess_flags flags = 0;
  done(r, start(r)->cuMemPoolGetAccess(&flags, made, &where));
  expect(r, flags == READ_WRITE, "a device may not use its own pool");
  need(r, cuMemPoolDestroy(made), "destroy the pool");
}

void row_cuMemPoolSetAccess(struct rows *r) {
  CUmemoryPool made = pool(r);
  const CUmemAccessDesc mine = {{CU_MEM_LOCATION_TYPE_DEVICE, r->device}, READ_WRITE};
  done(r, start(r)->cuMemPoolSetAccess(made, &mine, 1));
  CUdeviceptr at = from_pool(r, made, BYTES);
  put(r, at, pattern(), BYTES);
  holds(r, at, pattern(), BYTES);
  need(r, cuMemFreeAsync(at, NULL), "free it");
  need(r, cuMemPoolDestroy(made), "destroy the pool");
}

void row_cuDeviceGetMemPool(struct rows *r) {
  CUmemoryPool current = NULL, standard = NULL;
  context(r);
  done(r, start(r)->cuDeviceGetMemPool(&current, r->device));
  need(r, cuDeviceGetDefaultMemPool(&standard, r->device), "the standard pool");
  expect(r, current && current == standard, "not the standard pool");
}

void row_cuDeviceGetDefaultMemPool(struct rows *r) {
  CUmemoryPool current = NULL, standard = NULL;
  context(r);
  done(r, start(r)->cuDeviceGetDefaultMemPool(&standard, r->device));
  need(r, cuDeviceGetMemPool(&current, r->device), "the current pool");
  expect(r, standard && current == standard, "not the current pool");
}

void row_cuMemGetDefaultMemPool(struct rows *r) {
  CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, r->device};
  CUmemoryPool found = NULL, standard = NULL;
  context(r);
  done(r, start(r)->cuMemGetDefaultMemPool(&found, &where, PINNED));
  need(r, cuDeviceGetDefaultMemPool(&standard, r->device), "the standard pool");
  expect(r, found && found == standard, "not the standard pool");
}

void row_cuMemGetMemPool(struct rows *r) {
  CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, r->device};
  CUmemoryPool found = NULL, current = NULL;
  context(r);
  done(r, start(r)->cuMemGetMemPool(&found, &where, PINNED));
  need(r, cuDeviceGetMemPool(&current, r->device), "the current pool");
  expect(r, found && found == current, "not the current pool");
}
