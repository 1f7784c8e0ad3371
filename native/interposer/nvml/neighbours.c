/* Functions that reveal devices other than the one queried: topology, links, partitions, units, events. Devices that
 * are not the grant's do not appear in any of their answers. */
#include <stdio.h>
#include <string.h>

#include "interposer/nvml/ml.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

enum { MOST_DEVICES = 256 /* more than a node can have */ };

/* NVML's rule for these lists: a count of 0 asks how many there are. `all` holds `found` handles. */
static nvmlReturn_t put_own(const struct gs_view *view, nvmlDevice_t *all, unsigned int found, unsigned int *count,
                            nvmlDevice_t *devices) {
  unsigned int own = 0, room = *count;
  int ordinal;
  for (unsigned int i = 0; i < found; i++)
    if (gs_ml_ordinal(view, all[i], &ordinal) == NVML_SUCCESS && ordinal != GS_ML_NOT_OURS)
      all[own++] = all[i];
  if (room > 0) {
    own = own < room ? own : room;
    if (own > 0 && !devices)
      return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < own; i++)
      devices[i] = all[i];
  }
  *count = own;
  return NVML_SUCCESS;
}

GS_ML(nvmlDeviceGetTopologyNearestGpus,
      (nvmlDevice_t device, unsigned int level, unsigned int *count, nvmlDevice_t *devices)) {
  const struct gs_view *view = gs_ml_view();
  if (!view || !count)
    return GS_ML_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, count, devices);
  nvmlDevice_t all[MOST_DEVICES];
  unsigned int found = 0;
  int ordinal;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, &found, NULL);
  if (result == NVML_SUCCESS)
    result = gs_ml_own(view, device, &ordinal);
  found = found < MOST_DEVICES ? found : MOST_DEVICES;
  if (result == NVML_SUCCESS && found > 0)
    result = GS_ML_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, &found, all);
  return result == NVML_SUCCESS ? put_own(view, all, found, count, devices) : result;
}

GS_ML(nvmlSystemGetTopologyGpuSet, (unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)) {
  const struct gs_view *view = gs_ml_view();
  if (!view || !count)
    return GS_ML_REAL(nvmlSystemGetTopologyGpuSet)(cpu, count, devices);
  nvmlDevice_t all[MOST_DEVICES];
  unsigned int found = 0;
  nvmlReturn_t result = GS_ML_REAL(nvmlSystemGetTopologyGpuSet)(cpu, &found, NULL);
  found = found < MOST_DEVICES ? found : MOST_DEVICES;
  if (result == NVML_SUCCESS && found > 0)
    result = GS_ML_REAL(nvmlSystemGetTopologyGpuSet)(cpu, &found, all);
  return result == NVML_SUCCESS ? put_own(view, all, found, count, devices) : result;
}

/* ---- two devices ------------------------------------------------------------------------------------------------- */

/* Passes on what the real library returned for two devices, if both are the grant's. */
static nvmlReturn_t put_pair(nvmlReturn_t result, nvmlDevice_t one, nvmlDevice_t other, unsigned int found,
                             unsigned int *out) {
  const struct gs_view *view = gs_ml_view();
  int ordinal;
  if (result == NVML_SUCCESS && view) {
    result = gs_ml_own(view, one, &ordinal);
    if (result == NVML_SUCCESS)
      result = gs_ml_own(view, other, &ordinal);
  }
  if (result == NVML_SUCCESS && out)
    *out = found;
  return result;
}

GS_ML(nvmlDeviceGetTopologyCommonAncestor, (nvmlDevice_t one, nvmlDevice_t other, unsigned int *level)) {
  unsigned int found = 0;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetTopologyCommonAncestor)(one, other, level ? &found : NULL);
  return put_pair(result, one, other, found, level);
}

GS_ML(nvmlDeviceGetP2PStatus, (nvmlDevice_t one, nvmlDevice_t other, unsigned int index, unsigned int *status)) {
  unsigned int found = 0;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetP2PStatus)(one, other, index, status ? &found : NULL);
  return put_pair(result, one, other, found, status);
}

GS_ML(nvmlDeviceOnSameBoard, (nvmlDevice_t one, nvmlDevice_t other, unsigned int *same)) {
  unsigned int found = 0;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceOnSameBoard)(one, other, same ? &found : NULL);
  return put_pair(result, one, other, found, same);
}

/* ---- the other end of a link ------------------------------------------------------------------------------------- */

struct pci { /* how both versions of nvmlPciInfo_t begin */
  char bus_id_legacy[16];
  unsigned int domain, bus, device;
};
enum { PCI_V1 = 52, PCI_V2 = 68 /* bytes of the two versions */, REMOTE_IS_GPU = 0 /* nvmlIntNvLinkDeviceType_t */ };

typedef nvmlReturn_t (*remote_function)(nvmlDevice_t device, unsigned int link, void *pci);

/* Whether a link leads to a device of others: NVML then answers as for a link that it knows nothing of. Switches and
 * processors are shown. */
static bool foreign_end(const struct gs_view *view, nvmlDevice_t device, unsigned int link, const struct pci *pci) {
  char bus_id[32];
  nvmlDevice_t there;
  unsigned int type;
  int ordinal;
  snprintf(bus_id, sizeof bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
  nvmlReturn_t found = gs_ml_any_by_bus_id(bus_id, &there);
  if (found == NVML_SUCCESS)
    return gs_ml_ordinal(view, there, &ordinal) != NVML_SUCCESS || ordinal == GS_ML_NOT_OURS;
  /* NVML does not know a device whose node cannot be opened */
  return found == NVML_ERROR_NO_PERMISSION ||
         (gs_ml_remote_type(device, link, &type) == NVML_SUCCESS && type == REMOTE_IS_GPU);
}

static nvmlReturn_t put_remote(remote_function real, nvmlDevice_t device, unsigned int link, void *pci, size_t size) {
  const struct gs_view *view = gs_ml_view();
  _Alignas(struct pci) char found[PCI_V2];
  int ordinal;
  nvmlReturn_t result = real(device, link, view && pci ? found : pci);
  if (result != NVML_SUCCESS || !view)
    return result;
  result = gs_ml_own(view, device, &ordinal);
  if (result != NVML_SUCCESS)
    return result;
  if (foreign_end(view, device, link, (const struct pci *)found))
    return NVML_ERROR_NOT_SUPPORTED;
  memcpy(pci, found, size);
  return NVML_SUCCESS;
}

GS_ML(nvmlDeviceGetNvLinkRemotePciInfo, (nvmlDevice_t device, unsigned int link, void *pci)) {
  return put_remote(GS_ML_REAL(nvmlDeviceGetNvLinkRemotePciInfo), device, link, pci, PCI_V1);
}
GS_ML(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t device, unsigned int link, void *pci)) {
  return put_remote(GS_ML_REAL(nvmlDeviceGetNvLinkRemotePciInfo_v2), device, link, pci, PCI_V2);
}

/* ---- instances of a partitioned device --------------------------------------------------------------------------- */

GS_ML(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned int index, nvmlDevice_t *instance)) {
  const struct gs_view *view = gs_ml_view();
  nvmlDevice_t found;
  nvmlReturn_t result =
      GS_ML_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, index, view && instance ? &found : instance);
  return view && instance ? gs_ml_found(view, result, found, instance) : result;
}

GS_ML(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t instance, nvmlDevice_t *device)) {
  const struct gs_view *view = gs_ml_view();
  nvmlDevice_t found;
  nvmlReturn_t result =
      GS_ML_REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(instance, view && device ? &found : device);
  return view && device ? gs_ml_found(view, result, found, device) : result;
}

/* ---- devices that the node has but does not use, and boxes of devices -------------------------------------------- */

typedef nvmlReturn_t (*count_function)(unsigned int *count);

static nvmlReturn_t put_none(count_function real, unsigned int *count) {
  unsigned int all;
  bool inside = gs_ml_view() != NULL;
  nvmlReturn_t result = real(inside && count ? &all : count);
  if (result == NVML_SUCCESS && inside)
    *count = 0;
  return result;
}

GS_ML(nvmlGetExcludedDeviceCount, (unsigned int *count)) {
  return put_none(GS_ML_REAL(nvmlGetExcludedDeviceCount), count);
}
GS_ML(nvmlGetBlacklistDeviceCount, (unsigned int *count)) {
  return put_none(GS_ML_REAL(nvmlGetBlacklistDeviceCount), count);
}
GS_ML(nvmlUnitGetCount, (unsigned int *count)) { return put_none(GS_ML_REAL(nvmlUnitGetCount), count); }

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* config begins with the UUID of the device whose events are requested; empty: those of all devices. */
GS_ML(nvmlEventSetRegisterGpuOperationalEvents_v1, (void *set, const char *config)) {
  const struct gs_view *view = gs_ml_view();
  nvmlDevice_t found;
  if (view && config && memchr(config, '\0', 96)) {
    nvmlReturn_t result = config[0] ? gs_ml_any_by_uuid(config, &found) : gs_ml_ready();
    if (result != NVML_SUCCESS)
      return result;
    if (!config[0])
      return NVML_ERROR_NOT_SUPPORTED;
    result = gs_ml_found(view, result, found, &found);
    if (result != NVML_SUCCESS)
      return result;
  }
  return GS_ML_REAL(nvmlEventSetRegisterGpuOperationalEvents_v1)(set, config);
}
