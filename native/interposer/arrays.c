/* CUDA arrays. How their rows are padded is the driver's secret, so it is asked: an array with deferred mapping has no memory
 * and tells what the real one will need. Where the driver makes no such array, the sum of the elements is reserved and
 * corrected from the array itself. */
#include "books.h"
#include "device.h"

enum {
  ARRAY_SPARSE = 0x40,           /* CUDA_ARRAY3D_SPARSE: no memory of its own */
  ARRAY_DEFERRED_MAPPING = 0x80, /* the same, for the whole array */
  ROUND = 512
};

static uint64_t channel_bytes(CUarray_format format) {
  switch (format) {
  case 0x01: /* 8 bits */
  case 0x08:
    return 1;
  case 0x02: /* 16 bits, and half floats */
  case 0x09:
  case 0x10:
    return 2;
  default: /* 32 bits, and every compressed or packed format: none has more per channel */
    return 4;
  }
}

static uint64_t least(uint64_t value) { return value ? value : 1; }

/* Bytes of the elements, of all levels: each has at most half of the one before. */
static uint64_t elements_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
  uint64_t row = descriptor->Width * channel_bytes(descriptor->Format) * least(descriptor->NumChannels);
  uint64_t rows = least(descriptor->Height) * least(descriptor->Depth);
  if (row > (1ull << 47) || rows > (1ull << 47) || (rows && row > (1ull << 47) / rows))
    return UINT64_MAX / 4;
  uint64_t bytes = (row * rows + ROUND - 1) / ROUND * ROUND;
  return levels > 1 ? bytes * 2 : bytes;
}

static bool has_no_memory(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  return descriptor->Flags & (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING);
}

static uint64_t probe_array(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUdevice device) {
  CUDA_ARRAY3D_DESCRIPTOR deferred = *descriptor;
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
  CUarray array;
  deferred.Flags |= ARRAY_DEFERRED_MAPPING;
  if (gs_real.cuArray3DCreate_v2(&array, &deferred) != CUDA_SUCCESS)
    return 0;
  if (gs_real.cuArrayGetMemoryRequirements(&needs, array, device) != CUDA_SUCCESS)
    needs.size = 0;
  gs_real.cuArrayDestroy(array);
  return needs.size;
}

static uint64_t probe_mipmap(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, CUdevice device) {
  CUDA_ARRAY3D_DESCRIPTOR deferred = *descriptor;
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
  CUmipmappedArray array;
  deferred.Flags |= ARRAY_DEFERRED_MAPPING;
  if (gs_real.cuMipmappedArrayCreate(&array, &deferred, levels) != CUDA_SUCCESS)
    return 0;
  if (gs_real.cuMipmappedArrayGetMemoryRequirements(&needs, array, device) != CUDA_SUCCESS)
    needs.size = 0;
  gs_real.cuMipmappedArrayDestroy(array);
  return needs.size;
}

struct charge {
  int ordinal;
  uint64_t bytes;
  CUcontext context;
  bool hopeless; /* larger than the device: uncharged, the driver's to refuse with what else is wrong in mind */
};

static bool hopeless(const struct charge *charge) {
  size_t total = 0;
  return gs_real.cuDeviceTotalMem_v2(&total, gs_device_of(charge->ordinal)) == CUDA_SUCCESS && charge->bytes >= total;
}

/* out: where the handle is to go. levels 0: a plain array */
static CUresult begin(struct charge *charge, const void *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
  *charge = (struct charge){.ordinal = GS_NO_DEVICE};
  if (!out || !descriptor || has_no_memory(descriptor) || gs_real.cuCtxGetCurrent(&charge->context) != CUDA_SUCCESS)
    return CUDA_SUCCESS; /* nothing to charge, or the driver's to refuse */
  charge->ordinal = gs_current_device();
  if (charge->ordinal == GS_NO_DEVICE)
    return CUDA_SUCCESS;
  CUdevice device = gs_device_of(charge->ordinal);
  charge->bytes = levels ? probe_mipmap(descriptor, levels, device) : probe_array(descriptor, device);
  if (charge->bytes == 0)
    charge->bytes = elements_bytes(descriptor, levels);
  if (!gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (gs_reserve(charge->ordinal, charge->bytes) == 0)
    return CUDA_SUCCESS;
  if (!hopeless(charge))
    return CUDA_ERROR_OUT_OF_MEMORY;
  charge->ordinal = GS_NO_DEVICE;
  charge->hopeless = true;
  return CUDA_SUCCESS;
}

/* The array exists: what it says it needs replaces what was reserved. False: it does not fit. */
static bool true_up(struct charge *charge, uint64_t needs) {
  if (needs > charge->bytes && gs_reserve(charge->ordinal, needs - charge->bytes) < 0)
    return false;
  if (needs < charge->bytes)
    gs_give_back(charge->ordinal, charge->bytes - needs);
  charge->bytes = needs;
  return true;
}

static CUresult end(const struct charge *charge, CUresult result, const void *array) {
  if (charge->ordinal == GS_NO_DEVICE)
    return result;
  if (result != CUDA_SUCCESS)
    gs_give_back(charge->ordinal, charge->bytes);
  else
    gs_book_put(&(struct gs_entry){.key = (uintptr_t)array,
                                   .kind = GS_BOOK_ARRAY,
                                   .ordinal = charge->ordinal,
                                   .bytes = charge->bytes,
                                   .context = charge->context});
  return result;
}

static CUresult end_array(struct charge *charge, CUresult result, CUarray *array) {
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
  if (result == CUDA_SUCCESS && charge->hopeless) {
    gs_real.cuArrayDestroy(*array);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result == CUDA_SUCCESS && charge->ordinal != GS_NO_DEVICE &&
      gs_real.cuArrayGetMemoryRequirements(&needs, *array, gs_device_of(charge->ordinal)) == CUDA_SUCCESS &&
      !true_up(charge, needs.size)) {
    gs_real.cuArrayDestroy(*array);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  return end(charge, result, result == CUDA_SUCCESS ? *array : NULL);
}

CUresult gs_cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) {
  struct charge charge;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuArray3DCreate_v2(pHandle, pAllocateArray) : result;
  result = begin(&charge, pHandle, pAllocateArray, 0);
  if (result != CUDA_SUCCESS)
    return result;
  return end_array(&charge, gs_real.cuArray3DCreate_v2(pHandle, pAllocateArray), pHandle);
}

CUresult gs_cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray) {
  struct charge charge;
  CUresult result;
  CUDA_ARRAY3D_DESCRIPTOR full = {0};
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuArrayCreate_v2(pHandle, pAllocateArray) : result;
  if (pAllocateArray)
    full = (CUDA_ARRAY3D_DESCRIPTOR){pAllocateArray->Width,  pAllocateArray->Height,      0,
                                     pAllocateArray->Format, pAllocateArray->NumChannels, 0};
  result = begin(&charge, pHandle, pAllocateArray ? &full : NULL, 0);
  if (result != CUDA_SUCCESS)
    return result;
  return end_array(&charge, gs_real.cuArrayCreate_v2(pHandle, pAllocateArray), pHandle);
}

CUresult gs_cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray) {
  struct charge charge;
  CUresult result;
  CUDA_ARRAY3D_DESCRIPTOR full = {0};
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuArray3DCreate(pHandle, pAllocateArray) : result;
  if (pAllocateArray)
    full = (CUDA_ARRAY3D_DESCRIPTOR){pAllocateArray->Width,  pAllocateArray->Height,      pAllocateArray->Depth,
                                     pAllocateArray->Format, pAllocateArray->NumChannels, pAllocateArray->Flags};
  result = begin(&charge, pHandle, pAllocateArray ? &full : NULL, 0);
  if (result != CUDA_SUCCESS)
    return result;
  return end_array(&charge, gs_real.cuArray3DCreate(pHandle, pAllocateArray), pHandle);
}

CUresult gs_cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray) {
  struct charge charge;
  CUresult result;
  CUDA_ARRAY3D_DESCRIPTOR full = {0};
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuArrayCreate(pHandle, pAllocateArray) : result;
  if (pAllocateArray)
    full = (CUDA_ARRAY3D_DESCRIPTOR){pAllocateArray->Width,  pAllocateArray->Height,      0,
                                     pAllocateArray->Format, pAllocateArray->NumChannels, 0};
  result = begin(&charge, pHandle, pAllocateArray ? &full : NULL, 0);
  if (result != CUDA_SUCCESS)
    return result;
  return end_array(&charge, gs_real.cuArrayCreate(pHandle, pAllocateArray), pHandle);
}

CUresult gs_cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                   unsigned int numMipmapLevels) {
  struct charge charge;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels) : result;
  result = begin(&charge, pHandle, pMipmappedArrayDesc, least(numMipmapLevels));
  if (result != CUDA_SUCCESS)
    return result;
  result = gs_real.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
  if (result == CUDA_SUCCESS && charge.hopeless) {
    gs_real.cuMipmappedArrayDestroy(*pHandle);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
  if (result == CUDA_SUCCESS && charge.ordinal != GS_NO_DEVICE &&
      gs_real.cuMipmappedArrayGetMemoryRequirements(&needs, *pHandle, gs_device_of(charge.ordinal)) == CUDA_SUCCESS &&
      !true_up(&charge, needs.size)) {
    gs_real.cuMipmappedArrayDestroy(*pHandle);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  return end(&charge, result, result == CUDA_SUCCESS ? *pHandle : NULL);
}

/* Out of the books before the driver frees it: the handle may be another array's at once. */
static CUresult after_destroy(bool ours, const struct gs_entry *entry, CUresult result) {
  if (ours && result == CUDA_SUCCESS)
    gs_give_back(entry->ordinal, entry->bytes);
  else if (ours)
    gs_book_put(entry);
  return result;
}

CUresult gs_cuArrayDestroy(CUarray hArray) {
  CUresult result;
  struct gs_entry entry;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuArrayDestroy(hArray) : result;
  bool ours = gs_book_take(GS_BOOK_ARRAY, (uintptr_t)hArray, &entry);
  return after_destroy(ours, &entry, gs_real.cuArrayDestroy(hArray));
}

CUresult gs_cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  CUresult result;
  struct gs_entry entry;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMipmappedArrayDestroy(hMipmappedArray) : result;
  bool ours = gs_book_take(GS_BOOK_ARRAY, (uintptr_t)hMipmappedArray, &entry);
  return after_destroy(ours, &entry, gs_real.cuMipmappedArrayDestroy(hMipmappedArray));
}
