/* Names and descriptions of errors; the table is in rt_calls.c, generated from native/api/runtime_errors.tsv. */
#include "sim/cudart/cudart.h"

static const struct rt_error *known(cudaError_t error) {
  static const struct rt_error none = {.name = "unrecognized error code", .text = "unrecognized error code"};
  for (unsigned i = 0; i < rt_nerrors; i++)
    if (rt_errors[i].error == error)
      return &rt_errors[i];
  return &none;
}

const char *cudaGetErrorName(cudaError_t error) { return known(error)->name; }

const char *cudaGetErrorString(cudaError_t error) { return known(error)->text; }
