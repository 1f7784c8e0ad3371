/* Memory limits per cgroup, which drivers have from r615 on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "sim/nvml/nvml.h"

/* Sends the request with the cgroup's directory. Requires the lock. */
static nvmlReturn_t ask(nvmlDevice_t device, uint32_t op, const char *path, const uint64_t arguments[2],
                        struct sim_reply *reply) {
  if (nvml_hello()->driver < SIM_DRIVER_LIMITS)
    return NVML_ERROR_FUNCTION_NOT_FOUND;
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return NVML_ERROR_NOT_FOUND;
  nvmlReturn_t result = nvml_give(device, op, arguments, fd, reply);
  close(fd);
  return result;
}

NVML_API(nvmlDeviceSetMemoryLimits_v1, (nvmlDevice_t device, const nvmlSetMemoryLimits_v1_t *limits)) {
  struct sim_reply reply;
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = limits && limits->nameSpace ? ask(device, SIM_LIMIT_SET, limits->nameSpace,
                                             (const uint64_t[]){limits->hardLimit, limits->softLimit}, &reply)
                                       : NVML_ERROR_INVALID_ARGUMENT;
  nvml_leave();
  return result;
}

NVML_API(nvmlDeviceGetMemoryLimits_v1, (nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)) {
  struct sim_reply reply;
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = limits && limits->nameSpace ? ask(device, SIM_LIMIT_GET, limits->nameSpace, (const uint64_t[]){0, 0}, &reply)
                                       : NVML_ERROR_INVALID_ARGUMENT;
  nvml_leave();
  if (result == NVML_SUCCESS) {
    limits->hardLimit = reply.a;
    limits->softLimit = reply.b;
    limits->currentUsed = reply.c;
  }
  return result;
}
