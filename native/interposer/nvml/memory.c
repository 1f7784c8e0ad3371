/* Total and used memory: the grant's. */
#include <dlfcn.h>
#include <errno.h>

#include "interposer/os/guest.h"
#include "interposer/nvml/ml.h"
#include "page/page.h"

typedef uint64_t (*total_function)(uint32_t ordinal);

/* Finds the CUDA half of the interposer, which may be loaded later, and where a plain symbol lookup does not search. */
static total_function cuda_half(void) {
  static total_function found;
  total_function function = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
  if (function)
    return function;
  int saved = errno;
  function = (total_function)dlsym(RTLD_DEFAULT, "gpushare_total_bytes");
  if (!function) {
    void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    function = handle ? (total_function)dlsym(handle, "gpushare_total_bytes") : NULL;
    if (handle)
      dlclose(handle); /* it is linked so that it is never unloaded */
    dlerror();         /* so that the program does not see an error of this lookup */
  }
  __atomic_store_n(&found, function, __ATOMIC_RELEASE);
  errno = saved;
  return function;
}

/* A process sees one total: CUDA's as of its first CUDA call, and before that NVML's as of its first nvmlInit. */
static uint64_t total_bytes(const struct gs_view *view, int ordinal) {
  total_function cuda = cuda_half();
  uint64_t total = cuda ? cuda((uint32_t)ordinal) : 0;
  return total ? total : view->total_bytes[ordinal];
}

static nvmlReturn_t memory_of(const struct gs_view *view, nvmlDevice_t device, struct gs_memory *out) {
  int ordinal;
  nvmlReturn_t result = gs_ml_device(view, device, &ordinal);
  if (result != NVML_SUCCESS)
    return result;
  struct gs_pages pages = {view->limits, (struct gs_usage *)view->usage};
  *out = gs_page_memory(&pages, (uint32_t)ordinal, total_bytes(view, ordinal));
  return NVML_SUCCESS;
}

/* What v2 calls reserved is part of v1's used. */
static nvmlReturn_t fill(const struct gs_view *view, nvmlDevice_t device, nvmlMemory_t *memory) {
  struct gs_memory seen;
  nvmlReturn_t result = memory_of(view, device, &seen);
  if (result == NVML_SUCCESS)
    *memory = (nvmlMemory_t){.total = seen.total, .free = seen.free, .used = seen.total - seen.free};
  return result;
}

GS_ML(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *memory)) {
  const struct gs_view *view = gs_ml_view();
  nvmlMemory_t real;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetMemoryInfo)(device, view && memory ? &real : memory);
  return result == NVML_SUCCESS && view ? fill(view, device, memory) : result;
}

/* If memory is protected, all memory of a grant is. */
GS_ML(nvmlDeviceGetConfComputeProtectedMemoryUsage, (nvmlDevice_t device, nvmlMemory_t *memory)) {
  const struct gs_view *view = gs_ml_view();
  nvmlMemory_t real;
  nvmlReturn_t result =
      GS_ML_REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, view && memory ? &real : memory);
  return result == NVML_SUCCESS && view ? fill(view, device, memory) : result;
}

GS_ML(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *memory)) {
  const struct gs_view *view = gs_ml_view();
  nvmlMemory_v2_t real = {.version = memory ? memory->version : 0};
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetMemoryInfo_v2)(device, view && memory ? &real : memory);
  struct gs_memory seen;
  if (result != NVML_SUCCESS || !view)
    return result;
  result = memory_of(view, device, &seen);
  if (result != NVML_SUCCESS)
    return result;
  /* memory that the driver keeps for itself is not part of a grant; memory withdrawn by a resize is unavailable to this
   * program in the same way */
  memory->total = seen.total;
  memory->reserved = seen.withdrawn;
  memory->free = seen.free;
  memory->used = seen.used;
  return NVML_SUCCESS;
}

/* The size of the window is the device's; the used part would reveal what other tenants do. */
GS_ML(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice_t device, nvmlBAR1Memory_t *memory)) {
  const struct gs_view *view = gs_ml_view();
  nvmlBAR1Memory_t real;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetBAR1MemoryInfo)(device, view && memory ? &real : memory);
  if (result == NVML_SUCCESS && view)
    *memory = (nvmlBAR1Memory_t){.bar1Total = real.bar1Total, .bar1Free = real.bar1Total, .bar1Used = 0};
  return result;
}
