#ifndef GPUSHARE_DEVICE_H
#define GPUSHARE_DEVICE_H

#include "interposer/process/process.h"

/* Return an ordinal, the index into limits->device and slot->device. GS_NO_DEVICE: no current context, or a device that
 * is not part of this grant. */
int gs_current_device(void);
int gs_context_device(CUcontext context);
/* The device of the stream; for the default streams the current device. */
int gs_stream_device(CUstream stream);
/* A stream was destroyed: its handle may be reused on another device. */
void gs_stream_forget(CUstream stream);

enum { GS_DEVICE_UNKNOWN = -2 /* in gs_process.ordinal_of: not known yet */ };

/* Determines, by UUID, which CUdevice is which device of the grant. To be called after a successful cuInit. */
void gs_devices_map(void);
/* The ordinal of a CUdevice; GS_NO_DEVICE if it is not part of the grant. */
int gs_device_ordinal(CUdevice device);
/* The CUdevice that has this ordinal, or -1. */
CUdevice gs_device_of(int ordinal);
/* The compute capability, 10 times the major plus the minor version; 0 if the driver does not say. */
unsigned gs_device_capability(int ordinal);
/* The compute capability of all devices of the grant; 0 if they differ. */
unsigned gs_common_capability(void);
/* A context ends or has ended: its handle and those of its streams may be reused on another device. */
void gs_device_context_forget(void);

#endif
