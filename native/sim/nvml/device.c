/* Properties of a device: position on the bus, capabilities, modes. */
#include <stdio.h>
#include <string.h>

#include "sim/model/card.h"
#include "sim/nvml/nvml.h"

/* Implements queries whose result is a constant number. */
static nvmlReturn_t put_number(nvmlDevice_t device, unsigned *out, unsigned value) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  *out = value;
  return NVML_SUCCESS;
}

static nvmlReturn_t put_index(nvmlDevice_t device, unsigned *out) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  if (out)
    *out = device->index;
  nvml_leave();
  return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned *index)) { return put_index(device, index); }
NVML_API(nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned *minor)) { return put_index(device, minor); }

static nvmlReturn_t place(nvmlDevice_t device, const void *out, struct sim_device_info *info) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  *info = nvml_hello()->device[device->index];
  nvml_leave();
  return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static void bus_id(char *out, size_t size, const char *format, const struct sim_device_info *info) {
  char text[64];
  snprintf(text, sizeof text, format, info->pci_domain, info->pci_bus, info->pci_device);
  snprintf(out, size, "%.*s", (int)size - 1, text);
}

#define BUS_ID "%08X:%02X:%02X.0"
#define BUS_ID_LEGACY "%04X:%02X:%02X.0"

/* The PCI device and subsystem ids are 0, because the device has no vendor. */
NVML_API(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t *pci)) {
  struct sim_device_info info;
  nvmlReturn_t result = place(device, pci, &info);
  if (result != NVML_SUCCESS)
    return result;
  *pci = (nvmlPciInfo_t){.domain = info.pci_domain, .bus = info.pci_bus, .device = info.pci_device};
  bus_id(pci->busIdLegacy, sizeof pci->busIdLegacy, BUS_ID_LEGACY, &info);
  bus_id(pci->busId, sizeof pci->busId, BUS_ID, &info);
  return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetPciInfo_v2, (nvmlDevice_t device, nvmlPciInfo_v2_t *pci)) {
  struct sim_device_info info;
  nvmlReturn_t result = place(device, pci, &info);
  if (result != NVML_SUCCESS)
    return result;
  *pci = (nvmlPciInfo_v2_t){.domain = info.pci_domain, .bus = info.pci_bus, .device = info.pci_device};
  bus_id(pci->busId, sizeof pci->busId, BUS_ID_LEGACY, &info);
  return NVML_SUCCESS;
}
NVML_API(nvmlDeviceGetPciInfo, (nvmlDevice_t device, nvmlPciInfo_v2_t *pci)) {
  return nvmlDeviceGetPciInfo_v2(device, pci);
}

NVML_API(nvmlDeviceGetPciInfoExt, (nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci)) {
  enum { DISPLAY_CONTROLLER = 3, CONTROLLER_3D = 2 };
  struct sim_device_info info;
  nvmlReturn_t result = place(device, pci, &info);
  if (result != NVML_SUCCESS)
    return result;
  if (pci->version != (sizeof *pci | 1u << 24))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  pci->domain = info.pci_domain;
  pci->bus = info.pci_bus;
  pci->device = info.pci_device;
  pci->pciDeviceId = pci->pciSubSystemId = 0;
  pci->baseClass = DISPLAY_CONTROLLER;
  pci->subClass = CONTROLLER_3D;
  bus_id(pci->busId, sizeof pci->busId, BUS_ID, &info);
  return NVML_SUCCESS;
}

/* Must agree with cuDeviceGetAttribute of the simulated driver. */
NVML_API(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t device, int *major, int *minor)) {
  nvmlReturn_t result = nvml_enter_device(device);
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  if (!major || !minor)
    return NVML_ERROR_INVALID_ARGUMENT;
  *major = 8;
  *minor = 0;
  return NVML_SUCCESS;
}

/* A simulated device always has its full clocks. */
static nvmlReturn_t clock_mhz(nvmlDevice_t device, unsigned kind, unsigned *mhz) {
  enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY };
  if (kind > CLOCK_MEMORY) {
    nvmlReturn_t result = put_number(device, mhz, 0);
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
  }
  return put_number(device, mhz, (kind == CLOCK_MEMORY ? SIM_MEMORY_CLOCK_KHZ : SIM_CLOCK_KHZ) / 1000);
}
NVML_API(nvmlDeviceGetClockInfo, (nvmlDevice_t device, unsigned kind, unsigned *mhz)) {
  return clock_mhz(device, kind, mhz);
}
NVML_API(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t device, unsigned kind, unsigned *mhz)) {
  return clock_mhz(device, kind, mhz);
}

enum { BRAND_UNKNOWN = 0, FEATURE_DISABLED = 0 };

NVML_API(nvmlDeviceGetBrand, (nvmlDevice_t device, unsigned *brand)) {
  return put_number(device, brand, BRAND_UNKNOWN);
}
NVML_API(nvmlDeviceGetDisplayMode, (nvmlDevice_t device, unsigned *mode)) {
  return put_number(device, mode, FEATURE_DISABLED);
}
NVML_API(nvmlDeviceGetDisplayActive, (nvmlDevice_t device, unsigned *mode)) {
  return put_number(device, mode, FEATURE_DISABLED);
}
NVML_API(nvmlDeviceGetMultiGpuBoard, (nvmlDevice_t device, unsigned *multi)) { return put_number(device, multi, 0); }
NVML_API(nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned *count)) {
  return put_number(device, count, 0);
}
NVML_API(nvmlDeviceIsMigDeviceHandle, (nvmlDevice_t device, unsigned *mig)) { return put_number(device, mig, 0); }
NVML_API(nvmlDeviceGetBoardId, (nvmlDevice_t device, unsigned *board)) { return put_index(device, board); }

NVML_API(nvmlDeviceOnSameBoard, (nvmlDevice_t one, nvmlDevice_t other, int *same)) {
  nvmlReturn_t result = nvml_enter_device(one);
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  result = nvml_enter_device(other);
  if (result != NVML_SUCCESS)
    return result;
  nvml_leave();
  if (!same)
    return NVML_ERROR_INVALID_ARGUMENT;
  *same = one == other;
  return NVML_SUCCESS;
}
