/* Device attributes. */
#include "rows.h"

void row_cuDeviceGetAttribute(struct rows *r) {
  int value = 0;
  context(r);
  done(r, start(r)->cuDeviceGetAttribute(&value, 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */, r->device));
  expect(r, value > 0, "no multiprocessors");
}
