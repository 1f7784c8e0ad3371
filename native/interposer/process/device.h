#ifndef GPUSHARE_DEVICE_H
#define GPUSHARE_DEVICE_H

#include "interposer/process/process.h"

/* Ordinals into limits->device and slot->device. GS_NO_DEVICE: no current context, or a device that is not of this
 * grant. */
int gs_current_device(void);
int gs_context_device(CUcontext context);
/* The stream's own device; the current one for the default streams. */
int gs_stream_device(CUstream stream);
/* A stream was destroyed: its handle may come back on another device. */
void gs_stream_forget(CUstream stream);

enum { GS_DEVICE_UNKNOWN = -2 /* in gs_process.ordinal_of: not asked yet */ };

/* Finds out which CUdevice is which device of the grant, by UUID. After a successful cuInit. */
void gs_devices_map(void);
/* Ordinal of a CUdevice, GS_NO_DEVICE when it is not the grant's. */
int gs_device_ordinal(CUdevice device);
/* The CUdevice that has this ordinal, or -1. */
CUdevice gs_device_of(int ordinal);
/* 10 times the major version and the minor one; 0 where the driver does not say. */
unsigned gs_device_capability(int ordinal);
/* Of all devices of the grant, 0 where they differ. */
unsigned gs_common_capability(void);
/* A context ends or is gone: its handle and those of its streams may come back on another device. */
void gs_device_context_forget(void);

#endif
