/* The processes on a device. */
#include "sim/smi/smi.h"

static unsigned add(nvmlReturn_t (*list)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *), const char *type,
                    const struct smi_device *device, struct smi_process *out, unsigned count) {
  static nvmlProcessInfo_v2_t found[SMI_PROCESSES];
  unsigned most = SMI_PROCESSES;
  if (list(device->handle, &most, found) != NVML_SUCCESS)
    return count;
  for (unsigned i = 0; i < most && count < SMI_PROCESSES; i++) {
    struct smi_process *one = &out[count++];
    *one = (struct smi_process){.pid = found[i].pid, .bytes = found[i].usedGpuMemory, .type = type};
    if (smi_nvml.nvmlSystemGetProcessName(one->pid, one->name, sizeof one->name) != NVML_SUCCESS)
      one->name[0] = '\0';
  }
  return count;
}

unsigned smi_processes(const struct smi_device *device, struct smi_process list[SMI_PROCESSES]) {
  unsigned count = add(smi_nvml.nvmlDeviceGetComputeRunningProcesses_v3, "C", device, list, 0);
  return add(smi_nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, "G", device, list, count);
}
