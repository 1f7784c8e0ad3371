/* What the view answers itself. Every function asks the real library first where that can fail: errors are its own. */
#include "ml.h"

#include <stddef.h>
#include <string.h>

#include "page.h"

#define EXPORT __attribute__((visibility("default")))
#define REAL(function) ((__typeof__(&function))gs_ml_real(#function))

enum {
  UUID_TEXT = 96,
  NOT_OURS = -1,
  DETAIL_VERSION = 0x1000018 /* sizeof(nvmlProcessDetailList_v1_t) | 1 << 24 */
};
#define NO_INSTANCE 0xffffffffu

typedef nvmlReturn_t (*uuid_function)(nvmlDevice_t device, char *text, unsigned int length);

static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "GPU-8-4-4-4-12" (or "MIG-...") -> 16 bytes */
static bool parse_uuid(const char *text, uint8_t uuid[16]) {
  const char *at = strchr(text, '-');
  unsigned digits = 0;
  for (at = at ? at + 1 : ""; *at && digits < 32; at++) {
    int digit = hex_digit(*at);
    if (digit < 0 && *at != '-')
      return false;
    if (digit >= 0) {
      uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] | digit : digit << 4);
      digits++;
    }
  }
  return digits == 32;
}

/* Which device of the grant this handle is. The real library's error when the handle is none. */
static nvmlReturn_t ordinal_of(const struct gs_view *view, nvmlDevice_t device, int *ordinal) {
  char text[UUID_TEXT];
  uint8_t uuid[16];
  nvmlReturn_t result = ((uuid_function)gs_ml_real("nvmlDeviceGetUUID"))(device, text, sizeof text);
  *ordinal = NOT_OURS;
  if (result != NVML_SUCCESS || !view->limits || !parse_uuid(text, uuid))
    return result;
  for (uint32_t i = 0; i < view->limits->ndevices && i < GS_MAX_DEVICES; i++)
    if (memcmp(view->limits->device[i].uuid, uuid, sizeof uuid) == 0)
      *ordinal = (int)i;
  return result;
}

static void memory_of(const struct gs_view *view, int ordinal, unsigned long long *total, unsigned long long *used) {
  struct gs_pages pages = {view->limits, (struct gs_usage *)view->usage};
  *total = __atomic_load_n(&view->limits->device[ordinal].memory_bytes, __ATOMIC_ACQUIRE);
  *used = view->usage ? gs_page_used(&pages, (uint32_t)ordinal) : 0;
  if (*used > *total)
    *used = *total; /* for a moment, when the limit was lowered */
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory);

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
  const struct gs_view *view = gs_ml_view();
  int ordinal;
  if (result != NVML_SUCCESS || !view)
    return result;
  result = ordinal_of(view, device, &ordinal);
  if (result != NVML_SUCCESS || ordinal == NOT_OURS) {
    memset(memory, 0, sizeof *memory);
    return result != NVML_SUCCESS ? result : NVML_ERROR_NO_PERMISSION;
  }
  memory_of(view, ordinal, &memory->total, &memory->used);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
  const struct gs_view *view = gs_ml_view();
  int ordinal;
  if (result != NVML_SUCCESS || !view)
    return result;
  memory->reserved = 0; /* what the driver keeps for itself is not part of a share */
  result = ordinal_of(view, device, &ordinal);
  if (result != NVML_SUCCESS || ordinal == NOT_OURS) {
    memory->total = memory->free = memory->used = 0;
    return result != NVML_SUCCESS ? result : NVML_ERROR_NO_PERMISSION;
  }
  memory_of(view, ordinal, &memory->total, &memory->used);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}

/* The window's size is the device's; how much of it is used says what neighbours do. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
  nvmlReturn_t result = REAL(nvmlDeviceGetBAR1MemoryInfo)(device, memory);
  if (result == NVML_SUCCESS && gs_ml_view()) {
    memory->bar1Used = 0;
    memory->bar1Free = memory->bar1Total;
  }
  return result;
}

/* ---- processes --------------------------------------------------------------------------------------------------------------- */

/* Live processes of the grant that hold memory of the device, at most max; gives how many there are. */
static unsigned int processes_of(const struct gs_view *view, int ordinal, nvmlProcessInfo_v2_t *out, unsigned int max) {
  unsigned int count = 0;
  uint32_t high = __atomic_load_n(&view->limits->slots_high, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; view->usage && i < high && i < GS_MAX_SLOTS; i++) {
    const struct gs_slot *slot = &view->usage->slot[i];
    uint64_t bytes = __atomic_load_n(&slot->device[ordinal].memory_bytes, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != GS_SLOT_LIVE || bytes == 0)
      continue;
    if (count < max)
      out[count] = (nvmlProcessInfo_v2_t){(unsigned int)slot->pid, bytes, NO_INSTANCE, NO_INSTANCE};
    count++;
  }
  return count;
}

typedef nvmlReturn_t (*list_function)(nvmlDevice_t device, unsigned int *count, void *infos);

enum list { COMPUTE, OTHER /* graphics, MPS clients: a grant has none */ };

/* size: of one entry. The entries begin alike in all versions. */
static nvmlReturn_t list(const char *name, enum list which, nvmlDevice_t device, unsigned int *count, void *infos, size_t size) {
  const struct gs_view *view = gs_ml_view();
  if (!view)
    return ((list_function)gs_ml_real(name))(device, count, infos);
  int ordinal;
  nvmlReturn_t result = ordinal_of(view, device, &ordinal);
  if (result != NVML_SUCCESS)
    return result;
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  nvmlProcessInfo_v2_t found[GS_MAX_SLOTS / 4];
  unsigned int room = *count, have = 0;
  if (which == COMPUTE && ordinal != NOT_OURS)
    have = processes_of(view, ordinal, found, sizeof found / sizeof *found);
  if (have > sizeof found / sizeof *found)
    have = sizeof found / sizeof *found;
  *count = have;
  if (have > room || (have && !infos))
    return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned int i = 0; i < have; i++)
    memcpy((char *)infos + i * size, &found[i], size);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *);
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *);
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *);
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t, nvmlProcessDetailList_v1_t *);
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned int *,
                                                    unsigned long long);

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
  return list("nvmlDeviceGetComputeRunningProcesses", COMPUTE, device, count, infos, sizeof *infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
  return list("nvmlDeviceGetComputeRunningProcesses_v2", COMPUTE, device, count, infos, sizeof *infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
  return list("nvmlDeviceGetComputeRunningProcesses_v3", COMPUTE, device, count, infos, sizeof *infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
  return list("nvmlDeviceGetGraphicsRunningProcesses", OTHER, device, count, infos, sizeof *infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
  return list("nvmlDeviceGetGraphicsRunningProcesses_v2", OTHER, device, count, infos, sizeof *infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
  return list("nvmlDeviceGetGraphicsRunningProcesses_v3", OTHER, device, count, infos, sizeof *infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
  return list("nvmlDeviceGetMPSComputeRunningProcesses", OTHER, device, count, infos, sizeof *infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
  return list("nvmlDeviceGetMPSComputeRunningProcesses_v2", OTHER, device, count, infos, sizeof *infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
  return list("nvmlDeviceGetMPSComputeRunningProcesses_v3", OTHER, device, count, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *details) {
  const struct gs_view *view = gs_ml_view();
  if (!view)
    return REAL(nvmlDeviceGetRunningProcessDetailList)(device, details);
  enum { MODE_COMPUTE = 0 };
  if (!details)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (details->version != DETAIL_VERSION)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlProcessInfo_v2_t found[GS_MAX_SLOTS / 4];
  unsigned int have = sizeof found / sizeof *found, room = details->procArray ? details->numProcArrayEntries : 0;
  nvmlReturn_t result = list("", details->mode == MODE_COMPUTE ? COMPUTE : OTHER, device, &have, found, sizeof *found);
  if (result != NVML_SUCCESS)
    return result;
  details->numProcArrayEntries = have;
  if (have > room)
    return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned int i = 0; i < have; i++)
    details->procArray[i] =
        (nvmlProcessDetail_v1_t){found[i].pid, found[i].usedGpuMemory, found[i].gpuInstanceId, found[i].computeInstanceId, 0};
  return NVML_SUCCESS;
}

static bool in_grant(const struct gs_view *view, unsigned int pid) {
  uint32_t high = view->limits ? __atomic_load_n(&view->limits->slots_high, __ATOMIC_ACQUIRE) : 0;
  for (uint32_t i = 0; view->usage && i < high && i < GS_MAX_SLOTS; i++)
    if (__atomic_load_n(&view->usage->slot[i].state, __ATOMIC_ACQUIRE) == GS_SLOT_LIVE &&
        (unsigned int)view->usage->slot[i].pid == pid)
      return true;
  return false;
}

/* The real samples, without those of other tenants. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count,
                                             unsigned long long last_seen) {
  const struct gs_view *view = gs_ml_view();
  nvmlReturn_t result = REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, last_seen);
  if (!view || result != NVML_SUCCESS || !samples)
    return result;
  unsigned int kept = 0;
  for (unsigned int i = 0; i < *count; i++)
    if (in_grant(view, samples[i].pid))
      samples[kept++] = samples[i];
  *count = kept;
  return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
