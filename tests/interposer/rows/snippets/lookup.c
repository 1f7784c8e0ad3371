/* Function look-up and initialisation. */
#include "rows.h"

void row_cuGetProcAddress(struct rows *r) {
  void *v1 = NULL, *v2 = NULL, *unknown = NULL;
  CUdriverProcAddressQueryResult status;
  done(r, start(r)->cuGetProcAddress("cuMemAlloc", &v1, 3020, CU_GET_PROC_ADDRESS_LEGACY_STREAM));
  cuGetProcAddress_v2("cuMemAlloc", &v2, 3020, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
  expect(r, v1 != NULL && v1 == v2 && v1 == (void *)cuMemAlloc_v2, "cuMemAlloc 3020 is not cuMemAlloc_v2");
  done_with(r, CUDA_ERROR_NOT_FOUND, start(r)->cuGetProcAddress("cuNoSuchThing", &unknown, 13000, 0));
}

void row_cuGetProcAddress_v2(struct rows *r) {
  void *plain = NULL, *per_thread = NULL;
  CUdriverProcAddressQueryResult status = -1;
  cuuint64_t flag = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  done(r, start(r)->cuGetProcAddress_v2("cuMemsetD8", &plain, 13000, 0, &status));
  expect(r, plain == (void *)cuMemsetD8_v2 && status == CU_GET_PROC_ADDRESS_SUCCESS, "cuMemsetD8 is not cuMemsetD8_v2");
  done(r, start(r)->cuGetProcAddress_v2("cuMemsetD8", &per_thread, 13000, flag, &status));
  expect(r, per_thread == (void *)cuMemsetD8_v2_ptds, "its per-thread form is not cuMemsetD8_v2_ptds");
}

void row_cuInit(struct rows *r) {
  int devices = 0;
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuInit(1));
  done(r, start(r)->cuInit(0));
  need(r, cuDeviceGetCount(&devices), "count devices");
  expect(r, devices == 1, "other devices");
}

void row_cuGetExportTable(struct rows *r) {
  static const CUuuid NOBODYS = {{1, 2, 3}};
  const void *found = NULL;
  r->tentative = true; /* no table with this name exists: the result is the driver's */
  done(r, start(r)->cuGetExportTable(&found, &NOBODYS));
  expect(r, found == NULL, "a table out of nothing");
}
