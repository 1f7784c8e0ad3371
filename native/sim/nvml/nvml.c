/* Initialisation and shutdown, system information, and device lookup. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/nvml/nvml.h"

/* The version of this library's interface: that of the driver of CUDA 13.0. */
#define NVML_VERSION "13.580.0"

static struct {
  pthread_mutex_t lock;
  unsigned users; /* calls of nvmlInit minus calls of nvmlShutdown */
  pid_t pid;      /* detects a forked child, which must initialise again */
  struct sim_wire wire;
  struct nvml_device device[SIM_MAX_DEVICES];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .wire = {.fd = -1}};

nvmlReturn_t nvml_enter(void) {
  pthread_mutex_lock(&all.lock);
  if (all.users > 0 && all.pid == getpid())
    return NVML_SUCCESS;
  pthread_mutex_unlock(&all.lock);
  return NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvml_enter_device(nvmlDevice_t device) {
  nvmlReturn_t result = nvml_enter();
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned i = 0; i < all.wire.hello.ndevices; i++)
    if (device == &all.device[i])
      return NVML_SUCCESS;
  pthread_mutex_unlock(&all.lock);
  return NVML_ERROR_INVALID_ARGUMENT;
}

void nvml_leave(void) { pthread_mutex_unlock(&all.lock); }

const struct sim_hello *nvml_hello(void) { return &all.wire.hello; }

static nvmlReturn_t result_of(int error) {
  if (error == -EINVAL)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (error == -EPERM)
    return NVML_ERROR_NO_PERMISSION;
  if (error == -ENOSYS)
    return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (error == -EOPNOTSUPP)
    return NVML_ERROR_NOT_SUPPORTED;
  return error == 0 ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

/* give: a descriptor to send along; -1: none */
static nvmlReturn_t call(uint32_t op, const struct nvml_device *device, const uint64_t arguments[2], int give,
                         struct sim_reply *reply, int *fds, int nfds) {
  uint32_t index = device ? device->index : 0;
  uint64_t a = arguments[0], b = arguments[1];
  int error = sim_wire_give(&all.wire, op, index, a, b, give, reply, fds, nfds);
  if (error == -EPIPE || error == -ENOTCONN) { /* the simulator may have been restarted */
    sim_wire_close(&all.wire);
    if (sim_wire_open(&all.wire, SIM_ROLE_VIEWER) == 0)
      error = sim_wire_give(&all.wire, op, index, a, b, give, reply, fds, nfds);
  }
  return result_of(error);
}

nvmlReturn_t nvml_call(uint32_t op, const struct nvml_device *device, struct sim_reply *reply, int *fds, int nfds) {
  return call(op, device, (const uint64_t[]){0, 0}, -1, reply, fds, nfds);
}

nvmlReturn_t nvml_give(const struct nvml_device *device, uint32_t op, const uint64_t arguments[2], int fd,
                       struct sim_reply *reply) {
  return call(op, device, arguments, fd, reply, NULL, 0);
}

nvmlReturn_t nvml_setting(const struct nvml_device *device, enum sim_setting setting, uint64_t *value) {
  struct sim_reply reply;
  nvmlReturn_t result = call(SIM_SETTING, device, (const uint64_t[]){setting, *value}, -1, &reply, NULL, 0);
  if (result == NVML_SUCCESS)
    *value = reply.a;
  return result;
}

nvmlReturn_t nvml_processes(const struct nvml_device *device, bool ended_too, struct sim_process **list,
                            size_t *count) {
  struct sim_reply reply;
  int fd = -1;
  *list = NULL;
  *count = 0;
  nvmlReturn_t result = nvml_call(SIM_PROCESSES, device, &reply, &fd, 1);
  if (result != NVML_SUCCESS)
    return result;
  size_t bytes = reply.a * sizeof **list;
  struct sim_process *read_in = malloc(bytes ? bytes : 1);
  ssize_t got = fd >= 0 && read_in ? pread(fd, read_in, bytes, 0) : -1;
  if (fd >= 0)
    close(fd);
  if (got != (ssize_t)bytes) {
    free(read_in);
    return NVML_ERROR_UNKNOWN;
  }
  for (size_t i = 0; i < reply.a; i++)
    if (ended_too || (read_in[i].alive && read_in[i].bytes > 0))
      read_in[(*count)++] = read_in[i];
  *list = read_in;
  return NVML_SUCCESS;
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */

static nvmlReturn_t start(void) {
  if (all.pid != getpid()) { /* the connection, if any, belongs to the parent */
    sim_wire_close(&all.wire);
    all.users = 0;
  }
  if (all.users == 0) {
    if (sim_wire_open(&all.wire, SIM_ROLE_VIEWER) != 0)
      return NVML_ERROR_DRIVER_NOT_LOADED;
    all.pid = getpid();
    for (unsigned i = 0; i < SIM_MAX_DEVICES; i++)
      all.device[i] = (struct nvml_device){.index = i};
  }
  all.users++;
  return NVML_SUCCESS;
}

NVML_API(nvmlInitWithFlags, (unsigned flags)) {
  (void)flags; /* the flags concern devices that do not respond; there are none */
  pthread_mutex_lock(&all.lock);
  nvmlReturn_t result = start();
  pthread_mutex_unlock(&all.lock);
  return result;
}
NVML_API(nvmlInit_v2, (void)) { return nvmlInitWithFlags(0); }
NVML_API(nvmlInit, (void)) { return nvmlInitWithFlags(0); }

NVML_API(nvmlShutdown, (void)) {
  nvmlReturn_t result = nvml_enter();
  if (result != NVML_SUCCESS)
    return result;
  if (--all.users == 0)
    sim_wire_close(&all.wire);
  nvml_leave();
  return NVML_SUCCESS;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result);
const char *nvmlErrorString(nvmlReturn_t result) {
  static const char *const text[] = {"Success",
                                     "Uninitialized",
                                     "Invalid Argument",
                                     "Not Supported",
                                     "Insufficient Permissions",
                                     "Already Initialized",
                                     "Not Found",
                                     "Insufficient Size",
                                     "Insufficient External Power",
                                     "Driver Not Loaded",
                                     "Timeout",
                                     "Interrupt Request Issue",
                                     "NVML Shared Library Not Found",
                                     "Function Not Found",
                                     "Corrupted infoROM",
                                     "GPU is lost",
                                     "GPU requires reset",
                                     "Operating System Error",
                                     "Driver/library version mismatch",
                                     "In use by another client",
                                     "Insufficient Memory",
                                     "No data",
                                     "Virtual GPU ECC operation not available",
                                     "Insufficient Resources",
                                     "Frequency not supported",
                                     "Argument version mismatch",
                                     "Deprecated",
                                     "Not Ready",
                                     "GPU not found",
                                     "Invalid State",
                                     "Reset type not supported"};
  return (unsigned)result < sizeof text / sizeof text[0] ? text[result] : "Unknown Error";
}

/* ---- the system -------------------------------------------------------------------------------------------------- */

static nvmlReturn_t put_text(char *out, unsigned length, const char *text) {
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  return snprintf(out, length, "%s", text) < (int)length ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML_API(nvmlSystemGetDriverVersion, (char *version, unsigned length)) {
  nvmlReturn_t result = nvml_enter();
  if (result != NVML_SUCCESS)
    return result;
  char release[16];
  snprintf(release, sizeof release, "%u.0", all.wire.hello.driver);
  nvml_leave();
  return put_text(version, length, release);
}

/* Does not require nvmlInit, as in the real library. */
NVML_API(nvmlSystemGetNVMLVersion, (char *version, unsigned length)) { return put_text(version, length, NVML_VERSION); }

NVML_API(nvmlSystemGetCudaDriverVersion, (int *version)) {
  if (!version)
    return NVML_ERROR_INVALID_ARGUMENT;
  *version = SIM_CUDA_VERSION;
  return NVML_SUCCESS;
}
NVML_API(nvmlSystemGetCudaDriverVersion_v2, (int *version)) { return nvmlSystemGetCudaDriverVersion(version); }

NVML_API(nvmlSystemGetProcessName, (unsigned pid, char *name, unsigned length)) {
  char path[64], command[256] = "";
  nvmlReturn_t result = nvml_enter();
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file)
    return NVML_ERROR_NOT_FOUND;
  size_t got = fread(command, 1, sizeof command - 1, file);
  fclose(file);
  command[got] = '\0'; /* the file contains NUL-separated words; the first is the program */
  if (!name || length == 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  snprintf(name, length, "%s", command);
  return NVML_SUCCESS;
}

NVML_API(nvmlUnitGetCount, (unsigned *count)) {
  nvmlReturn_t result = nvml_enter();
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

NVML_API(nvmlDeviceGetCount_v2, (unsigned *count)) {
  nvmlReturn_t result = nvml_enter();
  if (result != NVML_SUCCESS)
    return result;
  if (count)
    *count = all.wire.hello.ndevices;
  nvml_leave();
  return count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
NVML_API(nvmlDeviceGetCount, (unsigned *count)) { return nvmlDeviceGetCount_v2(count); }

NVML_API(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device)) {
  nvmlReturn_t result = nvml_enter();
  if (result != NVML_SUCCESS)
    return result;
  if (!device || index >= all.wire.hello.ndevices)
    result = NVML_ERROR_INVALID_ARGUMENT;
  else
    *device = &all.device[index];
  nvml_leave();
  return result;
}
NVML_API(nvmlDeviceGetHandleByIndex, (unsigned index, nvmlDevice_t *device)) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static void uuid_text(const uint8_t *uuid, char out[64]) {
  int at = snprintf(out, 64, "GPU-");
  for (int i = 0; i < 16; i++)
    at += snprintf(out + at, 64 - (size_t)at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

typedef bool (*matcher)(const struct sim_device_info *info, const void *key);

static nvmlReturn_t find(matcher matches, const void *key, nvmlDevice_t *device) {
  nvmlReturn_t result = nvml_enter();
  if (result != NVML_SUCCESS)
    return result;
  result = key && device ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; result == NVML_ERROR_NOT_FOUND && i < all.wire.hello.ndevices; i++) {
    if (matches(&all.wire.hello.device[i], key)) {
      *device = &all.device[i];
      result = NVML_SUCCESS;
    }
  }
  nvml_leave();
  return result;
}

static bool has_uuid_text(const struct sim_device_info *info, const void *key) {
  char text[64];
  uuid_text(info->uuid, text);
  return strcasecmp(text, key) == 0;
}

static bool has_uuid_bytes(const struct sim_device_info *info, const void *key) {
  return memcmp(info->uuid, key, 16) == 0;
}

static bool has_bus_id(const struct sim_device_info *info, const void *key) {
  unsigned domain = 0, bus, device;
  if (sscanf(key, "%x:%x:%x", &domain, &bus, &device) != 3) {
    domain = 0;
    if (sscanf(key, "%x:%x", &bus, &device) != 2)
      return false;
  }
  return info->pci_domain == domain && info->pci_bus == bus && info->pci_device == device;
}

NVML_API(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device)) {
  return find(has_uuid_text, uuid, device);
}

NVML_API(nvmlDeviceGetHandleByUUIDV, (const nvmlUUID_t *uuid, nvmlDevice_t *device)) {
  enum { UUID_TEXT = 1, UUID_BYTES = 2 };
  if (uuid && uuid->version != (sizeof *uuid | 1u << 24))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (uuid && uuid->type == UUID_TEXT)
    return find(has_uuid_text, uuid->value.str, device);
  return find(has_uuid_bytes, uuid && uuid->type == UUID_BYTES ? uuid->value.bytes : NULL, device);
}

NVML_API(nvmlDeviceGetHandleByPciBusId_v2, (const char *id, nvmlDevice_t *device)) {
  return find(has_bus_id, id, device);
}
NVML_API(nvmlDeviceGetHandleByPciBusId, (const char *id, nvmlDevice_t *device)) { return find(has_bus_id, id, device); }

NVML_API(nvmlDeviceGetName, (nvmlDevice_t device, char *name, unsigned length)) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  result = put_text(name, length, all.wire.hello.device[device->index].name);
  nvml_leave();
  return result;
}

NVML_API(nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned length)) {
  char text[64];
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  uuid_text(all.wire.hello.device[device->index].uuid, text);
  nvml_leave();
  return put_text(uuid, length, text);
}
