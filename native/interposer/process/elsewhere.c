/* Devices that the program sees but that are not part of its grant, since something initialised the driver before its
 * first call to the interposer (visible.h). Memory there would not be charged to anyone, so it is refused. */
#include "interposer/process/elsewhere.h"

#include "interposer/process/device.h"

bool gs_elsewhere(CUdevice device) {
  int count = 0;
  return device >= 0 && gs_device_ordinal(device) == GS_NO_DEVICE && gs_real.cuDeviceGetCount(&count) == CUDA_SUCCESS &&
         device < count;
}

bool gs_place_elsewhere(const CUmemLocation *places, size_t count, CUdevice *device) {
  for (size_t i = 0; places && i < count; i++)
    if (places[i].type == CU_MEM_LOCATION_TYPE_DEVICE && gs_elsewhere(places[i].id)) {
      *device = places[i].id;
      return true;
    }
  return false;
}

CUresult gs_refuse_elsewhere(CUdevice device) {
  static uint32_t warned;
  if (__atomic_exchange_n(&warned, 1, __ATOMIC_RELAXED) == 0)
    gs_say("device %d is not part of this share, although the driver shows it", device);
  return CUDA_ERROR_NOT_PERMITTED;
}
