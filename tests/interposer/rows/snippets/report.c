/* Device attributes, and memory sizes reported to a program: those of its share, not of the device. The bare driver reports the device, so the
 * check for both is that the reports agree with each other. */
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
  expect(r, before - after == GRANULE, "an allocation is not seen");
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
