/* Names of statuses, and properties, for both libraries. */
#include "sim/blas/blas.h"

static const struct {
  int status;
  const char *name, *text;
} statuses[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "an invalid value was given"},
    {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH", "the device has no such feature"},
    {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR", "memory could not be reached"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the work failed on the device"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the function is not supported"},
    {CUBLAS_STATUS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR", "the license is missing"},
    {-1, "unknown cuBLAS status", "unknown cuBLAS status"}, /* any other */
};

enum { KNOWN = sizeof statuses / sizeof statuses[0] - 1 };

static size_t find(int status) {
  size_t i = 0;
  while (i < KNOWN && statuses[i].status != status)
    i++;
  return i;
}

const char *blas_status_name(int status) { return statuses[find(status)].name; }
const char *blas_status_string(int status) { return statuses[find(status)].text; }

int blas_property(int type, int *value) {
  enum { MAJOR, MINOR, PATCH };
  if (!value)
    return CUBLAS_STATUS_INVALID_VALUE;
  switch (type) {
    case MAJOR: *value = BLAS_VERSION / 10000; return CUBLAS_STATUS_SUCCESS;
    case MINOR: *value = BLAS_VERSION / 100 % 100; return CUBLAS_STATUS_SUCCESS;
    case PATCH: *value = BLAS_VERSION % 100; return CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}
