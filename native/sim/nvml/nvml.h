/* The part of NVML that the simulated libnvidia-ml.so.1 implements, declared from the public documentation. All other
 * functions return NVML_ERROR_NOT_SUPPORTED (gen_nvml.py), including those of temperature, power draw and fans: the
 * simulated device has none, and an invented value would look like a measurement. Its clocks are not invented: the
 * durations of kernels follow from them. */
#ifndef SIM_NVML_H
#define SIM_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/wire/wire.h"

typedef enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;

typedef struct nvml_device *nvmlDevice_t;

typedef struct {
  unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
  unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;

typedef struct {
  char busId[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  unsigned reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
  unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
  char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
  unsigned pid;
  unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct { /* of _v2 and _v3 functions */
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef struct {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
  unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
  unsigned version, mode, numProcArrayEntries;
  nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
  unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
  unsigned pid;
  unsigned long long timeStamp;
  unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
  unsigned long long timeStamp;
  unsigned pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
  unsigned version, processSamplesCount;
  unsigned long long lastSeenTimeStamp;
  nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef struct {
  unsigned gpuUtilization, memoryUtilization;
  unsigned long long maxMemoryUsage, time, startTime;
  unsigned isRunning, reserved[5];
} nvmlAccountingStats_t;

typedef struct {
  unsigned pid, isRunning, gpuUtilization, memoryUtilization;
  unsigned long long maxMemoryUsage;
  unsigned sampleCount;
  unsigned long long sumGpuUtil, sumFbUtil, time, startTime;
} nvmlAccountingStats_v2_t;

typedef union {
  double dVal;
  unsigned uiVal;
  unsigned long ulVal;
  unsigned long long ullVal;
  long long sllVal;
  int siVal;
  unsigned short usVal;
} nvmlValue_t;

typedef struct {
  unsigned fieldId, scopeId;
  long long timestamp, latencyUsec;
  unsigned valueType;
  nvmlReturn_t nvmlReturn;
  nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
  unsigned long long timeStamp;
  nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
  unsigned version, type; /* type 1: text, 2: bytes */
  union {
    char str[41];
    unsigned char bytes[16];
  } value;
} nvmlUUID_t;

typedef struct {
  const char *nameSpace; /* the directory of a cgroup */
  unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
  const char *nameSpace;
  unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

/* ---- nvml.c ------------------------------------------------------------------------------------------------------ */

enum { NVML_WINDOW_NS = 1000000000 };

/* The accumulated activity of a device at one time. Utilisation is the difference of two samples. */
struct nvml_sample {
  uint64_t at_ns, busy_ns;
};

struct nvml_device {
  unsigned index;
  struct nvml_sample older, newer; /* at least half a window apart; guarded by the lock */
};

/* Returns NVML_SUCCESS with the lock held, or an error without it. The second function also checks the handle. */
nvmlReturn_t nvml_enter(void);
nvmlReturn_t nvml_enter_device(nvmlDevice_t device);
void nvml_leave(void);
/* Requires the lock. */
const struct sim_hello *nvml_hello(void);
nvmlReturn_t nvml_call(uint32_t op, const struct nvml_device *device, struct sim_reply *reply, int *fds, int nfds);
/* Sets the setting to *value unless *value is SIM_KEEP; returns the resulting value. */
nvmlReturn_t nvml_setting(const struct nvml_device *device, enum sim_setting setting, uint64_t *value);
/* As nvml_call, with two arguments and a descriptor that is sent along. */
nvmlReturn_t nvml_give(const struct nvml_device *device, uint32_t op, const uint64_t arguments[2], int fd,
                       struct sim_reply *reply);
/* Lists the processes of a device, in an array that the caller frees: live processes that hold memory, or with
 * ended_too all processes in the engine's accounts. */
nvmlReturn_t nvml_processes(const struct nvml_device *device, bool ended_too, struct sim_process **list, size_t *count);

unsigned nvml_links(const struct nvml_device *device); /* number of NVLinks; requires the lock */

/* Declares and defines an exported function: callers use the declaration in NVML's own header, which this library does
 * not include. */
#define NVML_API(name, parameters) \
  __attribute__((visibility("default"))) nvmlReturn_t name parameters; \
  nvmlReturn_t name parameters

#endif
