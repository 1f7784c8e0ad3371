/* The part of NVML that the simulated libnvidia-ml.so.1 implements: our own declarations, from the documented
 * interface. What is not here answers NVML_ERROR_NOT_SUPPORTED (gen_nvml.py), and so do all sensors: the simulated
 * device has none, and a made-up number would look measured. */
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

/* ---- nvml.c ------------------------------------------------------------------------------------------------------ */

enum { NVML_WINDOW_NS = 1000000000 };

/* What a device had done at some time: utilisation is the difference of two. */
struct nvml_sample {
  uint64_t at_ns, busy_ns;
};

struct nvml_device {
  unsigned index;
  struct nvml_sample older, newer; /* at least half a window apart; under the lock */
};

/* NVML_SUCCESS with the lock held, or an error without. The second form checks the handle too. */
nvmlReturn_t nvml_enter(void);
nvmlReturn_t nvml_enter_device(nvmlDevice_t device);
void nvml_leave(void);
/* With the lock held. */
const struct sim_hello *nvml_hello(void);
nvmlReturn_t nvml_call(uint32_t op, const struct nvml_device *device, struct sim_reply *reply, int *fds, int nfds);
/* Sets *value unless it is SIM_KEEP; gives what holds then. */
nvmlReturn_t nvml_setting(const struct nvml_device *device, enum sim_setting setting, uint64_t *value);
/* Processes of a device, in a malloc'd array: those that live and hold memory, or all that are in the books. */
nvmlReturn_t nvml_processes(const struct nvml_device *device, bool ended_too, struct sim_process **list, size_t *count);

/* The prototype before the definition: these functions are declared to their callers in other people's headers. */
#define NVML_API(name, parameters) \
  __attribute__((visibility("default"))) nvmlReturn_t name parameters; \
  nvmlReturn_t name parameters

#endif
