/* What a program is told about memory: its grant's, never a neighbour's. */
#include "interposer/process/device.h"
#include "page/page.h"

static uint64_t free_bytes(int ordinal) {
  struct gs_pages pages = {gs_process->limits, gs_process->usage};
  return gs_page_memory(&pages, (uint32_t)ordinal, gs_process->total_bytes[ordinal]).free;
}

__attribute__((visibility("default"))) uint64_t gpushare_total_bytes(uint32_t ordinal) {
  struct gs_process *state = __atomic_load_n(&gs_process, __ATOMIC_ACQUIRE);
  bool joined = __atomic_load_n(&state->joined, __ATOMIC_ACQUIRE) == GS_JOINED;
  return joined && ordinal < state->ndevices ? state->total_bytes[ordinal] : 0;
}

static unsigned int saturated(uint64_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes; }

/* The driver is asked first: errors are its own. */
CUresult gs_cuMemGetInfo_v2(size_t *free, size_t *total) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (result != CUDA_SUCCESS && !joined)
    return result;
  result = gs_real.cuMemGetInfo_v2(free, total);
  int ordinal = joined && result == CUDA_SUCCESS ? gs_current_device() : GS_NO_DEVICE;
  if (ordinal != GS_NO_DEVICE && free)
    *free = free_bytes(ordinal);
  if (ordinal != GS_NO_DEVICE && total)
    *total = gs_process->total_bytes[ordinal];
  return result;
}

CUresult gs_cuMemGetInfo(unsigned int *free, unsigned int *total) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (result != CUDA_SUCCESS && !joined)
    return result;
  result = gs_real.cuMemGetInfo(free, total);
  int ordinal = joined && result == CUDA_SUCCESS ? gs_current_device() : GS_NO_DEVICE;
  if (ordinal != GS_NO_DEVICE && free)
    *free = saturated(free_bytes(ordinal));
  if (ordinal != GS_NO_DEVICE && total)
    *total = saturated(gs_process->total_bytes[ordinal]);
  return result;
}

CUresult gs_cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
  enum { MANAGED_MEMORY = 83, CONCURRENT_MANAGED_ACCESS = 89 }; /* CU_DEVICE_ATTRIBUTE_* */
  CUresult result;
  bool joined = gs_enter(&result);
  if (result != CUDA_SUCCESS && !joined)
    return result;
  result = gs_real.cuDeviceGetAttribute(pi, attrib, dev);
  if (joined && result == CUDA_SUCCESS && (attrib == MANAGED_MEMORY || attrib == CONCURRENT_MANAGED_ACCESS) &&
      gs_managed_refused() && gs_device_ordinal(dev) != GS_NO_DEVICE)
    *pi = 0;
  return result;
}

CUresult gs_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (result != CUDA_SUCCESS && !joined)
    return result;
  result = gs_real.cuDeviceTotalMem_v2(bytes, dev);
  int ordinal = joined && result == CUDA_SUCCESS ? gs_device_ordinal(dev) : GS_NO_DEVICE;
  if (ordinal != GS_NO_DEVICE)
    *bytes = gs_process->total_bytes[ordinal];
  return result;
}

CUresult gs_cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (result != CUDA_SUCCESS && !joined)
    return result;
  result = gs_real.cuDeviceTotalMem(bytes, dev);
  int ordinal = joined && result == CUDA_SUCCESS ? gs_device_ordinal(dev) : GS_NO_DEVICE;
  if (ordinal != GS_NO_DEVICE)
    *bytes = saturated(gs_process->total_bytes[ordinal]);
  return result;
}
