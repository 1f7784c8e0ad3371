/* Reports the grant's memory to the program, never that of others. */
#include "hooks.h"
#include "interposer/hooks/report.h"
#include "interposer/memory/physical/exports.h"
#include "interposer/process/device.h"
#include "page/page.h"

/* What calls in progress of this process may take does not count as free. What those of other processes may take does:
 * it is free again soon if they do not take it. */
static uint64_t free_bytes(int ordinal) {
  struct gs_pages pages = {gs_process->limits, gs_process->usage};
  uint64_t growing = __atomic_load_n(&gs_process->slot->device[ordinal].memory_growing, __ATOMIC_ACQUIRE);
  uint64_t free = gs_page_memory(&pages, (uint32_t)ordinal, gs_process->total_bytes[ordinal]).free;
  return free > growing ? free - growing : 0;
}

/* Found by name by the NVML view in the same process: the total memory reported to the program; 0 before the first CUDA
 * call. */
__attribute__((visibility("default"))) uint64_t gpushare_total_bytes(uint32_t ordinal);
uint64_t gpushare_total_bytes(uint32_t ordinal) {
  struct gs_process *state = __atomic_load_n(&gs_process, __ATOMIC_ACQUIRE);
  bool joined = __atomic_load_n(&state->joined, __ATOMIC_ACQUIRE) == GS_JOINED;
  return joined && ordinal < state->ndevices ? state->total_bytes[ordinal] : 0;
}

/* The driver is called first, so that errors are its own. */
CUresult gs_do_memory_info(const struct gs_call *call, struct gs_out free, struct gs_out total) {
  CUresult result = gs_call(call);
  int ordinal = result == CUDA_SUCCESS ? gs_current_device() : GS_NO_DEVICE;
  if (ordinal != GS_NO_DEVICE) {
    gs_descriptors_settle();
    gs_out_write(free, free_bytes(ordinal));
    gs_out_write(total, gs_process->total_bytes[ordinal]);
  }
  return result;
}

CUresult gs_do_memory_total(const struct gs_call *call, struct gs_out total, CUdevice device) {
  CUresult result = gs_call(call);
  int ordinal = result == CUDA_SUCCESS ? gs_device_ordinal(device) : GS_NO_DEVICE;
  if (ordinal != GS_NO_DEVICE)
    gs_out_write(total, gs_process->total_bytes[ordinal]);
  return result;
}

CUresult gs_cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (result != CUDA_SUCCESS && !joined)
    return result;
  result = gs_real.cuDeviceGetAttribute(pi, attrib, dev);
  if (joined && result == CUDA_SUCCESS &&
      (attrib == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY || attrib == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) &&
      gs_managed_refused() && gs_device_ordinal(dev) != GS_NO_DEVICE)
    *pi = 0;
  return result;
}
