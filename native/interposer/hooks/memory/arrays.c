/* CUDA arrays. The padding of their rows is internal to the driver, so the driver is asked: an array with deferred
 * mapping has no memory and reports what the real one will need. If the driver does not create such an array, the sum
 * of the elements is reserved and corrected from the array itself. */
#include "interposer/memory/books/books.h"
#include "interposer/memory/physical/mappings.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/process/refused.h"
#include "interposer/hooks/memory/arrays.h"
#include "interposer/hooks/memory/sparse.h"

enum {
  ARRAY_KNOWN = 0x1ff,
  EXTENT_MAX = 1 << 17, /* the maximum of current devices in each dimension */
  LEVELS_MAX = 21
};

/* An array that is being created. */
struct charge {
  int ordinal; /* GS_NO_DEVICE: nothing is charged */
  uint64_t bytes;
  struct gs_maker maker;
  bool unbacked; /* a sparse array, or one whose memory is mapped later */
  bool hopeless; /* it does not fit; nothing is charged and the driver is called only to report other errors */
  void *const *out;
};

static uint64_t least(uint64_t value) { return value ? value : 1; }

/* Upper bound of the bytes of an element. *wrong: the format is not known with that many channels. */
static uint64_t element_bytes(CUarray_format format, unsigned channels, bool *wrong) {
  enum { FORMS = 6, COMPRESSED = 0x91, PLANES_LAST = 0xbf };
  static const unsigned char form[FORMS][2] = {{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}}; /* bytes, channels */
  *wrong = channels != 1 && channels != 2 && channels != 4;
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return least(channels);
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return least(channels) * 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return least(channels) * 4;
    case CU_AD_FORMAT_UNORM_INT_101010_2: return 4;
    default: break;
  }
  if (format >= CU_AD_FORMAT_UNORM_INT8X1 && format <= CU_AD_FORMAT_SNORM_INT16X4) {
    const unsigned char *of = form[(format - CU_AD_FORMAT_UNORM_INT8X1) % FORMS];
    *wrong = channels != of[1];
    return (uint64_t)of[0] * of[1];
  }
  *wrong = format < COMPRESSED || format > PLANES_LAST || channels > 4;
  return least(channels) * 4; /* formats in blocks of pixels or in planes: none has more per channel */
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *first, uint64_t element, unsigned level) {
  bool layers = first->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  uint64_t row = least(first->Width >> level) * element;
  uint64_t rows = least(first->Height >> level) * least(layers ? first->Depth : first->Depth >> level);
  return gs_round_up(row * rows, GS_BLOCK_ROUND);
}

/* Bytes of the elements of all levels. */
static uint64_t elements_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
  bool wrong;
  uint64_t bytes = 0, element = element_bytes(descriptor->Format, descriptor->NumChannels, &wrong);
  if (descriptor->Width > EXTENT_MAX || descriptor->Height > EXTENT_MAX || descriptor->Depth > EXTENT_MAX ||
      descriptor->NumChannels > 4)
    return UINT64_MAX / 4;
  for (unsigned level = 0; level < levels && level < LEVELS_MAX; level++)
    bytes += level_bytes(descriptor, element, level);
  return bytes;
}

/* Whether drivers refuse the array whatever its size. */
static bool is_wrong(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  bool wrong, layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  element_bytes(d->Format, d->NumChannels, &wrong);
  return wrong || d->Width == 0 || d->Width > EXTENT_MAX || d->Height > EXTENT_MAX || d->Depth > EXTENT_MAX ||
         d->Flags & ~(unsigned)ARRAY_KNOWN || (d->Depth && !d->Height && !layers) || levels > LEVELS_MAX ||
         (d->Flags & CUDA_ARRAY3D_CUBEMAP && (d->Width != d->Height || d->Depth % 6));
}

static bool has_no_memory(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  return descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

/* ---- arrays in the books: also those without memory, so that each call that destroys one finds it */

void gs_array_begin(struct gs_maker *maker, CUcontext context) {
  gs_maker_begin(maker, &gs_books()->arrays_made, context);
}

void gs_array_end(const struct gs_maker *maker, const void *array, const struct gs_allocation *as) {
  struct gs_allocation made = *as;
  made.living.key = (uintptr_t)array;
  made.context = maker->context;
  if (array)
    gs_life_put(maker, &gs_books()->arrays, &made);
  gs_maker_end(maker);
}

static void array_gone(const void *record, void *with) {
  const struct gs_allocation *array = record;
  (void)with;
  if (array->mapping)
    gs_buffer_gone(array->living.key, array->mapping);
  gs_give_back(array->ordinal, array->bytes);
}

static CUresult destroy_by(CUresult (*destroy)(const void *arguments), const void *arguments, uintptr_t handle) {
  const struct gs_family arrays = {&gs_books()->arrays, &gs_books()->arrays_made, NULL};
  struct gs_leaving leaving;
  struct gs_allocation array;
  gs_life_leave(&arrays, &leaving, handle, &array);
  CUresult result = destroy(arguments);
  gs_life_left(&arrays, &leaving, result == CUDA_SUCCESS, array_gone, NULL);
  return result;
}

static CUresult destroy_array(const void *array) { return gs_real.cuArrayDestroy((CUarray)(uintptr_t)array); }

static CUresult destroy_mipmap(const void *array) {
  return gs_real.cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)array);
}

/* ---- what one will take ------------------------------------------------------------------------------------------ */

static CUresult array_needs(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, void *array, CUdevice device) {
  return gs_real.cuArrayGetMemoryRequirements(needs, array, device);
}

static CUresult mipmap_needs(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, void *array, CUdevice device) {
  return gs_real.cuMipmappedArrayGetMemoryRequirements(needs, array, device);
}

/* The bytes that the array will need; 0: not known. The array that is queried is in the books too, because a thread
 * that guesses its handle may destroy it. */
static uint64_t probe(const struct charge *charge, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, bool mipmap,
                      unsigned levels) {
  CUDA_ARRAY3D_DESCRIPTOR deferred = *descriptor;
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
  CUdevice device = gs_device_of(charge->ordinal);
  struct gs_maker maker;
  void *array = NULL;
  deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
  gs_array_begin(&maker, charge->maker.context);
  CUresult result = mipmap ? gs_real.cuMipmappedArrayCreate((CUmipmappedArray *)&array, &deferred, levels)
                           : gs_real.cuArray3DCreate_v2((CUarray *)&array, &deferred);
  array = result == CUDA_SUCCESS ? array : NULL;
  gs_array_end(&maker, array, &(struct gs_allocation){.ordinal = GS_NO_DEVICE});
  if (!array)
    return 0;
  result = (mipmap ? mipmap_needs : array_needs)(&needs, array, device);
  destroy_by(mipmap ? destroy_mipmap : destroy_array, array, (uintptr_t)array);
  return result == CUDA_SUCCESS ? needs.size : 0;
}

/* Whether the array is larger than the device: then the driver refuses it and reports any other error. */
static bool hopeless(const struct charge *charge) {
  size_t total = 0;
  return gs_real.cuDeviceTotalMem_v2(&total, gs_device_of(charge->ordinal)) == CUDA_SUCCESS && charge->bytes >= total;
}

/* out: where the handle will be stored. */
static CUresult begin(struct charge *charge, void *const *out, const struct gs_box *box, bool mipmap, unsigned levels,
                      struct gs_patience *patience) {
  CUcontext context;
  *charge = (struct charge){.ordinal = GS_NO_DEVICE, .out = out};
  if (!out || !box->given || gs_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
    return CUDA_SUCCESS; /* an error for the driver to report */
  charge->maker.context = gs_context_owner(context);
  if (!gs_table_room(&gs_books()->arrays, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  charge->unbacked = has_no_memory(&box->full);
  if (charge->unbacked && !gs_unbacked_room())
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (charge->unbacked) {
    gs_array_begin(&charge->maker, charge->maker.context);
    return CUDA_SUCCESS;
  }
  charge->ordinal = gs_current_device();
  if (charge->ordinal == GS_NO_DEVICE)
    return CUDA_SUCCESS;
  charge->bytes = probe(charge, &box->full, mipmap, levels);
  if (charge->bytes == 0)
    charge->bytes = elements_bytes(&box->full, (unsigned)least(levels));
  if (gs_reserve(charge->ordinal, charge->bytes, patience) == 0) {
    gs_array_begin(&charge->maker, charge->maker.context);
    return CUDA_SUCCESS;
  }
  if (!hopeless(charge) && !is_wrong(&box->full, levels) && (levels > 0 || !mipmap))
    return gs_no_room();
  charge->ordinal = GS_NO_DEVICE;
  charge->hopeless = true;
  return CUDA_SUCCESS;
}

/* The array exists: replaces the reservation by what the array reports. False: it does not fit. */
static bool true_up(struct charge *charge, uint64_t needs) {
  if (needs > charge->bytes && gs_reserve(charge->ordinal, needs - charge->bytes, &(struct gs_patience){0}) < 0)
    return false;
  if (needs < charge->bytes)
    gs_give_back(charge->ordinal, charge->bytes - needs);
  charge->bytes = needs;
  return true;
}

/* After the driver's call. needs_of: asks the array what it needs; destroy: destroys it if it does not fit. */
static CUresult end(struct charge *charge, CUresult result,
                    CUresult (*needs_of)(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, void *array, CUdevice device),
                    CUresult (*destroy)(const void *array)) {
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
  if (result == CUDA_SUCCESS && charge->hopeless) {
    destroy(*charge->out);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uint64_t mapping =
      charge->unbacked && result == CUDA_SUCCESS ? gs_unbacked_made((uintptr_t)*charge->out, &charge->maker) : 0;
  if (charge->ordinal == GS_NO_DEVICE && !charge->unbacked)
    return result;
  if (result == CUDA_SUCCESS && !charge->unbacked &&
      needs_of(&needs, *charge->out, gs_device_of(charge->ordinal)) == CUDA_SUCCESS && !true_up(charge, needs.size)) {
    destroy(*charge->out);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS)
    gs_give_back(charge->ordinal, charge->bytes);
  gs_array_end(&charge->maker, result == CUDA_SUCCESS ? *charge->out : NULL,
               &(struct gs_allocation){.bytes = charge->bytes, .ordinal = charge->ordinal, .mapping = mapping});
  return result;
}

/* ---- the four ways to describe one ------------------------------------------------------------------------------- */

struct gs_box gs_box_2d(const CUDA_ARRAY_DESCRIPTOR *d) {
  return d ? (struct gs_box){true, {d->Width, d->Height, 0, d->Format, d->NumChannels, 0}} : (struct gs_box){0};
}

struct gs_box gs_box_2d_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
  return d ? (struct gs_box){true, {d->Width, d->Height, 0, d->Format, d->NumChannels, 0}} : (struct gs_box){0};
}

struct gs_box gs_box_3d(const CUDA_ARRAY3D_DESCRIPTOR *d) { return d ? (struct gs_box){true, *d} : (struct gs_box){0}; }

struct gs_box gs_box_3d_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
  return d ? (struct gs_box){true, {d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags}}
           : (struct gs_box){0};
}

/* ---- handlers ---------------------------------------------------------------------------------------------------- */

CUresult gs_do_array(const struct gs_call *call, CUarray *array, struct gs_box box) {
  struct charge charge;
  struct gs_patience patience = {0};
  CUresult result;
  do {
    result = begin(&charge, (void *const *)array, &box, false, 1, &patience);
    if (result != CUDA_SUCCESS)
      return gs_refused(result);
    result = end(&charge, gs_call(call), array_needs, destroy_array);
  } while (gs_driver_again(result, charge.ordinal, charge.bytes, &patience));
  return gs_refused(result);
}

CUresult gs_do_mipmap(const struct gs_call *call, CUmipmappedArray *array, struct gs_box box, unsigned int levels) {
  struct charge charge;
  struct gs_patience patience = {0};
  CUresult result;
  do {
    result = begin(&charge, (void *const *)array, &box, true, levels, &patience);
    if (result != CUDA_SUCCESS)
      return gs_refused(result);
    result = end(&charge, gs_call(call), mipmap_needs, destroy_mipmap);
  } while (gs_driver_again(result, charge.ordinal, charge.bytes, &patience));
  return gs_refused(result);
}

CUresult gs_do_array_destroy(const struct gs_call *call, uintptr_t handle) {
  return destroy_by(call->make, call->arguments, handle);
}
