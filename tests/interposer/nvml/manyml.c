/* The NVML of a node with four devices, whose UUIDs are those of the first four simulated devices. It has the functions
 * that reveal other devices. Devices 0 and 1 share a board; every device has a link to each of the others and one to a
 * switch; device 3 is a partition of device 2; two more devices are excluded; one unit contains all of them. */
#include <stdio.h>
#include <string.h>

enum { DEVICES = 4, SWITCH = DEVICES, NVML_INVALID_ARGUMENT = 2, NVML_NO_PERMISSION = 4, NVML_NOT_FOUND = 6 };
struct device {
  int index;
};
struct pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

static struct device devices[DEVICES] = {{0}, {1}, {2}, {3}};
static unsigned registered;
const unsigned *events_registered(void);
const unsigned *events_registered(void) { return &registered; }

static int known(const struct device *device) { return device >= devices && device < devices + DEVICES; }

static void name(int index, char *text, size_t size) {
  snprintf(text, size, "GPU-67707573-6841-7265-ad73-696d%08x", index + 1);
}

int nvmlInitWithFlags(unsigned flags);
int nvmlInitWithFlags(unsigned flags) { return (int)(flags & 0); }
int nvmlShutdown(void);
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetUUID(const struct device *device, char *text, unsigned size);
int nvmlDeviceGetUUID(const struct device *device, char *text, unsigned size) {
  if (known(device))
    name(device->index, text, size);
  return known(device) ? 0 : NVML_INVALID_ARGUMENT;
}
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = DEVICES;
  return 0;
}
int nvmlDeviceGetIndex(const struct device *device, unsigned *index);
int nvmlDeviceGetIndex(const struct device *device, unsigned *index) {
  *index = (unsigned)device->index;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
  *device = &devices[index % DEVICES];
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char *text, struct device **device);
int nvmlDeviceGetHandleByUUID(const char *text, struct device **device) {
  char own[64];
  for (int i = 0; i < DEVICES; i++) {
    name(i, own, sizeof own);
    *device = &devices[i];
    if (strcmp(text, own) == 0)
      return 0;
  }
  return NVML_NOT_FOUND;
}
/* "serial-N" */
int nvmlDeviceGetHandleBySerial(const char *serial, struct device **device);
int nvmlDeviceGetHandleBySerial(const char *serial, struct device **device) {
  *device = &devices[(serial[7] - '0') % DEVICES];
  return 0;
}
/* A device's index is its PCI bus number. The device node of device 1 cannot be opened. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, struct device **device);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, struct device **device) {
  unsigned domain, bus;
  if (sscanf(id, "%x:%x", &domain, &bus) != 2 || bus >= DEVICES)
    return NVML_NOT_FOUND;
  *device = &devices[bus];
  return bus == 1 ? NVML_NO_PERMISSION : 0;
}

/* ---- topology ---------------------------------------------------------------------------------------------------- */

static int all(unsigned *count, const struct device **out, const struct device *but) {
  unsigned found = 0;
  for (int i = 0; i < DEVICES; i++)
    if (&devices[i] != but) {
      if (out && found < *count)
        out[found] = &devices[i];
      found++;
    }
  if (*count == 0 || found < *count)
    *count = found;
  return 0;
}
int nvmlDeviceGetTopologyNearestGpus(struct device *device, unsigned level, unsigned *count, const struct device **out);
int nvmlDeviceGetTopologyNearestGpus(struct device *device, unsigned level, unsigned *count,
                                     const struct device **out) {
  return known(device) && level ? all(count, out, device) : NVML_INVALID_ARGUMENT;
}
int nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, const struct device **out);
int nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, const struct device **out) {
  return cpu < 64 ? all(count, out, NULL) : NVML_INVALID_ARGUMENT;
}
int nvmlDeviceGetTopologyCommonAncestor(struct device *one, struct device *other, unsigned *level);
int nvmlDeviceGetTopologyCommonAncestor(struct device *one, struct device *other, unsigned *level) {
  *level = one == other ? 0 : 20;
  return 0;
}
int nvmlDeviceGetP2PStatus(struct device *one, struct device *other, unsigned index, unsigned *status);
int nvmlDeviceGetP2PStatus(struct device *one, struct device *other, unsigned index, unsigned *status) {
  *status = 7;
  return known(one) && known(other) && index < 5 ? 0 : NVML_INVALID_ARGUMENT;
}
int nvmlDeviceOnSameBoard(struct device *one, struct device *other, int *same);
int nvmlDeviceOnSameBoard(struct device *one, struct device *other, int *same) {
  *same = one->index / 2 == other->index / 2;
  return 0;
}

/* Links 0 to 3 lead to the devices, link 4 to the switch. */
int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned link, struct pci *pci);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned link, struct pci *pci) {
  if (!known(device) || link > SWITCH)
    return NVML_INVALID_ARGUMENT;
  memset(pci, 0, sizeof *pci);
  pci->bus = link;
  snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:00.0", 0, link);
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *device, unsigned link, unsigned *type);
int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *device, unsigned link, unsigned *type) {
  *type = link == SWITCH ? 2 : 0;
  return known(device) ? 0 : NVML_INVALID_ARGUMENT;
}

/* ---- partitions, excluded devices, units, events ----------------------------------------------------------------- */

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **instance);
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **instance) {
  *instance = &devices[3];
  return device == &devices[2] && index == 0 ? 0 : NVML_NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *instance, struct device **device);
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *instance, struct device **device) {
  *device = &devices[2];
  return instance == &devices[3] ? 0 : NVML_INVALID_ARGUMENT;
}
int nvmlGetExcludedDeviceCount(unsigned *count);
int nvmlGetExcludedDeviceCount(unsigned *count) {
  *count = 2;
  return 0;
}
int nvmlGetExcludedDeviceInfoByIndex(unsigned index, char *info);
int nvmlGetExcludedDeviceInfoByIndex(unsigned index, char *info) {
  memset(info, 'x', 148);
  return index < 2 ? 0 : NVML_INVALID_ARGUMENT;
}
int nvmlUnitGetCount(unsigned *count);
int nvmlUnitGetCount(unsigned *count) {
  *count = 1;
  return 0;
}
int nvmlUnitGetHandleByIndex(unsigned index, void **unit);
int nvmlUnitGetHandleByIndex(unsigned index, void **unit) {
  *unit = devices;
  return index < 1 ? 0 : NVML_INVALID_ARGUMENT;
}
int nvmlUnitGetDevices(void *unit, unsigned *count, const struct device **out);
int nvmlUnitGetDevices(void *unit, unsigned *count, const struct device **out) {
  return unit == devices ? all(count, out, NULL) : NVML_INVALID_ARGUMENT;
}
int nvmlEventSetRegisterGpuOperationalEvents_v1(void *set, const char *uuid);
int nvmlEventSetRegisterGpuOperationalEvents_v1(void *set, const char *uuid) {
  (void)set;
  (void)uuid;
  registered++;
  return 0;
}
