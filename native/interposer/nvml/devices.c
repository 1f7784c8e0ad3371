/* The grant's devices and no other: counts and look-ups.
 *
 * A device's index is its place in the grant. CUDA gives it the same number (process/visible.h); a program that sets
 * CUDA_VISIBLE_DEVICES renumbers CUDA alone, as without gpushare, since NVML does not read that variable. Minor numbers
 * are the driver's: the device nodes bear them. */
#include "interposer/nvml/ml.h"
#include "page/gs_device_name.h"

typedef nvmlReturn_t (*count_function)(unsigned int *count);
typedef nvmlReturn_t (*index_function)(unsigned int index, nvmlDevice_t *device);
typedef nvmlReturn_t (*text_function)(const char *text, nvmlDevice_t *device);

static unsigned int device_count(const struct gs_view *view) {
  uint32_t count = view->limits ? view->limits->ndevices : 0;
  return count < GS_MAX_DEVICES ? count : GS_MAX_DEVICES;
}

static nvmlReturn_t put_count(count_function real, unsigned int *count) {
  const struct gs_view *view = gs_ml_view();
  unsigned int all;
  nvmlReturn_t result = real(view && count ? &all : count);
  if (result == NVML_SUCCESS && view)
    *count = device_count(view);
  return result;
}

GS_ML(nvmlDeviceGetCount, (unsigned int *count)) { return put_count(GS_ML_REAL(nvmlDeviceGetCount), count); }
GS_ML(nvmlDeviceGetCount_v2, (unsigned int *count)) { return put_count(GS_ML_REAL(nvmlDeviceGetCount_v2), count); }

/* ---- look-ups by what a program may know of a device ------------------------------------------------------------- */

nvmlReturn_t gs_ml_found(const struct gs_view *view, nvmlReturn_t result, nvmlDevice_t found, nvmlDevice_t *device) {
  int ordinal;
  if (result == NVML_ERROR_NO_PERMISSION) /* its node cannot be opened: a device of others */
    return NVML_ERROR_NOT_FOUND;
  if (result != NVML_SUCCESS)
    return result;
  result = gs_ml_ordinal(view, found, &ordinal);
  if (result != NVML_SUCCESS)
    return result;
  if (ordinal == GS_ML_NOT_OURS)
    return NVML_ERROR_NOT_FOUND;
  *device = found;
  return NVML_SUCCESS;
}

static nvmlReturn_t look_up(text_function real, const char *text, nvmlDevice_t *device) {
  const struct gs_view *view = gs_ml_view();
  nvmlDevice_t found;
  nvmlReturn_t result = real(text, view && device ? &found : device);
  return view && device ? gs_ml_found(view, result, found, device) : result;
}

GS_ML(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device)) {
  return look_up(GS_ML_REAL(nvmlDeviceGetHandleByUUID), uuid, device);
}
GS_ML(nvmlDeviceGetHandleBySerial, (const char *serial, nvmlDevice_t *device)) {
  return look_up(GS_ML_REAL(nvmlDeviceGetHandleBySerial), serial, device);
}
GS_ML(nvmlDeviceGetHandleByPciBusId, (const char *bus_id, nvmlDevice_t *device)) {
  return look_up(GS_ML_REAL(nvmlDeviceGetHandleByPciBusId), bus_id, device);
}
GS_ML(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, nvmlDevice_t *device)) {
  return look_up(GS_ML_REAL(nvmlDeviceGetHandleByPciBusId_v2), bus_id, device);
}

GS_ML(nvmlDeviceGetHandleByUUIDV, (const void *uuid, nvmlDevice_t *device)) {
  const struct gs_view *view = gs_ml_view();
  nvmlDevice_t found;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetHandleByUUIDV)(uuid, view && device ? &found : device);
  return view && device ? gs_ml_found(view, result, found, device) : result;
}

nvmlReturn_t gs_ml_any_by_uuid(const char *uuid, nvmlDevice_t *device) {
  return GS_ML_REAL(nvmlDeviceGetHandleByUUID)(uuid, device);
}
nvmlReturn_t gs_ml_any_by_bus_id(const char *bus_id, nvmlDevice_t *device) {
  return GS_ML_REAL(nvmlDeviceGetHandleByPciBusId_v2)(bus_id, device);
}

/* ---- the index, both ways ---------------------------------------------------------------------------------------- */

static nvmlReturn_t by_index(index_function real, unsigned int index, nvmlDevice_t *device) {
  const struct gs_view *view = gs_ml_view();
  if (!view)
    return real(index, device);
  nvmlReturn_t result = gs_ml_ready();
  if (result != NVML_SUCCESS)
    return result;
  if (!device || index >= device_count(view))
    return NVML_ERROR_INVALID_ARGUMENT;
  nvmlDevice_t found;
  result = gs_ml_any_by_uuid(gs_device_name(&view->limits->device[index]).text, &found);
  if (result == NVML_SUCCESS)
    *device = found;
  return result == NVML_ERROR_NOT_FOUND ? NVML_ERROR_GPU_IS_LOST : result;
}

GS_ML(nvmlDeviceGetHandleByIndex, (unsigned int index, nvmlDevice_t *device)) {
  return by_index(GS_ML_REAL(nvmlDeviceGetHandleByIndex), index, device);
}
GS_ML(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device)) {
  return by_index(GS_ML_REAL(nvmlDeviceGetHandleByIndex_v2), index, device);
}

GS_ML(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned int *index)) {
  const struct gs_view *view = gs_ml_view();
  unsigned int theirs;
  int ordinal;
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetIndex)(device, view && index ? &theirs : index);
  if (result != NVML_SUCCESS || !view)
    return result;
  result = gs_ml_own(view, device, &ordinal);
  if (result == NVML_SUCCESS)
    *index = (unsigned int)ordinal;
  return result;
}
