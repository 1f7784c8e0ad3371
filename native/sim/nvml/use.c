/* Use of a device: memory, processes, busy time, all from the engine's accounts. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "page/gs_clock.h"
#include "sim/nvml/nvml.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static nvmlReturn_t memory(nvmlDevice_t device, const void *out, nvmlMemory_t *info) {
  struct sim_reply reply;
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = out ? nvml_call(SIM_MEM_INFO, device, &reply, NULL, 0) : NVML_ERROR_INVALID_ARGUMENT;
  nvml_leave();
  if (result == NVML_SUCCESS)
    *info = (nvmlMemory_t){.total = reply.a, .free = reply.a - reply.b, .used = reply.b};
  return result;
}

NVML_API(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *out)) {
  nvmlMemory_t info;
  nvmlReturn_t result = memory(device, out, &info);
  if (result == NVML_SUCCESS)
    *out = info;
  return result;
}

NVML_API(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *out)) {
  nvmlMemory_t info;
  nvmlReturn_t result = memory(device, out, &info);
  if (result != NVML_SUCCESS)
    return result;
  if (out->version != (sizeof *out | 2u << 24))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  out->total = info.total;
  out->reserved = 0;
  out->free = info.free;
  out->used = info.used;
  return NVML_SUCCESS;
}

/* BAR1 covers the whole memory; the part in use is the memory in use. */
NVML_API(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice_t device, nvmlBAR1Memory_t *out)) {
  nvmlMemory_t info;
  nvmlReturn_t result = memory(device, out, &info);
  if (result == NVML_SUCCESS)
    *out = (nvmlBAR1Memory_t){.bar1Total = info.total, .bar1Free = info.free, .bar1Used = info.used};
  return result;
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

/* Calls put for each process. *count is the array's capacity on entry and the required size on return. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *out,
                         void (*put)(void *, size_t, const struct sim_process *)) {
  struct sim_process *found = NULL;
  size_t n = 0;
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = count && (out || !*count) ? nvml_processes(device, false, &found, &n) : NVML_ERROR_INVALID_ARGUMENT;
  nvml_leave();
  if (result != NVML_SUCCESS)
    return result;
  size_t room = *count;
  *count = (unsigned)n;
  if (n > room)
    result = NVML_ERROR_INSUFFICIENT_SIZE;
  for (size_t i = 0; i < n && result == NVML_SUCCESS; i++)
    put(out, i, &found[i]);
  free(found);
  return result;
}

/* Graphics and MPS processes: there are none. */
static nvmlReturn_t none(nvmlDevice_t device, unsigned *count, const void *infos) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  if (!count || (*count && !infos))
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

enum { NO_INSTANCE = -1 };

static void put_v1(void *out, size_t i, const struct sim_process *process) {
  ((nvmlProcessInfo_v1_t *)out)[i] = (nvmlProcessInfo_v1_t){(unsigned)process->pid, process->bytes};
}

static void put_v2(void *out, size_t i, const struct sim_process *process) {
  ((nvmlProcessInfo_v2_t *)out)[i] =
      (nvmlProcessInfo_v2_t){(unsigned)process->pid, process->bytes, (unsigned)NO_INSTANCE, (unsigned)NO_INSTANCE};
}

static void put_detail(void *out, size_t i, const struct sim_process *process) {
  ((nvmlProcessDetail_v1_t *)out)[i] =
      (nvmlProcessDetail_v1_t){(unsigned)process->pid, process->bytes, (unsigned)NO_INSTANCE, (unsigned)NO_INSTANCE, 0};
}

NVML_API(nvmlDeviceGetComputeRunningProcesses, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)) {
  return list(device, count, infos, put_v1);
}
NVML_API(nvmlDeviceGetComputeRunningProcesses_v2, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)) {
  return list(device, count, infos, put_v2);
}
NVML_API(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)) {
  return list(device, count, infos, put_v2);
}

NVML_API(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t device, nvmlProcessDetailList_v1_t *details)) {
  enum { MODE_COMPUTE = 0, MODE_LAST = 2 };
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  if (!details || details->mode > MODE_LAST)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (details->version != (sizeof *details | 1u << 24))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (details->mode == MODE_COMPUTE)
    return list(device, &details->numProcArrayEntries, details->procArray, put_detail);
  return none(device, &details->numProcArrayEntries, details->procArray);
}

NVML_API(nvmlDeviceGetGraphicsRunningProcesses, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)) {
  return none(device, count, infos);
}
NVML_API(nvmlDeviceGetGraphicsRunningProcesses_v2,
         (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)) {
  return none(device, count, infos);
}
NVML_API(nvmlDeviceGetGraphicsRunningProcesses_v3,
         (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)) {
  return none(device, count, infos);
}
NVML_API(nvmlDeviceGetMPSComputeRunningProcesses, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)) {
  return none(device, count, infos);
}
NVML_API(nvmlDeviceGetMPSComputeRunningProcesses_v2,
         (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)) {
  return none(device, count, infos);
}
NVML_API(nvmlDeviceGetMPSComputeRunningProcesses_v3,
         (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)) {
  return none(device, count, infos);
}

/* ---- busy time --------------------------------------------------------------------------------------------------- */

static unsigned long long wall_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
}

/* The shortest interval over which a rate is computed. */
enum { SHORTEST_NS = 20000000 };

static void pause_ns(uint64_t ns) { gs_clock_sleep(gs_clock_own() + ns); }

static nvmlReturn_t sample(const struct nvml_device *device, struct nvml_sample *out) {
  struct sim_reply reply;
  nvmlReturn_t result = nvml_call(SIM_DEVICE, device, &reply, NULL, 0);
  if (result == NVML_SUCCESS)
    *out = (struct nvml_sample){.at_ns = gs_clock_own(), .busy_ns = reply.a};
  return result;
}

static unsigned percent(uint64_t busy, uint64_t wall) {
  uint64_t value = wall ? (busy * 100 + wall / 2) / wall : 0;
  return value > 100 ? 100 : (unsigned)value;
}

/* The engine keeps sums, not histories. The rate is measured since a sample that this library took up to about one
 * second ago; without one it is measured over a short pause. */
static nvmlReturn_t device_rate(struct nvml_device *device, unsigned *rate) {
  struct nvml_sample last;
  uint64_t now = gs_clock_own();
  if (device->newer.at_ns == 0 || now - device->newer.at_ns > NVML_WINDOW_NS) {
    nvmlReturn_t result = sample(device, &device->newer);
    if (result != NVML_SUCCESS)
      return result;
    device->older = device->newer;
  }
  if (gs_clock_own() - device->older.at_ns < SHORTEST_NS)
    pause_ns(SHORTEST_NS);
  nvmlReturn_t result = sample(device, &last);
  if (result != NVML_SUCCESS)
    return result;
  *rate = percent(last.busy_ns - device->older.busy_ns, last.at_ns - device->older.at_ns);
  if (last.at_ns - device->newer.at_ns > NVML_WINDOW_NS / 2) {
    device->older = device->newer;
    device->newer = last;
  }
  return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t *rates)) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  unsigned rate = 0;
  result = rates ? device_rate(device, &rate) : NVML_ERROR_INVALID_ARGUMENT;
  nvml_leave();
  if (result == NVML_SUCCESS)
    *rates = (nvmlUtilization_t){.gpu = rate, .memory = 0 /* the simulation has no memory controller */};
  return result;
}

static uint64_t busy_of(const struct sim_process *all, size_t count, int32_t pid) {
  for (size_t i = 0; i < count; i++)
    if (all[i].pid == pid)
      return all[i].busy_ns;
  return 0;
}

/* One sample for each process that was active, measured over a short pause. */
static nvmlReturn_t process_rates(const struct nvml_device *device, nvmlProcessUtilizationSample_t **out,
                                  size_t *count) {
  struct sim_process *before = NULL, *after = NULL;
  size_t nbefore = 0, nafter = 0;
  uint64_t begin = gs_clock_own();
  nvmlReturn_t result = nvml_processes(device, false, &before, &nbefore);
  if (result == NVML_SUCCESS) {
    pause_ns(SHORTEST_NS);
    result = nvml_processes(device, false, &after, &nafter);
  }
  uint64_t wall = gs_clock_own() - begin;
  *count = 0;
  *out = result == NVML_SUCCESS ? calloc(nafter + 1, sizeof **out) : NULL;
  for (size_t i = 0; *out && i < nafter; i++) {
    uint64_t busy = after[i].busy_ns - busy_of(before, nbefore, after[i].pid);
    if (busy > 0)
      (*out)[(*count)++] = (nvmlProcessUtilizationSample_t){
          .pid = (unsigned)after[i].pid, .timeStamp = wall_us(), .smUtil = percent(busy, wall)};
  }
  free(before);
  free(after);
  return result != NVML_SUCCESS || *out ? result : NVML_ERROR_MEMORY;
}

/* put writes sample i. *count is the capacity on entry and the number of samples on return. All samples are taken now,
 * so they are newer than any timestamp the caller has seen. */
static nvmlReturn_t put_rates(nvmlDevice_t device, unsigned *count, void *samples,
                              void (*put)(void *, size_t, const nvmlProcessUtilizationSample_t *)) {
  nvmlProcessUtilizationSample_t *found;
  size_t n;
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = count ? process_rates(device, &found, &n) : NVML_ERROR_INVALID_ARGUMENT;
  nvml_leave();
  if (result != NVML_SUCCESS)
    return result;
  size_t room = samples ? *count : 0;
  if (n == 0 && samples)
    result = NVML_ERROR_NOT_FOUND;
  else if (n > room || !samples)
    result = NVML_ERROR_INSUFFICIENT_SIZE;
  for (size_t i = 0; i < n && result == NVML_SUCCESS; i++)
    put(samples, i, &found[i]);
  /* size query: includes room for processes that start before the next call */
  *count = (unsigned)(samples ? n : n + 16);
  free(found);
  return result;
}

static void put_sample(void *out, size_t i, const nvmlProcessUtilizationSample_t *sample) {
  ((nvmlProcessUtilizationSample_t *)out)[i] = *sample;
}

static void put_info(void *out, size_t i, const nvmlProcessUtilizationSample_t *sample) {
  ((nvmlProcessUtilizationInfo_v1_t *)out)[i] =
      (nvmlProcessUtilizationInfo_v1_t){.timeStamp = sample->timeStamp, .pid = sample->pid, .smUtil = sample->smUtil};
}

NVML_API(nvmlDeviceGetProcessUtilization, (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                           unsigned *count, unsigned long long last_seen)) {
  (void)last_seen;
  return put_rates(device, count, samples, put_sample);
}

NVML_API(nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *infos)) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  if (!infos)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (infos->version != (sizeof *infos | 1u << 24))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return put_rates(device, &infos->processSamplesCount, infos->procUtilArray, put_info);
}

/* Returns one sample, taken now: the engine keeps no histories. */
NVML_API(nvmlDeviceGetSamples, (nvmlDevice_t device, unsigned kind, unsigned long long last_seen, unsigned *type,
                                unsigned *count, nvmlSample_t *samples)) {
  enum { GPU_UTILIZATION = 1, VALUE_UNSIGNED_INT = 1 };
  nvmlReturn_t result = nvml_enter_device(device);
  (void)last_seen;
  if (result != NVML_SUCCESS)
    return result;
  unsigned rate = 0;
  if (!type || !count || (samples && *count == 0))
    result = NVML_ERROR_INVALID_ARGUMENT;
  else if (kind != GPU_UTILIZATION)
    result = NVML_ERROR_NOT_SUPPORTED;
  else if (samples)
    result = device_rate(device, &rate);
  nvml_leave();
  if (result != NVML_SUCCESS)
    return result;
  *type = VALUE_UNSIGNED_INT;
  *count = 1;
  if (samples)
    *samples = (nvmlSample_t){.timeStamp = wall_us(), .sampleValue = {.uiVal = rate}};
  return NVML_SUCCESS;
}
