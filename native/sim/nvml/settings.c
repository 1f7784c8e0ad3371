/* Device settings for administrators, and accounting of processes. Settings are stored in the engine, so all processes
 * see a change. */
#include <stdlib.h>
#include <string.h>

#include "sim/nvml/nvml.h"

/* The range of a power limit. It is a stored value only; no power is measured. */
enum { POWER_LOWEST_MW = 100000, POWER_HIGHEST_MW = 400000 };

static nvmlReturn_t get(nvmlDevice_t device, enum sim_setting setting, unsigned *out) {
  uint64_t value = SIM_KEEP;
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = out ? nvml_setting(device, setting, &value) : NVML_ERROR_INVALID_ARGUMENT;
  nvml_leave();
  if (result == NVML_SUCCESS)
    *out = (unsigned)value;
  return result;
}

static nvmlReturn_t set(nvmlDevice_t device, enum sim_setting setting, uint64_t value, uint64_t lowest,
                        uint64_t highest) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = value >= lowest && value <= highest ? nvml_setting(device, setting, &value) : NVML_ERROR_INVALID_ARGUMENT;
  nvml_leave();
  return result;
}

enum { COMPUTE_MODE_LAST = 3 };

NVML_API(nvmlDeviceGetPersistenceMode, (nvmlDevice_t device, unsigned *mode)) {
  return get(device, SIM_PERSISTENCE, mode);
}
NVML_API(nvmlDeviceSetPersistenceMode, (nvmlDevice_t device, unsigned mode)) {
  return set(device, SIM_PERSISTENCE, mode, 0, 1);
}
NVML_API(nvmlDeviceGetComputeMode, (nvmlDevice_t device, unsigned *mode)) {
  return get(device, SIM_COMPUTE_MODE, mode);
}
NVML_API(nvmlDeviceSetComputeMode, (nvmlDevice_t device, unsigned mode)) {
  return set(device, SIM_COMPUTE_MODE, mode, 0, COMPUTE_MODE_LAST);
}
NVML_API(nvmlDeviceGetAccountingMode, (nvmlDevice_t device, unsigned *mode)) {
  return get(device, SIM_ACCOUNTING, mode);
}
NVML_API(nvmlDeviceSetAccountingMode, (nvmlDevice_t device, unsigned mode)) {
  return set(device, SIM_ACCOUNTING, mode, 0, 1);
}

NVML_API(nvmlDeviceGetPowerManagementLimit, (nvmlDevice_t device, unsigned *limit)) {
  return get(device, SIM_POWER_LIMIT_MW, limit);
}
NVML_API(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t device, unsigned *limit)) {
  return get(device, SIM_POWER_LIMIT_MW, limit);
}
NVML_API(nvmlDeviceSetPowerManagementLimit, (nvmlDevice_t device, unsigned limit)) {
  return set(device, SIM_POWER_LIMIT_MW, limit, POWER_LOWEST_MW, POWER_HIGHEST_MW);
}

NVML_API(nvmlDeviceGetPowerManagementDefaultLimit, (nvmlDevice_t device, unsigned *limit)) {
  unsigned now;
  nvmlReturn_t result = get(device, SIM_POWER_LIMIT_MW, limit ? &now : NULL);
  if (result == NVML_SUCCESS)
    *limit = SIM_POWER_LIMIT_DEFAULT_MW;
  return result;
}

NVML_API(nvmlDeviceGetPowerManagementLimitConstraints, (nvmlDevice_t device, unsigned *lowest, unsigned *highest)) {
  unsigned now;
  nvmlReturn_t result = get(device, SIM_POWER_LIMIT_MW, lowest && highest ? &now : NULL);
  if (result == NVML_SUCCESS) {
    *lowest = POWER_LOWEST_MW;
    *highest = POWER_HIGHEST_MW;
  }
  return result;
}

/* ---- field values ------------------------------------------------------------------------------------------------ */

/* Supported field ids: those that are settings, and counters of features the device lacks. Each of the others reports
 * NOT_SUPPORTED in its own result, as in the real library. */
static nvmlReturn_t field(nvmlDevice_t device, unsigned id, unsigned *value) {
  enum {
    NVLINK_LINK_COUNT = 91,
    POWER_MIN = 187,
    POWER_MAX = 188,
    POWER_DEFAULT = 189,
    POWER_CURRENT = 190,
    POWER_ASKED = 192
  };
  *value = 0;
  switch (id) {
    case NVLINK_LINK_COUNT:
      if (nvml_enter_device(device) == NVML_SUCCESS) {
        *value = nvml_links(device);
        nvml_leave();
      }
      return NVML_SUCCESS;
    case POWER_MIN: *value = POWER_LOWEST_MW; return NVML_SUCCESS;
    case POWER_MAX: *value = POWER_HIGHEST_MW; return NVML_SUCCESS;
    case POWER_DEFAULT: *value = SIM_POWER_LIMIT_DEFAULT_MW; return NVML_SUCCESS;
    case POWER_CURRENT:
    case POWER_ASKED: return get(device, SIM_POWER_LIMIT_MW, value);
    default: return NVML_ERROR_NOT_SUPPORTED;
  }
}

NVML_API(nvmlDeviceGetFieldValues, (nvmlDevice_t device, int count, nvmlFieldValue_t *values)) {
  enum { VALUE_UNSIGNED_INT = 1 };
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  if (count <= 0 || !values)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; i++) {
    unsigned value;
    values[i].nvmlReturn = field(device, values[i].fieldId, &value);
    values[i].valueType = VALUE_UNSIGNED_INT;
    values[i].value.ullVal = value;
  }
  return NVML_SUCCESS;
}

/* ---- accounting -------------------------------------------------------------------------------------------------- */

enum { NOT_AVAILABLE = -1, RECORDS = 1024 /* RECORDS: the number of ended processes that the engine keeps */ };

NVML_API(nvmlDeviceGetAccountingBufferSize, (nvmlDevice_t device, unsigned *size)) {
  unsigned mode;
  nvmlReturn_t result = get(device, SIM_ACCOUNTING, size ? &mode : NULL);
  if (result == NVML_SUCCESS)
    *size = RECORDS;
  return result;
}

/* Processes with an accounting record; none while accounting is off. */
static nvmlReturn_t records(nvmlDevice_t device, bool valid, struct sim_process **found, size_t *count) {
  uint64_t on = SIM_KEEP;
  *found = NULL;
  *count = 0;
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = valid ? nvml_setting(device, SIM_ACCOUNTING, &on) : NVML_ERROR_INVALID_ARGUMENT;
  if (result == NVML_SUCCESS && on)
    result = nvml_processes(device, true, found, count);
  nvml_leave();
  return result;
}

NVML_API(nvmlDeviceGetAccountingPids, (nvmlDevice_t device, unsigned *count, unsigned *pids)) {
  struct sim_process *found;
  size_t n;
  nvmlReturn_t result = records(device, count && (pids || !*count), &found, &n);
  if (result != NVML_SUCCESS)
    return result;
  size_t room = *count;
  for (size_t i = 0; i < n && n <= room; i++)
    pids[i] = (unsigned)found[i].pid;
  free(found);
  *count = (unsigned)n;
  return n <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static nvmlReturn_t record(nvmlDevice_t device, bool valid, unsigned pid, struct sim_process *out) {
  struct sim_process *found;
  size_t n;
  nvmlReturn_t result = records(device, valid, &found, &n);
  if (result != NVML_SUCCESS)
    return result;
  result = NVML_ERROR_NOT_FOUND;
  for (size_t i = 0; i < n && result != NVML_SUCCESS; i++) {
    if ((unsigned)found[i].pid != pid)
      continue;
    *out = found[i];
    result = NVML_SUCCESS;
  }
  free(found);
  return result;
}

/* The engine does not record when a process began, so times are 0 and rates are not available. */
NVML_API(nvmlDeviceGetAccountingStats, (nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats)) {
  struct sim_process of;
  nvmlReturn_t result = record(device, stats != NULL, pid, &of);
  if (result == NVML_SUCCESS)
    *stats = (nvmlAccountingStats_t){.gpuUtilization = (unsigned)NOT_AVAILABLE,
                                     .memoryUtilization = (unsigned)NOT_AVAILABLE,
                                     .maxMemoryUsage = of.peak_bytes,
                                     .isRunning = of.alive};
  return result;
}

NVML_API(nvmlDeviceGetAccountingStats_v2, (nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)) {
  struct sim_process of;
  nvmlReturn_t result = record(device, stats != NULL, stats ? stats->pid : 0, &of);
  if (result == NVML_SUCCESS)
    *stats = (nvmlAccountingStats_v2_t){.pid = stats->pid,
                                        .isRunning = of.alive,
                                        .gpuUtilization = (unsigned)NOT_AVAILABLE,
                                        .memoryUtilization = (unsigned)NOT_AVAILABLE,
                                        .maxMemoryUsage = of.peak_bytes};
  return result;
}
