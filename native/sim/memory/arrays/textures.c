/* Texture and surface objects: descriptions of memory for kernels; nothing reads through them here. An object takes no
 * device memory, does not keep its array alive, and ends with its context. */
#include <stdlib.h>
#include <string.h>

#include "sim/memory/memory.h"

enum {
  ADDRESS_ALIGN = 512, /* CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT */
  PITCH_ALIGN = 32,    /* CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT */
  LINEAR_1D_MAX = 1 << 27,
  LINEAR_2D_WIDTH_MAX = 131072,
  LINEAR_2D_HEIGHT_MAX = 65000,
  LINEAR_2D_PITCH_MAX = 2097120,
  TEXTURE_FLAGS = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
      CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP
};

struct object {
  uint64_t handle; /* counted from 1 */
  bool surface;
  struct sim_ctx *ctx;
  uint64_t ctx_id;
  CUDA_RESOURCE_DESC resource;
  CUDA_TEXTURE_DESC texture;
  CUDA_RESOURCE_VIEW_DESC view;
  bool viewed;
  struct object *next;
};

/* Guarded by sim_ranges_lock. */
static struct {
  struct object *objects;
  uint64_t handles;
} all;

/* ---- checks ------------------------------------------------------------------------------------------------------ */

unsigned sim_element_bytes(CUarray_format format, unsigned channels) {
  const CUDA_ARRAY3D_DESCRIPTOR one = {.Width = 1, .Format = format, .NumChannels = channels};
  struct sim_array_view view;
  return sim_array_layout(&one, &view) == CUDA_SUCCESS ? (unsigned)view.element_bytes : 0;
}

static bool linear_valid(CUdeviceptr address, int format, unsigned channels, size_t bytes) {
  unsigned element = sim_element_bytes(format, channels);
  return element && bytes && bytes / element <= LINEAR_1D_MAX && address % ADDRESS_ALIGN == 0 &&
         sim_memory_host(address, bytes) != NULL;
}

static bool pitched_valid(const CUDA_RESOURCE_DESC *resource) {
  size_t width = resource->res.pitch2D.width, height = resource->res.pitch2D.height;
  size_t pitch = resource->res.pitch2D.pitchInBytes;
  unsigned element = sim_element_bytes(resource->res.pitch2D.format, resource->res.pitch2D.numChannels);
  if (element == 0 || width == 0 || height == 0 || width > LINEAR_2D_WIDTH_MAX || height > LINEAR_2D_HEIGHT_MAX ||
      pitch > LINEAR_2D_PITCH_MAX || pitch % PITCH_ALIGN || pitch < width * element)
    return false;
  return resource->res.pitch2D.devPtr % ADDRESS_ALIGN == 0 &&
         sim_memory_host(resource->res.pitch2D.devPtr, pitch * (height - 1) + width * element) != NULL;
}

/* flags: of the array's descriptor */
static bool array_valid(CUarray array, unsigned *flags) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  bool valid = cuArray3DGetDescriptor_v2(&descriptor, array) == CUDA_SUCCESS;
  *flags = valid ? descriptor.Flags : 0;
  return valid;
}

static bool resource_valid(const CUDA_RESOURCE_DESC *resource, unsigned *flags) {
  CUarray first;
  *flags = 0;
  if (resource->flags)
    return false;
  switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY: return array_valid(resource->res.array.hArray, flags);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      return cuMipmappedArrayGetLevel(&first, resource->res.mipmap.hMipmappedArray, 0) == CUDA_SUCCESS &&
             array_valid(first, flags);
    case CU_RESOURCE_TYPE_LINEAR:
      return linear_valid(resource->res.linear.devPtr, resource->res.linear.format, resource->res.linear.numChannels,
                          resource->res.linear.sizeInBytes);
    case CU_RESOURCE_TYPE_PITCH2D: return pitched_valid(resource);
    default: return false;
  }
}

static bool texture_valid(const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_DESC *resource, unsigned array_flags) {
  if (texture->flags & ~(unsigned)TEXTURE_FLAGS)
    return false;
  for (int i = 0; i < 3; i++)
    if (texture->addressMode[i] < 0 || texture->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER)
      return false;
  if (texture->filterMode < 0 || texture->filterMode > CU_TR_FILTER_MODE_LINEAR || texture->mipmapFilterMode < 0 ||
      texture->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR)
    return false;
  if (texture->flags & CU_TRSF_SEAMLESS_CUBEMAP && !(array_flags & CUDA_ARRAY3D_CUBEMAP))
    return false;
  return resource->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY || texture->flags & CU_TRSF_NORMALIZED_COORDINATES;
}

static bool view_valid(const CUDA_RESOURCE_VIEW_DESC *view, const CUDA_RESOURCE_DESC *resource) {
  if (resource->resType != CU_RESOURCE_TYPE_ARRAY && resource->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
    return false;
  if (resource->resType == CU_RESOURCE_TYPE_ARRAY && (view->firstMipmapLevel || view->lastMipmapLevel))
    return false;
  return view->format >= CU_RES_VIEW_FORMAT_NONE && view->format <= CU_RES_VIEW_FORMAT_UNSIGNED_BC7;
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static CUresult add(const struct object *made, unsigned long long *handle) {
  struct object *kept = malloc(sizeof *kept);
  if (!kept)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *kept = *made;
  sim_ranges_lock();
  kept->handle = ++all.handles;
  kept->next = all.objects;
  all.objects = kept;
  *handle = kept->handle;
  sim_ranges_unlock();
  return CUDA_SUCCESS;
}

/* With the lock held; NULL: no live object of that kind. */
static struct object **find(unsigned long long handle, bool surface) {
  struct object **link = &all.objects;
  while (*link && ((*link)->handle != handle || (*link)->surface != surface))
    link = &(*link)->next;
  return *link ? link : NULL;
}

static CUresult destroy(unsigned long long handle, bool surface) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  struct object **link = find(handle, surface), *gone = link ? *link : NULL;
  if (gone)
    *link = gone->next;
  sim_ranges_unlock();
  free(gone);
  return gone ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Copies a live object. */
static CUresult look_up(unsigned long long handle, bool surface, const void *out, struct object *copy) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  struct object **link = find(handle, surface);
  if (link)
    *copy = **link;
  sim_ranges_unlock();
  return link && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_textures_ctx_destroyed(struct sim_ctx *ctx) {
  sim_ranges_lock();
  for (struct object **link = &all.objects; *link;) {
    struct object *each = *link;
    if (each->ctx != ctx || each->ctx_id != ctx->id) {
      link = &each->next;
      continue;
    }
    *link = each->next;
    free(each);
  }
  sim_ranges_unlock();
}

CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                           const CUDA_TEXTURE_DESC *pTexDesc, const CUDA_RESOURCE_VIEW_DESC *pResViewDesc) {
  struct sim_ctx *ctx;
  unsigned flags;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  if (!pTexObject || !pResDesc || !pTexDesc || !resource_valid(pResDesc, &flags) ||
      !texture_valid(pTexDesc, pResDesc, flags) || (pResViewDesc && !view_valid(pResViewDesc, pResDesc)))
    return CUDA_ERROR_INVALID_VALUE;
  struct object made = {.ctx = sim_ctx_owner(ctx),
                        .ctx_id = sim_ctx_owner(ctx)->id,
                        .resource = *pResDesc,
                        .texture = *pTexDesc,
                        .viewed = pResViewDesc != NULL};
  if (pResViewDesc)
    made.view = *pResViewDesc;
  return add(&made, pTexObject);
}

CUresult cuTexObjectDestroy(CUtexObject texObject) { return destroy(texObject, false); }

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject) {
  struct object object;
  CUresult result = look_up(texObject, false, pResDesc, &object);
  if (result == CUDA_SUCCESS)
    *pResDesc = object.resource;
  return result;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject) {
  struct object object;
  CUresult result = look_up(texObject, false, pTexDesc, &object);
  if (result == CUDA_SUCCESS)
    *pTexDesc = object.texture;
  return result;
}

/* INVALID_VALUE also if the object was created without a view. */
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *pResViewDesc, CUtexObject texObject) {
  struct object object;
  CUresult result = look_up(texObject, false, pResViewDesc, &object);
  if (result == CUDA_SUCCESS && !object.viewed)
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *pResViewDesc = object.view;
  return result;
}

CUresult cuSurfObjectCreate(CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc) {
  struct sim_ctx *ctx;
  unsigned flags;
  CUresult result = sim_ctx_need(&ctx);
  if (result != CUDA_SUCCESS)
    return result;
  if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY || !resource_valid(pResDesc, &flags))
    return CUDA_ERROR_INVALID_VALUE;
  const struct object made = {
      .surface = true, .ctx = sim_ctx_owner(ctx), .ctx_id = sim_ctx_owner(ctx)->id, .resource = *pResDesc};
  return add(&made, pSurfObject);
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject) { return destroy(surfObject, true); }

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject) {
  struct object object;
  CUresult result = look_up(surfObject, true, pResDesc, &object);
  if (result == CUDA_SUCCESS)
    *pResDesc = object.resource;
  return result;
}
