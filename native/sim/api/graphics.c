/* Sharing with OpenGL, EGL and VDPAU. Programs link these functions and look them up whether they use them or not; the
 * answers are those of a driver on a machine without a display. */
#include "sim/api/sim_procs.h"
#include "sim/model/process.h"

int sim_no_display(void) {
  CUresult result = sim_ready();
  return result ? result : CUDA_ERROR_NOT_SUPPORTED;
}

#define EXPORTED __attribute__((visibility("default"))) CUresult

/* No device of this library draws what the program sees. */
static CUresult no_device(const void *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  return out ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED cuGLGetDevices_v2(unsigned *count, CUdevice *devices, unsigned room, int list);
EXPORTED cuGLGetDevices_v2(unsigned *count, CUdevice *devices, unsigned room, int list) {
  (void)devices, (void)room, (void)list;
  CUresult result = no_device(count);
  if (result == CUDA_ERROR_NO_DEVICE)
    *count = 0;
  return result;
}
EXPORTED cuGLGetDevices(unsigned *count, CUdevice *devices, unsigned room, int list);
EXPORTED cuGLGetDevices(unsigned *count, CUdevice *devices, unsigned room, int list) {
  return cuGLGetDevices_v2(count, devices, room, list);
}

EXPORTED cuVDPAUGetDevice(CUdevice *device, unsigned display, void *get_proc_address);
EXPORTED cuVDPAUGetDevice(CUdevice *device, unsigned display, void *get_proc_address) {
  (void)display, (void)get_proc_address;
  return no_device(device);
}
