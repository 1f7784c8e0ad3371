/* Texture and surface objects of the driver, whose descriptions have formats where the runtime's have channels. */
#include "sim/cudart/cudart.h"

#include <string.h>

struct cudaResourceDesc {
  int type;
  union {
    CUarray array;
    CUmipmappedArray mipmap;
    struct {
      void *pointer;
      struct cudaChannelFormatDesc channels;
      size_t bytes;
    } linear;
    struct {
      void *pointer;
      struct cudaChannelFormatDesc channels;
      size_t width, height, pitch;
    } pitched;
#if RT_MAJOR >= 13
    int reserved[32];
#endif
  };
#if RT_MAJOR >= 13
  unsigned flags;
#endif
};

struct cudaTextureDesc {
  int address[3], filter, read_mode, srgb; /* read_mode: 0: as elements, 1: integers as normalised floats */
  float border[4];
  int normalised;
  unsigned anisotropy;
  int mipmap_filter;
  float mipmap_bias, min_level, max_level;
  int no_trilinear_optimisation, seamless_cubemap;
};

/* The same layout as the driver's. */
struct cudaResourceViewDesc {
  CUDA_RESOURCE_VIEW_DESC driver;
};

static cudaError_t resource_to_driver(const struct cudaResourceDesc *in, CUDA_RESOURCE_DESC *out) {
  CUDA_ARRAY3D_DESCRIPTOR format = {0};
  cudaError_t error = cudaSuccess;
  if (!in)
    return rt_fail(cudaErrorInvalidValue);
  *out = (CUDA_RESOURCE_DESC){.resType = in->type};
#if RT_MAJOR >= 13
  out->flags = in->flags;
#endif
  switch (in->type) {
    case CU_RESOURCE_TYPE_ARRAY: out->res.array.hArray = in->array; break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: out->res.mipmap.hMipmappedArray = in->mipmap; break;
    case CU_RESOURCE_TYPE_LINEAR:
      error = rt_format(&in->linear.channels, &format);
      out->res.linear.devPtr = (CUdeviceptr)(uintptr_t)in->linear.pointer;
      out->res.linear.sizeInBytes = in->linear.bytes;
      out->res.linear.format = (int)format.Format;
      out->res.linear.numChannels = format.NumChannels;
      break;
    case CU_RESOURCE_TYPE_PITCH2D:
      error = rt_format(&in->pitched.channels, &format);
      out->res.pitch2D.devPtr = (CUdeviceptr)(uintptr_t)in->pitched.pointer;
      out->res.pitch2D.format = (int)format.Format;
      out->res.pitch2D.numChannels = format.NumChannels;
      out->res.pitch2D.width = in->pitched.width;
      out->res.pitch2D.height = in->pitched.height;
      out->res.pitch2D.pitchInBytes = in->pitched.pitch;
      break;
    default: return rt_fail(cudaErrorInvalidValue);
  }
  return error;
}

static void resource_of_driver(const CUDA_RESOURCE_DESC *in, struct cudaResourceDesc *out) {
  CUDA_ARRAY3D_DESCRIPTOR format = {0};
  memset(out, 0, sizeof *out);
  out->type = in->resType;
  switch (in->resType) {
    case CU_RESOURCE_TYPE_ARRAY: out->array = in->res.array.hArray; break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: out->mipmap = in->res.mipmap.hMipmappedArray; break;
    case CU_RESOURCE_TYPE_LINEAR:
      format.Format = (CUarray_format)in->res.linear.format;
      format.NumChannels = in->res.linear.numChannels;
      out->linear.pointer = (void *)(uintptr_t)in->res.linear.devPtr;
      out->linear.channels = rt_channels(&format);
      out->linear.bytes = in->res.linear.sizeInBytes;
      break;
    default:
      format.Format = (CUarray_format)in->res.pitch2D.format;
      format.NumChannels = in->res.pitch2D.numChannels;
      out->pitched.pointer = (void *)(uintptr_t)in->res.pitch2D.devPtr;
      out->pitched.channels = rt_channels(&format);
      out->pitched.width = in->res.pitch2D.width;
      out->pitched.height = in->res.pitch2D.height;
      out->pitched.pitch = in->res.pitch2D.pitchInBytes;
  }
}

static CUDA_TEXTURE_DESC texture_to_driver(const struct cudaTextureDesc *in) {
  CUDA_TEXTURE_DESC out = {.filterMode = in->filter,
                           .maxAnisotropy = in->anisotropy,
                           .mipmapFilterMode = in->mipmap_filter,
                           .mipmapLevelBias = in->mipmap_bias,
                           .minMipmapLevelClamp = in->min_level,
                           .maxMipmapLevelClamp = in->max_level};
  memcpy(out.addressMode, in->address, sizeof in->address);
  memcpy(out.borderColor, in->border, sizeof in->border);
  out.flags = (in->read_mode ? 0u : CU_TRSF_READ_AS_INTEGER) | (in->normalised ? CU_TRSF_NORMALIZED_COORDINATES : 0u) |
              (in->srgb ? CU_TRSF_SRGB : 0u) |
              (in->no_trilinear_optimisation ? CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION : 0u) |
              (in->seamless_cubemap ? CU_TRSF_SEAMLESS_CUBEMAP : 0u);
  return out;
}

static struct cudaTextureDesc texture_of_driver(const CUDA_TEXTURE_DESC *in) {
  struct cudaTextureDesc out = {.filter = in->filterMode,
                                .read_mode = !(in->flags & CU_TRSF_READ_AS_INTEGER),
                                .srgb = (in->flags & CU_TRSF_SRGB) != 0,
                                .normalised = (in->flags & CU_TRSF_NORMALIZED_COORDINATES) != 0,
                                .anisotropy = in->maxAnisotropy,
                                .mipmap_filter = in->mipmapFilterMode,
                                .mipmap_bias = in->mipmapLevelBias,
                                .min_level = in->minMipmapLevelClamp,
                                .max_level = in->maxMipmapLevelClamp,
                                .no_trilinear_optimisation = (in->flags & CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION) != 0,
                                .seamless_cubemap = (in->flags & CU_TRSF_SEAMLESS_CUBEMAP) != 0};
  memcpy(out.address, in->addressMode, sizeof out.address);
  memcpy(out.border, in->borderColor, sizeof out.border);
  return out;
}

cudaError_t cudaCreateTextureObject(CUtexObject *object, const struct cudaResourceDesc *resource,
                                    const struct cudaTextureDesc *texture, const struct cudaResourceViewDesc *view) {
  CUDA_RESOURCE_DESC of;
  cudaError_t error = rt_enter_for(texture ? object : NULL);
  if (error == cudaSuccess)
    error = resource_to_driver(resource, &of);
  if (error != cudaSuccess)
    return error;
  const CUDA_TEXTURE_DESC how = texture_to_driver(texture);
  return rt_done(rt_driver.cuTexObjectCreate(object, &of, &how, view ? &view->driver : NULL));
}

cudaError_t cudaCreateSurfaceObject(CUsurfObject *object, const struct cudaResourceDesc *resource) {
  CUDA_RESOURCE_DESC of;
  cudaError_t error = rt_enter_for(object);
  if (error == cudaSuccess)
    error = resource_to_driver(resource, &of);
  return error == cudaSuccess ? rt_done(rt_driver.cuSurfObjectCreate(object, &of)) : error;
}

/* Destroying object 0 has no effect. */
cudaError_t cudaDestroyTextureObject(CUtexObject object) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && object ? rt_done(rt_driver.cuTexObjectDestroy(object)) : error;
}

cudaError_t cudaDestroySurfaceObject(CUsurfObject object) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && object ? rt_done(rt_driver.cuSurfObjectDestroy(object)) : error;
}

cudaError_t cudaGetTextureObjectResourceDesc(struct cudaResourceDesc *resource, CUtexObject object) {
  CUDA_RESOURCE_DESC of;
  cudaError_t error = rt_enter_for(resource);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuTexObjectGetResourceDesc(&of, object));
  if (error == cudaSuccess)
    resource_of_driver(&of, resource);
  return error;
}

cudaError_t cudaGetSurfaceObjectResourceDesc(struct cudaResourceDesc *resource, CUsurfObject object) {
  CUDA_RESOURCE_DESC of;
  cudaError_t error = rt_enter_for(resource);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuSurfObjectGetResourceDesc(&of, object));
  if (error == cudaSuccess)
    resource_of_driver(&of, resource);
  return error;
}

cudaError_t cudaGetTextureObjectTextureDesc(struct cudaTextureDesc *texture, CUtexObject object) {
  CUDA_TEXTURE_DESC how;
  cudaError_t error = rt_enter_for(texture);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuTexObjectGetTextureDesc(&how, object));
  if (error == cudaSuccess)
    *texture = texture_of_driver(&how);
  return error;
}

cudaError_t cudaGetTextureObjectResourceViewDesc(struct cudaResourceViewDesc *view, CUtexObject object) {
  cudaError_t error = rt_enter_for(view);
  return error == cudaSuccess ? rt_done(rt_driver.cuTexObjectGetResourceViewDesc(&view->driver, object)) : error;
}
