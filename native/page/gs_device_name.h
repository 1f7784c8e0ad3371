/* The name of a grant's device, as NVML, CUDA_VISIBLE_DEVICES and nvidia-smi know it. */
#ifndef GS_DEVICE_NAME_H
#define GS_DEVICE_NAME_H

#include "page/gs_page.h"

/* "GPU-8-4-4-4-12", or "MIG-..." for a part of a partitioned device. */
struct gs_device_name {
  char text[41];
};

static inline struct gs_device_name gs_device_name(const struct gs_device_limits *device) {
  static const char digits[] = "0123456789abcdef";
  struct gs_device_name name;
  const char *prefix = device->instance ? "MIG" : "GPU";
  char *at = name.text;
  while (*prefix)
    *at++ = *prefix++;
  for (int i = 0; i < 16; i++) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10)
      *at++ = '-';
    *at++ = digits[device->uuid[i] >> 4];
    *at++ = digits[device->uuid[i] & 15];
  }
  *at = '\0';
  return name;
}

#endif
