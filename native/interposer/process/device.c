/* Finds the device of the grant that belongs to a context, a stream or the calling thread. */
#include "interposer/process/device.h"

#include "interposer/process/greens.h"

#include <string.h>

enum { STREAMS = 256 /* a power of two; remembered per process */ };

/* Incremented whenever a context may have ended: this invalidates what threads have cached. */
static uint32_t contexts_gone;

GS_TLS struct {
  CUcontext context;
  uint32_t gone;
  int ordinal;
} remembered;

/* stream << 6 | ordinal + 2: one word, so that a reader never mixes two streams; user addresses have at most 57
 * bits. */
static uint64_t streams[STREAMS];

static int find_ordinal(CUdevice device) {
  CUuuid uuid;
  /* Not gs_real_has, which calls the loader each time: in a child of a raw clone the loader's lock may be held by a
   * thread that no longer exists. */
  CUresult result = gs_real.cuDeviceGetUuid_v2(&uuid, device);
  if (result == CUDA_ERROR_NOT_FOUND)
    result = gs_real.cuDeviceGetUuid(&uuid, device);
  if (result != CUDA_SUCCESS)
    return result == CUDA_ERROR_NOT_INITIALIZED ? GS_DEVICE_UNKNOWN : GS_NO_DEVICE;
  for (uint32_t i = 0; i < gs_process->ndevices; i++)
    if (memcmp(gs_process->limits->device[i].uuid, uuid.bytes, sizeof uuid.bytes) == 0)
      return (int)i;
  return GS_NO_DEVICE;
}

int gs_device_ordinal(CUdevice device) {
  if (device < 0 || device >= GS_MAX_DEVICES)
    return GS_NO_DEVICE;
  int8_t *entry = &gs_process->ordinal_of[device];
  int ordinal = __atomic_load_n(entry, __ATOMIC_RELAXED);
  if (ordinal == GS_DEVICE_UNKNOWN) {
    ordinal = find_ordinal(device);
    __atomic_store_n(entry, (int8_t)ordinal, __ATOMIC_RELAXED);
  }
  return ordinal < 0 ? GS_NO_DEVICE : ordinal;
}

void gs_devices_map(void) {
  int count = 0;
  if (gs_real.cuDeviceGetCount(&count) != CUDA_SUCCESS)
    return;
  for (int device = 0; device < count && device < GS_MAX_DEVICES; device++)
    gs_device_ordinal(device);
}

CUdevice gs_device_of(int ordinal) {
  for (CUdevice device = 0; device < GS_MAX_DEVICES; device++)
    if (__atomic_load_n(&gs_process->ordinal_of[device], __ATOMIC_RELAXED) == ordinal)
      return device;
  return -1;
}

unsigned gs_device_capability(int ordinal) {
  CUdevice device = gs_device_of(ordinal);
  int major, minor;
  if (device < 0 ||
      gs_real.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) != CUDA_SUCCESS ||
      gs_real.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) != CUDA_SUCCESS ||
      major < 0 || minor < 0)
    return 0;
  return (unsigned)(10 * major + minor);
}

unsigned gs_common_capability(void) {
  unsigned common = gs_device_capability(0);
  for (uint32_t i = 1; i < gs_process->ndevices; i++)
    if (gs_device_capability((int)i) != common)
      return 0;
  return common;
}

void gs_device_context_forget(void) {
  __atomic_fetch_add(&contexts_gone, 1, __ATOMIC_SEQ_CST);
  for (unsigned i = 0; i < STREAMS; i++) /* its streams ended with it */
    __atomic_store_n(&streams[i], 0, __ATOMIC_SEQ_CST);
}

int gs_current_device(void) {
  CUcontext context = NULL;
  CUdevice device;
  if (gs_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
    return GS_NO_DEVICE;
  uint32_t gone = __atomic_load_n(&contexts_gone, __ATOMIC_ACQUIRE);
  if (GS_LIKELY(remembered.context == context && remembered.gone == gone))
    return remembered.ordinal;
  if (gs_real.cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return GS_NO_DEVICE;
  remembered.context = context;
  remembered.gone = gone;
  remembered.ordinal = gs_device_ordinal(device);
  return remembered.ordinal;
}

int gs_context_device(CUcontext context) {
  CUcontext current = NULL;
  CUdevice device;
  context = gs_context_owner(context); /* a green context may be current in one thread only */
  if (!context)
    return gs_current_device();
  if (gs_real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) {
    int ordinal = gs_current_device();
    if (ordinal != GS_NO_DEVICE)
      return ordinal; /* else perhaps in a callback, where the driver only answers calls that take a handle */
  }
  if (gs_real_has(GS_INDEX_cuCtxGetDevice_v2))
    return gs_real.cuCtxGetDevice_v2(&device, context) == CUDA_SUCCESS ? gs_device_ordinal(device) : GS_NO_DEVICE;
  /* drivers before CUDA 13 give the device of the current context only */
  if (gs_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
    return GS_NO_DEVICE;
  CUresult result = gs_real.cuCtxGetDevice(&device);
  gs_real.cuCtxPopCurrent_v2(&current);
  return result == CUDA_SUCCESS ? gs_device_ordinal(device) : GS_NO_DEVICE;
}

static unsigned place(CUstream stream) { return (unsigned)(((uintptr_t)stream >> 4) * 2654435761u >> 8) % STREAMS; }

int gs_stream_device(CUstream stream) {
  if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
    return gs_current_device();
  uint64_t *entry = &streams[place(stream)];
  uint64_t seen = __atomic_load_n(entry, __ATOMIC_RELAXED);
  if (GS_LIKELY(seen >> 6 == (uintptr_t)stream))
    return (int)(seen & 63) - 2;
  CUcontext context;
  uint32_t gone = __atomic_load_n(&contexts_gone, __ATOMIC_SEQ_CST);
  if (gs_real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
    return gs_current_device();
  int ordinal = gs_context_device(context);
  if (__atomic_load_n(&contexts_gone, __ATOMIC_SEQ_CST) == gone)
    __atomic_store_n(entry, (uint64_t)(uintptr_t)stream << 6 | (uint64_t)(ordinal + 2), __ATOMIC_RELAXED);
  return ordinal;
}

void gs_stream_forget(CUstream stream) {
  uint64_t *entry = &streams[place(stream)];
  uint64_t seen = __atomic_load_n(entry, __ATOMIC_RELAXED);
  if (seen >> 6 == (uintptr_t)stream)
    __atomic_compare_exchange_n(entry, &seen, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
