/* Arrays, and copies and fills of boxes of memory. */
#include "sim/cudart/cudart.h"

enum { CHANNEL_SIGNED, CHANNEL_UNSIGNED, CHANNEL_FLOAT };

static uint64_t number(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/* CUarray_format, kind of channel and its bits. */
static const struct {
  int format, kind, bits;
} formats[] = {{0x01, CHANNEL_UNSIGNED, 8}, {0x02, CHANNEL_UNSIGNED, 16}, {0x03, CHANNEL_UNSIGNED, 32},
               {0x08, CHANNEL_SIGNED, 8},   {0x09, CHANNEL_SIGNED, 16},   {0x0a, CHANNEL_SIGNED, 32},
               {0x10, CHANNEL_FLOAT, 16},   {0x20, CHANNEL_FLOAT, 32}};
enum { FORMATS = sizeof formats / sizeof formats[0] };

struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, int f) {
  return (struct cudaChannelFormatDesc){x, y, z, w, f};
}

static cudaError_t to_driver(const struct cudaChannelFormatDesc *channels, struct cudaExtent extent, unsigned flags,
                             CUDA_ARRAY3D_DESCRIPTOR *out) {
  for (int i = 0; channels && i < FORMATS; i++)
    if (formats[i].kind == channels->f && formats[i].bits == channels->x) {
      unsigned count = 1u + (channels->y != 0) + (channels->z != 0) + (channels->w != 0);
      *out = (CUDA_ARRAY3D_DESCRIPTOR){extent.width, extent.height, extent.depth, formats[i].format, count, flags};
      return cudaSuccess;
    }
  return rt_fail(channels ? cudaErrorInvalidChannelDescriptor : cudaErrorInvalidValue);
}

cudaError_t rt_format(const struct cudaChannelFormatDesc *channels, CUDA_ARRAY3D_DESCRIPTOR *out) {
  return to_driver(channels, (struct cudaExtent){1, 0, 0}, 0, out);
}

struct cudaChannelFormatDesc rt_channels(const CUDA_ARRAY3D_DESCRIPTOR *array) {
  for (int i = 0; i < FORMATS; i++)
    if (formats[i].format == (int)array->Format) {
      int bits = formats[i].bits;
      unsigned count = array->NumChannels;
      return (struct cudaChannelFormatDesc){bits, count > 1 ? bits : 0, count > 2 ? bits : 0, count > 3 ? bits : 0,
                                            formats[i].kind};
    }
  return (struct cudaChannelFormatDesc){.f = CHANNEL_UNSIGNED};
}

cudaError_t cudaMalloc3DArray(CUarray *array, const struct cudaChannelFormatDesc *channels, struct cudaExtent extent,
                              unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR wanted;
  cudaError_t error = rt_enter();
  if (error == cudaSuccess)
    error = to_driver(channels, extent, flags, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuArray3DCreate_v2(array, &wanted)) : error;
}

cudaError_t cudaMallocArray(CUarray *array, const struct cudaChannelFormatDesc *channels, size_t width, size_t height,
                            unsigned flags) {
  return cudaMalloc3DArray(array, channels, (struct cudaExtent){width, height, 0}, flags);
}

cudaError_t cudaMallocMipmappedArray(CUmipmappedArray *array, const struct cudaChannelFormatDesc *channels,
                                     struct cudaExtent extent, unsigned levels, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR wanted;
  cudaError_t error = rt_enter();
  if (error == cudaSuccess)
    error = to_driver(channels, extent, flags, &wanted);
  return error == cudaSuccess ? rt_done(rt_driver.cuMipmappedArrayCreate(array, &wanted, levels)) : error;
}

cudaError_t cudaFreeArray(CUarray array) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && array ? rt_done(rt_driver.cuArrayDestroy(array)) : error;
}

cudaError_t cudaFreeMipmappedArray(CUmipmappedArray array) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && array ? rt_done(rt_driver.cuMipmappedArrayDestroy(array)) : error;
}

cudaError_t cudaArrayGetInfo(struct cudaChannelFormatDesc *channels, struct cudaExtent *extent, unsigned *flags,
                             CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR is;
  cudaError_t error = rt_enter();
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuArray3DGetDescriptor_v2(&is, array));
  if (error != cudaSuccess)
    return error;
  if (channels)
    *channels = rt_channels(&is);
  if (extent)
    *extent = (struct cudaExtent){is.Width, is.Height, is.Depth};
  if (flags)
    *flags = is.Flags;
  return cudaSuccess;
}

cudaError_t cudaGetChannelDesc(struct cudaChannelFormatDesc *channels, CUarray array) {
  return channels ? cudaArrayGetInfo(channels, NULL, NULL, array) : rt_fail(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetTexture1DLinearMaxWidth(size_t *width, const struct cudaChannelFormatDesc *channels,
                                                 int device) {
  CUDA_ARRAY3D_DESCRIPTOR is;
  cudaError_t error = rt_start();
  if (error == cudaSuccess)
    error = rt_format(channels, &is);
  return error == cudaSuccess
             ? rt_done(rt_driver.cuDeviceGetTexture1DLinearMaxWidth(width, is.Format, is.NumChannels, device))
             : error;
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *out, struct cudaExtent extent) {
  void *pointer = NULL;
  size_t pitch = 0;
  if (!out)
    return rt_fail(cudaErrorInvalidValue);
  cudaError_t error = cudaMallocPitch(&pointer, &pitch, extent.width, extent.height * extent.depth);
  if (error == cudaSuccess)
    *out = (struct cudaPitchedPtr){pointer, pitch, extent.width, extent.height};
  return error;
}

/* ---- copies of three dimensions ---------------------------------------------------------------------------------- */

/* Bytes of an element; 1 if there is no array. */
static cudaError_t element(CUarray array, size_t *bytes) {
  struct cudaChannelFormatDesc is = {.x = 8};
  cudaError_t error = array ? cudaGetChannelDesc(&is, array) : cudaSuccess;
  *bytes = rt_element_bytes(&is);
  return error;
}

static CUmemorytype type_of(CUarray array, bool host, bool known) {
  if (array)
    return CU_MEMORYTYPE_ARRAY;
  return !known ? CU_MEMORYTYPE_UNIFIED : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

cudaError_t rt_copy_3d(const struct cudaMemcpy3DParms *copy, CUDA_MEMCPY3D *out) {
  size_t from = 1, to = 1;
  if (!copy)
    return rt_fail(cudaErrorInvalidValue);
  if (copy->kind < RT_HOST_TO_HOST || copy->kind > RT_DEFAULT)
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  cudaError_t error = element(copy->srcArray, &from);
  if (error == cudaSuccess)
    error = element(copy->dstArray, &to);
  if (error != cudaSuccess)
    return error;
  bool known = copy->kind != RT_DEFAULT;
  bool from_host = copy->kind == RT_HOST_TO_HOST || copy->kind == RT_HOST_TO_DEVICE;
  bool to_host = copy->kind == RT_HOST_TO_HOST || copy->kind == RT_DEVICE_TO_HOST;
  *out = (CUDA_MEMCPY3D){.srcXInBytes = copy->srcPos.x * from,
                         .srcY = copy->srcPos.y,
                         .srcZ = copy->srcPos.z,
                         .srcMemoryType = type_of(copy->srcArray, from_host, known),
                         .srcHost = copy->srcPtr.ptr,
                         .srcDevice = number(copy->srcPtr.ptr),
                         .srcArray = copy->srcArray,
                         .srcPitch = copy->srcPtr.pitch,
                         .srcHeight = copy->srcPtr.ysize,
                         .dstXInBytes = copy->dstPos.x * to,
                         .dstY = copy->dstPos.y,
                         .dstZ = copy->dstPos.z,
                         .dstMemoryType = type_of(copy->dstArray, to_host, known),
                         .dstHost = copy->dstPtr.ptr,
                         .dstDevice = number(copy->dstPtr.ptr),
                         .dstArray = copy->dstArray,
                         .dstPitch = copy->dstPtr.pitch,
                         .dstHeight = copy->dstPtr.ysize,
                         .WidthInBytes = copy->extent.width * (copy->srcArray ? from : to),
                         .Height = copy->extent.height,
                         .Depth = copy->extent.depth};
  return cudaSuccess;
}

static void *pointer_of(CUmemorytype type, const void *host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? (void *)(uintptr_t)host : (void *)(uintptr_t)device;
}

static int kind_of(const CUDA_MEMCPY3D *copy) {
  bool from = copy->srcMemoryType == CU_MEMORYTYPE_HOST, to = copy->dstMemoryType == CU_MEMORYTYPE_HOST;
  if (copy->srcMemoryType == CU_MEMORYTYPE_UNIFIED || copy->dstMemoryType == CU_MEMORYTYPE_UNIFIED)
    return RT_DEFAULT;
  return from ? (to ? RT_HOST_TO_HOST : RT_HOST_TO_DEVICE) : to ? RT_DEVICE_TO_HOST : RT_DEVICE_TO_DEVICE;
}

cudaError_t rt_copy_3d_back(const CUDA_MEMCPY3D *copy, struct cudaMemcpy3DParms *out) {
  CUarray source = copy->srcMemoryType == CU_MEMORYTYPE_ARRAY ? copy->srcArray : NULL;
  CUarray target = copy->dstMemoryType == CU_MEMORYTYPE_ARRAY ? copy->dstArray : NULL;
  size_t from = 1, to = 1;
  cudaError_t error = element(source, &from);
  if (error == cudaSuccess)
    error = element(target, &to);
  if (error != cudaSuccess)
    return error;
  void *at = source ? NULL : pointer_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice);
  void *into = target ? NULL : pointer_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice);
  *out = (struct cudaMemcpy3DParms){.srcArray = source,
                                    .srcPos = {copy->srcXInBytes / from, copy->srcY, copy->srcZ},
                                    .srcPtr = {at, copy->srcPitch, copy->WidthInBytes, copy->srcHeight},
                                    .dstArray = target,
                                    .dstPos = {copy->dstXInBytes / to, copy->dstY, copy->dstZ},
                                    .dstPtr = {into, copy->dstPitch, copy->WidthInBytes, copy->dstHeight},
                                    .extent = {copy->WidthInBytes / (source ? from : to), copy->Height, copy->Depth},
                                    .kind = kind_of(copy)};
  return cudaSuccess;
}

cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *copy) {
  CUDA_MEMCPY3D box;
  cudaError_t error = rt_enter();
  if (error == cudaSuccess)
    error = rt_copy_3d(copy, &box);
  return error == cudaSuccess ? rt_done(rt_driver.cuMemcpy3D_v2(&box)) : error;
}

cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *copy, CUstream stream) {
  CUDA_MEMCPY3D box;
  cudaError_t error = rt_enter();
  if (error == cudaSuccess)
    error = rt_copy_3d(copy, &box);
  return error == cudaSuccess ? rt_done(rt_driver.cuMemcpy3DAsync_v2(&box, stream)) : error;
}

/* Between devices. Addresses are unified, so the device numbers are not needed. */
struct cudaMemcpy3DPeerParms {
  CUarray srcArray;
  struct cudaPos srcPos;
  struct cudaPitchedPtr srcPtr;
  int srcDevice;
  CUarray dstArray;
  struct cudaPos dstPos;
  struct cudaPitchedPtr dstPtr;
  int dstDevice;
  struct cudaExtent extent;
};

static struct cudaMemcpy3DParms of_peers(const struct cudaMemcpy3DPeerParms *copy) {
  return (struct cudaMemcpy3DParms){copy->srcArray, copy->srcPos, copy->srcPtr, copy->dstArray,
                                    copy->dstPos,   copy->dstPtr, copy->extent, RT_DEFAULT};
}

cudaError_t cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *copy) {
  if (!copy)
    return rt_fail(cudaErrorInvalidValue);
  const struct cudaMemcpy3DParms plain = of_peers(copy);
  return cudaMemcpy3D(&plain);
}

cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *copy, CUstream stream) {
  if (!copy)
    return rt_fail(cudaErrorInvalidValue);
  const struct cudaMemcpy3DParms plain = of_peers(copy);
  return cudaMemcpy3DAsync(&plain, stream);
}

/* ---- copies of two dimensions with arrays; widths and horizontal offsets are in bytes ---------------------------- */

static cudaError_t box_2d(CUarray to_array, void *to, size_t to_pitch, CUarray from_array, const void *from,
                          size_t from_pitch, size_t width, size_t height, int kind, CUDA_MEMCPY2D *out) {
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  if (kind < RT_HOST_TO_HOST || kind > RT_DEFAULT)
    return rt_fail(cudaErrorInvalidMemcpyDirection);
  bool known = kind != RT_DEFAULT;
  *out = (CUDA_MEMCPY2D){.srcMemoryType = type_of(from_array, kind == RT_HOST_TO_DEVICE, known),
                         .srcHost = from,
                         .srcDevice = number(from),
                         .srcArray = from_array,
                         .srcPitch = from_pitch,
                         .dstMemoryType = type_of(to_array, kind == RT_DEVICE_TO_HOST, known),
                         .dstHost = to,
                         .dstDevice = number(to),
                         .dstArray = to_array,
                         .dstPitch = to_pitch,
                         .WidthInBytes = width,
                         .Height = height};
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DToArrayAsync(CUarray to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                                     size_t height, int kind, CUstream stream) {
  CUDA_MEMCPY2D box;
  cudaError_t error = box_2d(to, NULL, 0, NULL, from, pitch, width, height, kind, &box);
  if (error != cudaSuccess)
    return error;
  box.dstXInBytes = x;
  box.dstY = y;
  return rt_done(rt_driver.cuMemcpy2DAsync_v2(&box, stream));
}

cudaError_t cudaMemcpy2DToArray(CUarray to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                                size_t height, int kind) {
  CUDA_MEMCPY2D box;
  cudaError_t error = box_2d(to, NULL, 0, NULL, from, pitch, width, height, kind, &box);
  if (error != cudaSuccess)
    return error;
  box.dstXInBytes = x;
  box.dstY = y;
  return rt_done(rt_driver.cuMemcpy2DUnaligned_v2(&box));
}

cudaError_t cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, CUarray from, size_t x, size_t y, size_t width,
                                       size_t height, int kind, CUstream stream) {
  CUDA_MEMCPY2D box;
  cudaError_t error = box_2d(NULL, to, pitch, from, NULL, 0, width, height, kind, &box);
  if (error != cudaSuccess)
    return error;
  box.srcXInBytes = x;
  box.srcY = y;
  return rt_done(rt_driver.cuMemcpy2DAsync_v2(&box, stream));
}

cudaError_t cudaMemcpy2DFromArray(void *to, size_t pitch, CUarray from, size_t x, size_t y, size_t width, size_t height,
                                  int kind) {
  CUDA_MEMCPY2D box;
  cudaError_t error = box_2d(NULL, to, pitch, from, NULL, 0, width, height, kind, &box);
  if (error != cudaSuccess)
    return error;
  box.srcXInBytes = x;
  box.srcY = y;
  return rt_done(rt_driver.cuMemcpy2DUnaligned_v2(&box));
}

cudaError_t cudaMemcpy2DArrayToArray(CUarray to, size_t to_x, size_t to_y, CUarray from, size_t from_x, size_t from_y,
                                     size_t width, size_t height, int kind) {
  CUDA_MEMCPY2D box;
  cudaError_t error = box_2d(to, NULL, 0, from, NULL, 0, width, height, kind, &box);
  if (error != cudaSuccess)
    return error;
  box.srcXInBytes = from_x;
  box.srcY = from_y;
  box.dstXInBytes = to_x;
  box.dstY = to_y;
  return rt_done(rt_driver.cuMemcpy2DUnaligned_v2(&box));
}

/* ---- fills ------------------------------------------------------------------------------------------------------- */

cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr at, int value, struct cudaExtent extent, CUstream stream) {
  cudaError_t error = rt_enter();
  for (size_t z = 0; z < extent.depth && error == cudaSuccess; z++)
    error = rt_done(rt_driver.cuMemsetD2D8Async(number(at.ptr) + z * at.pitch * at.ysize, at.pitch,
                                                (unsigned char)value, extent.width, extent.height, stream));
  return error;
}

cudaError_t cudaMemset3D(struct cudaPitchedPtr at, int value, struct cudaExtent extent) {
  return cudaMemset3DAsync(at, value, extent, NULL);
}
