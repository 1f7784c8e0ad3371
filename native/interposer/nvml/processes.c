/* Who uses a device: the grant's own processes. */
#include <string.h>
#include <unistd.h>

#include "interposer/nvml/ml.h"

uint32_t gs_ml_slots(const struct gs_view *view) {
  uint32_t high = view->limits && view->usage ? __atomic_load_n(&view->limits->slots_high, __ATOMIC_ACQUIRE) : 0;
  return high < GS_MAX_SLOTS ? high : GS_MAX_SLOTS;
}

const struct gs_slot *gs_ml_slot(const struct gs_view *view, uint32_t index) {
  const struct gs_slot *slot = &view->usage->slot[index];
  return __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == GS_SLOT_LIVE ? slot : NULL;
}

unsigned int gs_ml_pid(const struct gs_view *view, const struct gs_slot *slot) {
  int32_t own_pid = __atomic_load_n(&slot->own_pid, __ATOMIC_ACQUIRE);
  bool neighbours = __atomic_load_n(&slot->pid_namespace, __ATOMIC_RELAXED) == view->pid_namespace;
  return (unsigned int)(neighbours && own_pid > 0 ? own_pid : slot->pid);
}

const struct gs_slot *gs_ml_find(const struct gs_view *view, unsigned int pid) {
  for (uint32_t i = 0; i < gs_ml_slots(view); i++) {
    const struct gs_slot *slot = gs_ml_slot(view, i);
    if (slot && gs_ml_pid(view, slot) == pid)
      return slot;
  }
  return NULL;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

typedef nvmlReturn_t (*list_function)(nvmlDevice_t device, unsigned int *count, void *infos);

enum list { COMPUTE, OTHER /* graphics, MPS clients, encoder and frame buffer sessions: a grant has none of them */ };
#define NO_INSTANCE 0xffffffffu

/* The entries of all lists of compute processes begin in the same way; size is that of one entry. Writes at most `room`
 * entries; returns how many there are. Writes directly into the program's array: there may be a thousand entries, and
 * the program's stack may be small. */
static unsigned int put_processes(const struct gs_view *view, int ordinal, void *infos, size_t size,
                                  unsigned int room) {
  unsigned int count = 0;
  for (uint32_t i = 0; i < gs_ml_slots(view); i++) {
    const struct gs_slot *slot = gs_ml_slot(view, i);
    uint64_t bytes = slot ? __atomic_load_n(&slot->device[ordinal].memory_bytes, __ATOMIC_ACQUIRE) : 0;
    if (bytes == 0)
      continue;
    nvmlProcessDetail_v1_t entry = {gs_ml_pid(view, slot), bytes, NO_INSTANCE, NO_INSTANCE, 0};
    if (count < room)
      memcpy((char *)infos + count * size, &entry, size);
    count++;
  }
  return count;
}

static nvmlReturn_t put_list(const struct gs_view *view, enum list which, nvmlDevice_t device, unsigned int *count,
                             void *infos, size_t size) {
  int ordinal;
  nvmlReturn_t result = gs_ml_ordinal(view, device, &ordinal);
  if (result != NVML_SUCCESS)
    return result;
  unsigned int room = *count;
  if (room && !infos)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = which == COMPUTE && ordinal != GS_ML_NOT_OURS ? put_processes(view, ordinal, infos, size, room) : 0;
  return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list(enum gs_ml_index index, enum list which, nvmlDevice_t device, unsigned int *count, void *infos,
                         size_t size) {
  const struct gs_view *view = gs_ml_view();
  list_function real = (list_function)__atomic_load_n(&gs_real[index], __ATOMIC_ACQUIRE);
  if (!view || !count)
    return real(device, count, infos);
  unsigned int none = 0;
  nvmlReturn_t result = real(device, &none, NULL);
  if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
    return result;
  return put_list(view, which, device, count, infos, size);
}

GS_ML(nvmlDeviceGetComputeRunningProcesses, (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)) {
  return list(GS_ML_nvmlDeviceGetComputeRunningProcesses, COMPUTE, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetComputeRunningProcesses_v2,
      (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)) {
  return list(GS_ML_nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetComputeRunningProcesses_v3,
      (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)) {
  return list(GS_ML_nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetGraphicsRunningProcesses, (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)) {
  return list(GS_ML_nvmlDeviceGetGraphicsRunningProcesses, OTHER, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetGraphicsRunningProcesses_v2,
      (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)) {
  return list(GS_ML_nvmlDeviceGetGraphicsRunningProcesses_v2, OTHER, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetGraphicsRunningProcesses_v3,
      (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)) {
  return list(GS_ML_nvmlDeviceGetGraphicsRunningProcesses_v3, OTHER, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetMPSComputeRunningProcesses,
      (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)) {
  return list(GS_ML_nvmlDeviceGetMPSComputeRunningProcesses, OTHER, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetMPSComputeRunningProcesses_v2,
      (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)) {
  return list(GS_ML_nvmlDeviceGetMPSComputeRunningProcesses_v2, OTHER, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetMPSComputeRunningProcesses_v3,
      (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)) {
  return list(GS_ML_nvmlDeviceGetMPSComputeRunningProcesses_v3, OTHER, device, count, infos, sizeof *infos);
}
GS_ML(nvmlDeviceGetEncoderSessions, (nvmlDevice_t device, unsigned int *count, void *infos)) {
  return list(GS_ML_nvmlDeviceGetEncoderSessions, OTHER, device, count, infos, 0);
}
GS_ML(nvmlDeviceGetFBCSessions, (nvmlDevice_t device, unsigned int *count, void *infos)) {
  return list(GS_ML_nvmlDeviceGetFBCSessions, OTHER, device, count, infos, 0);
}

GS_ML(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t device, nvmlProcessDetailList_v1_t *details)) {
  enum { MODE_COMPUTE = 0 };
  const struct gs_view *view = gs_ml_view();
  if (!view || !details)
    return GS_ML_REAL(nvmlDeviceGetRunningProcessDetailList)(device, details);
  nvmlProcessDetailList_v1_t real = {.version = details->version, .mode = details->mode};
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &real);
  if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
    return result;
  return put_list(view, details->mode == MODE_COMPUTE ? COMPUTE : OTHER, device, &details->numProcArrayEntries,
                  details->procArray, sizeof *details->procArray);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

GS_ML(nvmlSystemGetProcessName, (unsigned int pid, char *name, unsigned int length)) {
  const struct gs_view *view = gs_ml_view();
  if (!view || pid == (unsigned int)getpid() || gs_ml_find(view, pid))
    return GS_ML_REAL(nvmlSystemGetProcessName)(pid, name, length);
  nvmlReturn_t result = gs_ml_ready();
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}
