/* The NVML view: what a program inside a grant sees of NVML. Everything is the real library's answer, but for memory (the
 * grant's), lists of processes (the grant's own) and settings of the device (not a tenant's to change). */
#ifndef GPUSHARE_ML_H
#define GPUSHARE_ML_H

#include <stdbool.h>
#include <stdint.h>

#include "gs_page.h"

/* Our own declarations, from the documented API. */
typedef enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_LIBRARY_NOT_FOUND = 12,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
  unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
  unsigned int version; /* size of the structure | 2 << 24 */
  unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
  unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
  unsigned int pid;
  unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t; /* and v3 */

typedef struct {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId, computeInstanceId;
  unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
  unsigned int version, mode, numProcArrayEntries;
  nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
  unsigned int pid;
  unsigned long long timeStamp;
  unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

extern const char *const gs_ml_names[];
extern const unsigned gs_ml_count;

/* real.c: the real library's function at this name, never NULL. */
void *gs_ml_real(const char *name);
/* Called by the lazy entries of gs_real. */
void *gs_resolve(uint32_t index);

/* grant view: NULL without a grant. Its pages are looked at without joining; limits NULL: there is a grant whose pages cannot
 * be read. */
struct gs_view {
  const struct gs_limits *limits;
  const struct gs_usage *usage;
};
const struct gs_view *gs_ml_view(void);

#endif
