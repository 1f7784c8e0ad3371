/* What a program asks and sets about its memory. The sizes reported to it are those of its share, not of the device. The
 * bare driver reports the device, so the check for both is that the reports agree with each other. */
#include "rows.h"

static size_t total(struct rows *r) {
  size_t bytes = 0;
  need(r, cuDeviceTotalMem_v2(&bytes, r->device), "the device's memory");
  return bytes;
}

static size_t left(struct rows *r) {
  size_t available = 0, all = 0;
  need(r, cuMemGetInfo_v2(&available, &all), "what is left");
  return available;
}

static unsigned at_most_32_bits(size_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes; }

void row_cuMemGetInfo(struct rows *r) {
  unsigned available = 0, all = 0;
  context(r);
  done(r, start(r)->cuMemGetInfo(&available, &all));
  expect(r, all == at_most_32_bits(total(r)), "another total");
  expect(r, available == at_most_32_bits(left(r)), "another rest");
}

void row_cuMemGetInfo_v2(struct rows *r) {
  size_t before = 0, after = 0, all = 0;
  context(r);
  done(r, start(r)->cuMemGetInfo_v2(&before, &all));
  expect(r, all == total(r) && before < all, "another total");
  memory(r, GRANULE);
  meet(r, "allocated");
  done(r, start(r)->cuMemGetInfo_v2(&after, &all));
  expect(r, before - after >= GRANULE && before - after < GRANULE + BYTES, "an allocation is not seen");
}

void row_cuDeviceTotalMem(struct rows *r) {
  unsigned bytes = 0;
  need(r, cuInit(0), "cuInit");
  done(r, start(r)->cuDeviceTotalMem(&bytes, r->device));
  expect(r, bytes == at_most_32_bits(total(r)), "another total");
}

void row_cuDeviceTotalMem_v2(struct rows *r) {
  size_t bytes = 0, available = 0, all = 0;
  context(r);
  done(r, start(r)->cuDeviceTotalMem_v2(&bytes, r->device));
  need(r, cuMemGetInfo_v2(&available, &all), "what is left");
  expect(r, bytes > 0 && bytes == all, "another total");
}

void row_cuDeviceGetAttribute(struct rows *r) {
  int value = 0;
  context(r);
  done(r, start(r)->cuDeviceGetAttribute(&value, 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */, r->device));
  expect(r, value > 0, "no multiprocessors");
}

/* ---- addresses ---- */

void row_cuMemGetAddressRange_v2(struct rows *r) {
  CUdeviceptr at = memory(r, BYTES), base = 0;
  size_t bytes = 0;
  done(r, start(r)->cuMemGetAddressRange_v2(&base, &bytes, at + HALF));
  expect(r, base == at && bytes == BYTES, "another range");
  need(r, cuMemFree_v2(at), "free it");
  done_with(r, CUDA_ERROR_NOT_FOUND, start(r)->cuMemGetAddressRange_v2(&base, &bytes, at));
}

void row_cuPointerGetAttribute(struct rows *r) {
  CUdeviceptr at = memory(r, BYTES), value = 0;
  done(r, start(r)->cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + HALF));
  expect(r, value == at, "another start");
  done_with(r, CUDA_ERROR_INVALID_VALUE,
            start(r)->cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at));
  need(r, cuMemFree_v2(at), "free it");
  done_with(r, CUDA_ERROR_INVALID_VALUE,
            start(r)->cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at));
}

void row_cuPointerGetAttributes(struct rows *r) {
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  CUdeviceptr at = memory(r, BYTES);
  CUcontext of = NULL;
  size_t bytes = 0;
  void *to[] = {&of, &bytes};
  done(r, start(r)->cuPointerGetAttributes(2, which, to, at + HALF));
  expect(r, of == r->ctx && bytes == BYTES, "another context or size");
}

void row_cuPointerSetAttribute(struct rows *r) {
  CUdeviceptr at = memory(r, BYTES);
  unsigned value = 1;
  done(r, start(r)->cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
  value = 0;
  need(r, cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at), "what was set");
  expect(r, value == 1, "it is not set");
}

void row_cuMemRangeGetAttribute(struct rows *r) {
  CUdeviceptr at = memory(r, BYTES);
  int value = 0;
  r->tentative = true; /* not managed memory */
  done(r, start(r)->cuMemRangeGetAttribute(&value, sizeof value, 1 /* read mostly */, at, BYTES));
}

void row_cuMemRangeGetAttributes(struct rows *r) {
  CUdeviceptr at = memory(r, BYTES);
  int value = 0;
  void *to = &value;
  size_t bytes = sizeof value;
  CUmem_range_attribute which = 1; /* read mostly */
  r->tentative = true;             /* not managed memory */
  done(r, start(r)->cuMemRangeGetAttributes(&to, &bytes, &which, 1, at, BYTES));
}

void row_cuMemGetLocationInfo(struct rows *r) {
  CUdeviceptr at = memory(r, BYTES);
  CUmemLocation where = {0};
  r->tentative = true; /* a newer driver's */
  if (done(r, start(r)->cuMemGetLocationInfo(at, BYTES, BYTES, BYTES, &where)))
    expect(r, where.type == CU_MEM_LOCATION_TYPE_DEVICE && where.id == r->device, "another place");
}

void row_cuMemGetHandleForAddressRange(struct rows *r) {
  CUdeviceptr at = memory(r, BYTES);
  int fd = -1;
  r->tentative = true; /* needs a kernel module that takes it */
  done(r, start(r)->cuMemGetHandleForAddressRange(&fd, at, BYTES, 1 /* a dma-buf */, 0));
}

void row_cuLogicalEndpointBindAddr(struct rows *r) {
  CUdeviceptr at = memory(r, BYTES);
  r->tentative = true; /* needs endpoints connected by a switch */
  done(r, start(r)->cuLogicalEndpointBindAddr(0, r->device, 0, (void *)(uintptr_t)at, BYTES, 0));
}

/* ---- textures over memory ---- */

enum { FLOAT32 = 0x20 };

void row_cuTexObjectCreate(struct rows *r) {
  const CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};
  CUDA_RESOURCE_DESC of = {.resType = CU_RESOURCE_TYPE_LINEAR}, got = {.resType = CU_RESOURCE_TYPE_ARRAY};
  CUtexObject made = 0;
  of.res.linear.devPtr = memory(r, BYTES);
  of.res.linear.format = FLOAT32;
  of.res.linear.numChannels = 1;
  of.res.linear.sizeInBytes = BYTES;
  done(r, start(r)->cuTexObjectCreate(&made, &of, &how, NULL));
  need(r, cuTexObjectGetResourceDesc(&got, made), "what it is over");
  expect(r, got.res.linear.devPtr == of.res.linear.devPtr, "another address");
  need(r, cuTexObjectDestroy(made), "destroy it");
}

/* Texture references: drivers keep their functions for old programs. */
static CUtexref reference(struct rows *r) {
  CUtexref made = NULL;
  context(r);
  r->tentative = cuTexRefCreate(&made) != CUDA_SUCCESS;
  return made;
}

void row_cuTexRefSetAddress_v2(struct rows *r) {
  size_t offset = 0;
  CUdeviceptr at = memory(r, BYTES);
  CUtexref to = reference(r);
  done(r, start(r)->cuTexRefSetAddress_v2(&offset, to, at, BYTES));
}

void row_cuTexRefSetAddress2D_v3(struct rows *r) {
  const CUDA_ARRAY_DESCRIPTOR about = {
      .Width = PITCH / 4, .Height = BYTES / PITCH, .Format = FLOAT32, .NumChannels = 1};
  CUdeviceptr at = memory(r, BYTES);
  CUtexref to = reference(r);
  done(r, start(r)->cuTexRefSetAddress2D_v3(to, &about, at, PITCH));
}
