/* The driver's accounting of processes, if it is enabled: only of the grant's own live processes. The driver's numbers
 * are compared with host pids only: a process that it reports by another number is dropped, never mistaken for one of
 * the grant. */
#include <sys/mman.h>

#include "interposer/os/guest.h"
#include "interposer/nvml/ml.h"

static const struct gs_slot *by_host_pid(const struct gs_view *view, unsigned int pid) {
  for (uint32_t i = 0; i < gs_ml_slots(view); i++) {
    const struct gs_slot *slot = gs_ml_slot(view, i);
    if (slot && (unsigned int)slot->pid == pid)
      return slot;
  }
  return NULL;
}

/* Writes at most `room` entries; returns how many there are. */
static unsigned int keep_own(const struct gs_view *view, const unsigned int *all, unsigned int nall, unsigned int *pids,
                             unsigned int room) {
  unsigned int kept = 0;
  for (unsigned int i = 0; i < nall; i++) {
    const struct gs_slot *slot = by_host_pid(view, all[i]);
    if (slot && kept++ < room)
      pids[kept - 1] = gs_ml_pid(view, slot);
  }
  return kept;
}

GS_ML(nvmlDeviceGetAccountingPids, (nvmlDevice_t device, unsigned int *count, unsigned int *pids)) {
  enum { NEWCOMERS = 64 };
  const struct gs_view *view = gs_ml_view();
  if (!view || !count)
    return GS_ML_REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
  unsigned int all = 0;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetAccountingPids)(device, &all, NULL);
  if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
    return result;
  unsigned int room = *count;
  if (room && !pids)
    return NVML_ERROR_INVALID_ARGUMENT;
  all += NEWCOMERS;
  size_t bytes = all * sizeof *pids;
  unsigned int *buffer = gs_private_map(bytes);
  if (!buffer)
    return NVML_ERROR_MEMORY;
  result = GS_ML_REAL(nvmlDeviceGetAccountingPids)(device, &all, buffer);
  if (result == NVML_SUCCESS) {
    *count = keep_own(view, buffer, all, pids, room);
    result = *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
  }
  munmap(buffer, bytes);
  return result;
}

/* The host pid of a process of the grant, in *host. */
static nvmlReturn_t host_pid(const struct gs_view *view, nvmlDevice_t device, unsigned int pid, unsigned int *host) {
  int ordinal;
  nvmlReturn_t result = gs_ml_ordinal(view, device, &ordinal);
  const struct gs_slot *slot = gs_ml_find(view, pid);
  *host = slot ? (unsigned int)slot->pid : 0;
  return result == NVML_SUCCESS && !slot ? NVML_ERROR_NOT_FOUND : result;
}

GS_ML(nvmlDeviceGetAccountingStats, (nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)) {
  const struct gs_view *view = gs_ml_view();
  unsigned int host = pid;
  nvmlReturn_t result = view && stats ? host_pid(view, device, pid, &host) : NVML_SUCCESS;
  return result == NVML_SUCCESS ? GS_ML_REAL(nvmlDeviceGetAccountingStats)(device, host, stats) : result;
}

GS_ML(nvmlDeviceGetAccountingStats_v2, (nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)) {
  const struct gs_view *view = gs_ml_view();
  if (!view || !stats)
    return GS_ML_REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
  unsigned int pid = stats->pid;
  nvmlReturn_t result = host_pid(view, device, pid, &stats->pid);
  if (result == NVML_SUCCESS)
    result = GS_ML_REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
  stats->pid = pid;
  return result;
}
