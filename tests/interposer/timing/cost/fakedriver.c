/* A driver whose calls take no time, so that the remaining cost of a launch is the interposer's. One device, one
 * context; the time of an event is the host's clock when it was recorded. */
#include <string.h>
#include <time.h>

#include "api/gs_cuda_types.h"

#define API __attribute__((visibility("default")))

static char context, streams[4];
static int made, current;
static uint64_t recorded[4096];
static unsigned events;
API unsigned fake_records; /* calls of cuEventRecord */

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

API CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  memset(uuid, 'u', sizeof *uuid);
  return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
API CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device) {
  (void)flags, (void)device;
  current = 1;
  return *out = (CUcontext)(void *)&context, CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *out) {
  return *out = current ? (CUcontext)(void *)&context : NULL, CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext of) { return (void)of, *device = 0, CUDA_SUCCESS; }
API CUresult cuCtxPushCurrent_v2(CUcontext of) { return (void)of, CUDA_SUCCESS; }
API CUresult cuCtxPopCurrent_v2(CUcontext *of) { return *of = (CUcontext)(void *)&context, CUDA_SUCCESS; }
API CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) { return *unused = *total = (size_t)1 << 32, CUDA_SUCCESS; }
API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
  (void)flags;
  return *stream = (CUstream)(void *)&streams[made++ & 3], CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream stream, CUcontext *out) { return (void)stream, cuCtxGetCurrent(out); }
API CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags) { return (void)stream, *flags = 1, CUDA_SUCCESS; }
API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return (void)stream, *status = 0, CUDA_SUCCESS;
}
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) { return *mode = 0, CUDA_SUCCESS; }
API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
  (void)flags;
  return *event = (CUevent)(void *)&recorded[events++ & 4095], CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(CUevent event) { return (void)event, CUDA_SUCCESS; }
API CUresult cuEventRecord(CUevent event, CUstream stream) {
  fake_records++;
  return (void)stream, *(uint64_t *)(void *)event = now(), CUDA_SUCCESS;
}
API CUresult cuEventQuery(CUevent event) { return (void)event, CUDA_SUCCESS; }
API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
  return *ms = (float)((double)(int64_t)(*(uint64_t *)(void *)to - *(uint64_t *)(void *)from) / 1e6), CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int bx,
                            unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
                            void **extra) {
  (void)function, (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
  (void)parameters, (void)extra;
  return CUDA_SUCCESS;
}
