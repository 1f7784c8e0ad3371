/* Arrays and mipmapped arrays: rows without padding in device memory; slices of a 3D array and layers are
 * consecutive. */
#include <stdlib.h>
#include <string.h>

#include "sim/memory/memory.h"
#include "sim/memory/arrays/sparse.h"

struct CUarray_st {
  struct sim_array_view view;
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  struct sim_ctx *ctx;
  CUdeviceptr memory; /* 0: a level of a mipmapped array, which owns the memory */
  uint64_t charged;
  struct sim_sparse *sparse; /* NULL: the array has memory of its own, which is charged */
  struct CUarray_st *next;
};

struct CUmipmappedArray_st {
  struct sim_ctx *ctx;
  CUdevice device;
  CUdeviceptr memory;
  uint64_t charged;
  struct sim_sparse *sparse;
  unsigned nlevels;
  CUarray *level;
  struct CUmipmappedArray_st *next;
};

/* Guarded by sim_ranges_lock. */
static struct {
  struct CUarray_st *arrays;
  struct CUmipmappedArray_st *mipmapped;
} all;

static uint64_t bytes_of(const struct sim_array_view *view) { return view->row_bytes * view->rows * view->layers; }

static bool known(const struct CUarray_st *array) {
  const struct CUarray_st *each = all.arrays;
  while (each && each != array)
    each = each->next;
  return array && each;
}

static bool known_mipmapped(const struct CUmipmappedArray_st *mipmapped) {
  const struct CUmipmappedArray_st *each = all.mipmapped;
  while (each && each != mipmapped)
    each = each->next;
  return mipmapped && each;
}

struct sim_sparse *sim_array_sparse(CUarray array) { return known(array) ? array->sparse : NULL; }
struct sim_sparse *sim_mipmapped_sparse(CUmipmappedArray mipmapped) {
  return known_mipmapped(mipmapped) ? mipmapped->sparse : NULL;
}

CUresult sim_array_get(CUarray handle, struct sim_array_view *view) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  if (known(handle))
    *view = handle->view;
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_ranges_unlock();
  return result;
}

static void link_array(struct CUarray_st *array) {
  array->next = all.arrays;
  all.arrays = array;
}

static void unlink_array(struct CUarray_st *array) {
  struct CUarray_st **link = &all.arrays;
  while (*link != array)
    link = &(*link)->next;
  *link = array->next;
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result == CUDA_SUCCESS)
    result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  if (!out || !descriptor)
    return CUDA_ERROR_INVALID_VALUE;
  struct CUarray_st *array = calloc(1, sizeof *array);
  if (!array)
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = sim_array_layout(descriptor, &array->view);
  if (result == CUDA_SUCCESS && descriptor->Flags & CUDA_ARRAY3D_SPARSE)
    result = sim_sparse_new(descriptor, 1, &array->sparse);
  if (result == CUDA_SUCCESS) {
    array->charged = sim_round_up(bytes_of(&array->view), SIM_ALLOC_ROUND);
    result = bytes_of(&array->view) > SIM_ADDRESS_SPACE
                 ? CUDA_ERROR_OUT_OF_MEMORY
                 : sim_memory_new(NULL, ctx->device, SIM_RANGE_ARRAY, bytes_of(&array->view),
                                  array->sparse ? 0 : array->charged, 0, false, &array->memory);
  }
  if (result != CUDA_SUCCESS) {
    sim_sparse_free(array->sparse);
    free(array);
    return result;
  }
  array->view.at = (void *)(uintptr_t)array->memory;
  array->view.device = ctx->device;
  array->descriptor = *descriptor;
  array->ctx = sim_ctx_owner(ctx);
  sim_ranges_lock();
  bool destroyed = array->ctx->barred;
  if (!destroyed)
    link_array(array);
  sim_ranges_unlock();
  if (destroyed) {
    sim_memory_array_free(array->memory);
    free(array);
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  *out = array;
  return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) {
  return create(pHandle, pAllocateArray);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray) {
  if (!pAllocateArray)
    return create(pHandle, NULL);
  const CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = pAllocateArray->Width,
                                              .Height = pAllocateArray->Height,
                                              .Format = pAllocateArray->Format,
                                              .NumChannels = pAllocateArray->NumChannels};
  return create(pHandle, &descriptor);
}

CUresult cuArrayDestroy(CUarray hArray) {
  CUresult result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  if (!known(hArray) || hArray->memory == 0)
    result = CUDA_ERROR_INVALID_HANDLE;
  else
    unlink_array(hArray);
  sim_ranges_unlock();
  if (result != CUDA_SUCCESS)
    return result;
  sim_ctx_wait(hArray->ctx);
  sim_sparse_free(hArray->sparse);
  sim_memory_array_free(hArray->memory);
  free(hArray);
  return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray) {
  CUresult result = CUDA_SUCCESS;
  if (!pArrayDescriptor)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  if (known(hArray))
    *pArrayDescriptor = hArray->descriptor;
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_ranges_unlock();
  return result;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray) {
  CUDA_ARRAY3D_DESCRIPTOR full;
  CUresult result = cuArray3DGetDescriptor_v2(pArrayDescriptor ? &full : NULL, hArray);
  if (result == CUDA_SUCCESS)
    *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){
        .Width = full.Width, .Height = full.Height, .Format = full.Format, .NumChannels = full.NumChannels};
  return result;
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, uint64_t bytes, CUdevice device) {
  if (!sim_device_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = bytes, .alignment = SIM_ALLOC_ROUND};
  return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements, CUarray array,
                                      CUdevice device) {
  if (!memoryRequirements)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  CUresult result = known(array) ? requirements(memoryRequirements, array->charged, device) : CUDA_ERROR_INVALID_HANDLE;
  sim_ranges_unlock();
  return result;
}

/* ---- mipmapped arrays -------------------------------------------------------------------------------------------- */

static void free_levels(struct CUmipmappedArray_st *mipmapped) {
  sim_sparse_free(mipmapped->sparse);
  for (unsigned i = 0; i < mipmapped->nlevels; i++)
    free(mipmapped->level[i]);
  free(mipmapped->level);
  free(mipmapped);
}

/* Fills in the levels; view.at is an offset until the memory is allocated. */
static CUresult make_levels(struct CUmipmappedArray_st *mipmapped, const CUDA_ARRAY3D_DESCRIPTOR *first,
                            unsigned count) {
  mipmapped->level = calloc(count, sizeof *mipmapped->level);
  if (!mipmapped->level)
    return CUDA_ERROR_OUT_OF_MEMORY;
  for (; mipmapped->nlevels < count; mipmapped->nlevels++) {
    struct CUarray_st *level = calloc(1, sizeof *level);
    if (!level)
      return CUDA_ERROR_OUT_OF_MEMORY;
    mipmapped->level[mipmapped->nlevels] = level;
    level->descriptor = sim_array_level(first, mipmapped->nlevels);
    CUresult result = sim_array_layout(&level->descriptor, &level->view);
    if (result != CUDA_SUCCESS) {
      mipmapped->nlevels++;
      return result;
    }
    level->ctx = mipmapped->ctx;
    level->view.device = mipmapped->device;
    level->view.at = (void *)(uintptr_t)mipmapped->charged;
    level->charged = sim_round_up(bytes_of(&level->view), SIM_ALLOC_ROUND);
    mipmapped->charged += level->charged;
  }
  return CUDA_SUCCESS;
}

static CUresult make_sparse(struct CUmipmappedArray_st *mipmapped) {
  enum { LEVELS_MAX = 21 };
  CUDA_ARRAY3D_DESCRIPTOR levels[LEVELS_MAX];
  for (unsigned i = 0; i < mipmapped->nlevels && i < LEVELS_MAX; i++)
    levels[i] = mipmapped->level[i]->descriptor;
  return sim_sparse_new(levels, mipmapped->nlevels, &mipmapped->sparse);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  enum { MAX_LEVELS = 21 };
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result == CUDA_SUCCESS)
    result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  if (!pHandle || !pMipmappedArrayDesc || numMipmapLevels == 0 || numMipmapLevels > MAX_LEVELS)
    return CUDA_ERROR_INVALID_VALUE;
  struct CUmipmappedArray_st *made = calloc(1, sizeof *made);
  if (!made)
    return CUDA_ERROR_OUT_OF_MEMORY;
  made->ctx = sim_ctx_owner(ctx);
  made->device = ctx->device;
  result = make_levels(made, pMipmappedArrayDesc, numMipmapLevels);
  if (result == CUDA_SUCCESS && pMipmappedArrayDesc->Flags & CUDA_ARRAY3D_SPARSE)
    result = make_sparse(made);
  if (result == CUDA_SUCCESS)
    result = made->charged > SIM_ADDRESS_SPACE
                 ? CUDA_ERROR_OUT_OF_MEMORY
                 : sim_memory_new(NULL, made->device, SIM_RANGE_ARRAY, made->charged, made->sparse ? 0 : made->charged,
                                  0, false, &made->memory);
  if (result != CUDA_SUCCESS) {
    free_levels(made);
    return result;
  }
  sim_ranges_lock();
  bool destroyed = made->ctx->barred;
  for (unsigned i = 0; i < made->nlevels && !destroyed; i++) {
    made->level[i]->view.at = (uint8_t *)(uintptr_t)made->memory + (uintptr_t)made->level[i]->view.at;
    link_array(made->level[i]);
  }
  made->next = destroyed ? NULL : all.mipmapped;
  all.mipmapped = destroyed ? all.mipmapped : made;
  sim_ranges_unlock();
  if (destroyed) {
    sim_memory_array_free(made->memory);
    free_levels(made);
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  *pHandle = made;
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  if (!known_mipmapped(hMipmappedArray))
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (!pLevelArray || level >= hMipmappedArray->nlevels)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    *pLevelArray = hMipmappedArray->level[level];
  sim_ranges_unlock();
  return result;
}

static void unlink_mipmapped(struct CUmipmappedArray_st *mipmapped) {
  struct CUmipmappedArray_st **link = &all.mipmapped;
  while (*link != mipmapped)
    link = &(*link)->next;
  *link = mipmapped->next;
  for (unsigned i = 0; i < mipmapped->nlevels; i++)
    unlink_array(mipmapped->level[i]);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  CUresult result = sim_capture_guard();
  if (result != CUDA_SUCCESS)
    return result;
  sim_ranges_lock();
  if (known_mipmapped(hMipmappedArray))
    unlink_mipmapped(hMipmappedArray);
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_ranges_unlock();
  if (result != CUDA_SUCCESS)
    return result;
  sim_ctx_wait(hMipmappedArray->ctx);
  sim_memory_array_free(hMipmappedArray->memory);
  free_levels(hMipmappedArray);
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice device) {
  CUresult result = CUDA_SUCCESS;
  if (!memoryRequirements)
    return CUDA_ERROR_INVALID_VALUE;
  sim_ranges_lock();
  result =
      known_mipmapped(mipmap) ? requirements(memoryRequirements, mipmap->charged, device) : CUDA_ERROR_INVALID_HANDLE;
  sim_ranges_unlock();
  return result;
}

void sim_arrays_ctx_destroyed(struct sim_ctx *ctx) {
  struct CUmipmappedArray_st *mipmapped;
  struct CUarray_st *array;
  do {
    sim_ranges_lock();
    for (mipmapped = all.mipmapped; mipmapped && mipmapped->ctx != ctx; mipmapped = mipmapped->next)
      ;
    if (mipmapped)
      unlink_mipmapped(mipmapped);
    for (array = all.arrays; array && (array->ctx != ctx || array->memory == 0); array = array->next)
      ;
    if (array)
      unlink_array(array);
    sim_ranges_unlock();
    if (mipmapped) {
      sim_memory_array_free(mipmapped->memory);
      free_levels(mipmapped);
    }
    if (array) {
      sim_sparse_free(array->sparse);
      sim_memory_array_free(array->memory);
      free(array);
    }
  } while (mipmapped || array);
}
