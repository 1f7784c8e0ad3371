/* Pointer attributes. */
#include "sim/cudart/cudart.h"

#include <string.h>

struct cudaPointerAttributes {
  int type; /* 0: unknown to the driver, 1: host, 2: device, 3: managed */
  int device;
  void *device_pointer, *host_pointer;
#if RT_MAJOR >= 13
  long reserved[8];
#endif
};

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
  enum {
    MEMORY_TYPE = 2,
    DEVICE_POINTER = 3,
    HOST_POINTER = 4,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    WANTED = 5,
    MANAGED = 3
  };
  unsigned type = 0, managed = 0;
  int device = 0;
  void *on_device = NULL, *on_host = NULL;
  CUpointer_attribute wanted[WANTED] = {MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, IS_MANAGED, DEVICE_ORDINAL};
  void *found[WANTED] = {&type, &on_device, &on_host, &managed, &device};
  cudaError_t error = rt_enter_for(out);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuPointerGetAttributes(WANTED, wanted, found, (uint64_t)(uintptr_t)pointer));
  if (error == cudaSuccess)
    *out = (struct cudaPointerAttributes){
        .type = managed ? MANAGED : (int)type, .device = device, .device_pointer = on_device, .host_pointer = on_host};
  return error;
}
