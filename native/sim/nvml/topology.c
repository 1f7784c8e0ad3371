/* How near devices are to each other: the bus between them, and their NVLinks. Each device of a group has one link to
 * every other one (SIM_MAX_DEVICES is less than NVML's maximum number of links). */
#include "sim/nvml/nvml.h"

enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_SINGLE = 10, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50 };
enum { P2P_READ, P2P_WRITE, P2P_NVLINK, P2P_ATOMICS, P2P_PCI, P2P_INDEXES };
enum { P2P_STATUS_OK = 0, P2P_STATUS_NOT_SUPPORTED = 5 };
enum { NVLINK_MAX_LINKS = 18, REMOTE_IS_GPU = 0, FEATURE_ENABLED = 1 };

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci);

static nvmlReturn_t of(nvmlDevice_t device, struct sim_device_info *info) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  *info = nvml_hello()->device[device->index];
  nvml_leave();
  return NVML_SUCCESS;
}

static nvmlReturn_t both(nvmlDevice_t one, nvmlDevice_t other, const void *out, struct sim_device_info info[2]) {
  nvmlReturn_t result = of(one, &info[0]);
  if (result == NVML_SUCCESS)
    result = of(other, &info[1]);
  return result == NVML_SUCCESS && !out ? NVML_ERROR_INVALID_ARGUMENT : result;
}

NVML_API(nvmlDeviceGetTopologyCommonAncestor, (nvmlDevice_t one, nvmlDevice_t other, unsigned *level)) {
  struct sim_device_info info[2];
  nvmlReturn_t result = both(one, other, level, info);
  if (result != NVML_SUCCESS)
    return result;
  if (one == other)
    *level = TOPOLOGY_INTERNAL;
  else if (info[0].pcie && info[0].pcie == info[1].pcie)
    *level = TOPOLOGY_SINGLE;
  else
    *level = info[0].numa == info[1].numa ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM;
  return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetP2PStatus, (nvmlDevice_t one, nvmlDevice_t other, unsigned index, unsigned *status)) {
  struct sim_device_info info[2];
  nvmlReturn_t result = both(one, other, status, info);
  if (result != NVML_SUCCESS)
    return result;
  if (index >= P2P_INDEXES)
    return NVML_ERROR_INVALID_ARGUMENT;
  bool linked = info[0].nvlink && info[0].nvlink == info[1].nvlink;
  *status = linked || (index != P2P_NVLINK && index != P2P_ATOMICS) ? P2P_STATUS_OK : P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

/* The index of the device at the other end of a link, if the device has that link. *links: number of its links. */
static unsigned other_end(const struct sim_hello *hello, unsigned index, unsigned link, unsigned *links) {
  unsigned found = 0;
  *links = 0;
  for (unsigned i = 0; i < hello->ndevices; i++) {
    if (i == index || !hello->device[i].nvlink || hello->device[i].nvlink != hello->device[index].nvlink)
      continue;
    if (*links == link)
      found = i;
    ++*links;
  }
  return found;
}

unsigned nvml_links(const struct nvml_device *device) {
  unsigned links;
  other_end(nvml_hello(), device->index, 0, &links);
  return links;
}

static nvmlReturn_t link_of(nvmlDevice_t device, unsigned link, const void *out, unsigned *other) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  unsigned links;
  *other = other_end(nvml_hello(), device->index, link, &links);
  nvml_leave();
  if (!out || link >= NVLINK_MAX_LINKS)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (links == 0)
    return NVML_ERROR_NOT_SUPPORTED;
  return link < links ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlDeviceGetNvLinkState, (nvmlDevice_t device, unsigned link, unsigned *active)) {
  unsigned other;
  nvmlReturn_t result = link_of(device, link, active, &other);
  if (result == NVML_SUCCESS)
    *active = FEATURE_ENABLED;
  return result;
}

NVML_API(nvmlDeviceGetNvLinkRemoteDeviceType, (nvmlDevice_t device, unsigned link, unsigned *type)) {
  unsigned other;
  nvmlReturn_t result = link_of(device, link, type, &other);
  if (result == NVML_SUCCESS)
    *type = REMOTE_IS_GPU;
  return result;
}

NVML_API(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)) {
  unsigned other;
  nvmlDevice_t remote;
  nvmlReturn_t result = link_of(device, link, pci, &other);
  if (result == NVML_SUCCESS)
    result = nvmlDeviceGetHandleByIndex_v2(other, &remote);
  return result == NVML_SUCCESS ? nvmlDeviceGetPciInfo_v3(remote, pci) : result;
}

NVML_API(nvmlDeviceGetNvLinkRemotePciInfo, (nvmlDevice_t device, unsigned link, nvmlPciInfo_v2_t *pci)) {
  unsigned other;
  nvmlDevice_t remote;
  nvmlReturn_t result = link_of(device, link, pci, &other);
  if (result == NVML_SUCCESS)
    result = nvmlDeviceGetHandleByIndex_v2(other, &remote);
  return result == NVML_SUCCESS ? nvmlDeviceGetPciInfo_v2(remote, pci) : result;
}
