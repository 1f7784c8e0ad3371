/* The NVML view: what a program inside a grant sees of NVML. All answers are those of the real library, except for
 * memory (the grant's), processes (the grant's own), utilization (by the grant's work) and settings (which a tenant may
 * not change). ml.tsv lists how each function is treated.
 *
 * A handler calls the real library first, so that errors are NVML's, and with a buffer of its own, so that data about
 * other tenants never reaches the program's memory. Without a grant it only forwards. A device of the node that is not
 * part of the grant does not exist: no look-up finds it, no list has it, and a handle of it that a program makes up is
 * INVALID_ARGUMENT wherever it is checked. If the grant's pages cannot be read, nothing is revealed: no device,
 * NO_PERMISSION. */
#ifndef GPUSHARE_ML_H
#define GPUSHARE_ML_H

#include <stdbool.h>
#include <stdint.h>

#include "page/gs_page.h"
#include "ml_names.h" /* generated */

/* Declarations written from the documented API. */
typedef enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_LIBRARY_NOT_FOUND = 12,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_MEMORY = 20,
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

typedef struct {
  unsigned long long timeStamp;
  unsigned int pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
  unsigned int version, processSamplesCount;
  unsigned long long lastSeenTimeStamp;
  nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef struct {
  unsigned int gpu, memory;
} nvmlUtilization_t;

typedef union {
  double dVal;
  unsigned int uiVal;
  unsigned long long ullVal;
} nvmlValue_t;

typedef struct {
  unsigned long long timeStamp;
  nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
  unsigned int fieldId, scopeId;
  long long timestamp, latencyUsec;
  unsigned int valueType;
  nvmlReturn_t nvmlReturn;
  nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
  unsigned int version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
  unsigned int gpuUtilization, memoryUtilization;
  unsigned long long maxMemoryUsage, time, startTime;
  unsigned int isRunning, reserved[5];
} nvmlAccountingStats_t;

typedef struct {
  unsigned int pid; /* input: the process asked for */
  unsigned int isRunning, gpuUtilization, memoryUtilization;
  unsigned long long maxMemoryUsage;
  unsigned int sampleCount;
  unsigned long long sumGpuUtil, sumFbUtil, time, startTime;
} nvmlAccountingStats_v2_t;

/* Defines a handler, preceded by its prototype: callers get the declaration from NVIDIA's headers, not from this
 * one. */
#define GS_ML(name, parameters) \
  __attribute__((visibility("default"))) nvmlReturn_t name parameters; \
  nvmlReturn_t name parameters

/* ---- real.c: the real library ------------------------------------------------------------------------------------ */

extern const char *const gs_ml_names[GS_ML_COUNT];
struct gs_ml_answer {
  nvmlReturn_t code; /* 0: the function is handled or forwarded */
  bool device;       /* the first argument is a device */
};
extern const struct gs_ml_answer gs_ml_answers[GS_ML_COUNT];

extern void *gs_real[GS_ML_COUNT] __attribute__((visibility("hidden"))); /* ml_forward.S */
/* The real library's function for a handler. A missing function returns NVML_ERROR_FUNCTION_NOT_FOUND. */
#define GS_ML_REAL(name) ((__typeof__(&name))__atomic_load_n(&gs_real[GS_ML_##name], __ATOMIC_ACQUIRE))
/* Real functions that have no handler, with their types. */
nvmlReturn_t gs_ml_uuid(nvmlDevice_t device, char *text, unsigned int size);
nvmlReturn_t gs_ml_remote_type(nvmlDevice_t device, unsigned int link, unsigned int *type);
/* NVML_SUCCESS if NVML is initialised, else its error. */
nvmlReturn_t gs_ml_ready(void);
/* Called by the lazy entries of gs_real: returns the function at this index and stores it in the entry. */
void *gs_resolve(uint32_t index, void **entry);

/* ---- view.c: the grant ------------------------------------------------------------------------------------------- */

struct gs_history; /* private to use.c */

/* The grant as seen without joining it. Lives in pages that a fork wipes. Constant once `known` is set, except what the
 * lock protects. */
struct gs_view {
  uint32_t known; /* enum in view.c; acquire */
  uint32_t making;
  const struct gs_limits *limits;       /* NULL: there is a grant, but its pages cannot be read */
  const struct gs_usage *usage;         /* NULL: not readable */
  uint32_t pid_namespace;               /* of this process */
  uint64_t total_bytes[GS_MAX_DEVICES]; /* the limits at the first access of this process */
  uint32_t use_lock;
  struct gs_history *history[GS_MAX_DEVICES];
};
/* NULL if there is no grant. */
struct gs_view *gs_ml_view(void);

enum { GS_ML_NOT_OURS = -1 };
/* The grant's device for a handle, or GS_ML_NOT_OURS. An invalid handle gives the real library's error. */
nvmlReturn_t gs_ml_ordinal(const struct gs_view *view, nvmlDevice_t device, int *ordinal);
/* The same for functions that have no answer for other devices: INVALID_ARGUMENT then. */
nvmlReturn_t gs_ml_own(const struct gs_view *view, nvmlDevice_t device, int *ordinal);
/* The same for functions that read the usage page: NO_PERMISSION if it cannot be read. */
nvmlReturn_t gs_ml_device(const struct gs_view *view, nvmlDevice_t device, int *ordinal);

/* ---- devices.c --------------------------------------------------------------------------------------------------- */

/* The real library's look-ups: any device of the node. */
nvmlReturn_t gs_ml_any_by_uuid(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t gs_ml_any_by_bus_id(const char *bus_id, nvmlDevice_t *device);
/* Completes a look-up: passes on what the real library found if it is the grant's, else NOT_FOUND. Other errors of the
 * real library are returned as they are. Writes *device only on success. */
nvmlReturn_t gs_ml_found(const struct gs_view *view, nvmlReturn_t result, nvmlDevice_t found, nvmlDevice_t *device);

/* ---- processes.c ------------------------------------------------------------------------------------------------- */

/* The live process in a slot, or NULL; index is below gs_ml_slots. */
const struct gs_slot *gs_ml_slot(const struct gs_view *view, uint32_t index);
uint32_t gs_ml_slots(const struct gs_view *view);
/* The pid as this process sees it: the number in its own pid namespace if it shares that namespace, else the host's. */
unsigned int gs_ml_pid(const struct gs_view *view, const struct gs_slot *slot);
/* The live process of the grant that this process knows as pid, or NULL. */
const struct gs_slot *gs_ml_find(const struct gs_view *view, unsigned int pid);

#endif
