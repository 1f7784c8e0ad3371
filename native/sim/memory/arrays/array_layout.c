/* The memory layout of an array's elements. */
#include "sim/memory/memory.h"

enum { /* flags in a descriptor */
       ARRAY_LAYERED = 1,
       ARRAY_CUBEMAP = 4,
       ARRAY_KNOWN = 0x7f,  /* the remaining flags: deferred mapping, video */
       MAX_EXTENT = 1 << 17 /* so that the product of three extents and an element size fits in 64 bits */
};

/* Size in bytes of one channel. For formats that imply their channels, sets *channels and returns the size of an
 * element. 0: not a format of plain elements. */
static unsigned channel_bytes(CUarray_format format, unsigned *channels) {
  enum { FORMS = 6 };
  static const unsigned char in_format[FORMS][2] = {{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}};
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    case CU_AD_FORMAT_UNORM_INT_101010_2: *channels = 1; return 4;
    default: break;
  }
  if (format < CU_AD_FORMAT_UNORM_INT8X1 || format > CU_AD_FORMAT_SNORM_INT16X4)
    return 0;
  const unsigned char *form = in_format[(format - CU_AD_FORMAT_UNORM_INT8X1) % FORMS];
  if (*channels != form[1])
    return 0;
  return form[0];
}

static uint64_t nonzero(uint64_t extent) { return extent ? extent : 1; }

/* Validates a descriptor and computes the layout. */
CUresult sim_array_layout(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, struct sim_array_view *view) {
  unsigned channels = descriptor->NumChannels;
  if (channels != 1 && channels != 2 && channels != 4)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned bytes = channel_bytes(descriptor->Format, &channels);
  if (bytes == 0 || descriptor->Width == 0 || descriptor->Width > MAX_EXTENT || descriptor->Height > MAX_EXTENT ||
      descriptor->Depth > MAX_EXTENT)
    return CUDA_ERROR_INVALID_VALUE;
  if (descriptor->Flags & ~(unsigned)ARRAY_KNOWN)
    return CUDA_ERROR_NOT_SUPPORTED;
  bool layered = descriptor->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP);
  if (descriptor->Depth && !descriptor->Height && !layered)
    return CUDA_ERROR_INVALID_VALUE;
  if ((descriptor->Flags & ARRAY_CUBEMAP) && (descriptor->Width != descriptor->Height || descriptor->Depth % 6))
    return CUDA_ERROR_INVALID_VALUE;
  *view = (struct sim_array_view){.row_bytes = descriptor->Width * bytes * channels,
                                  .rows = nonzero(descriptor->Height),
                                  .layers = nonzero(descriptor->Depth),
                                  .element_bytes = bytes * channels};
  return CUDA_SUCCESS;
}

static uint64_t halved(uint64_t extent, unsigned times) {
  return extent == 0 ? 0 : nonzero(times < 64 ? extent >> times : 0);
}

CUDA_ARRAY3D_DESCRIPTOR sim_array_level(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned level) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = *first;
  descriptor.Width = halved(first->Width, level);
  descriptor.Height = halved(first->Height, level);
  if (!(first->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)))
    descriptor.Depth = halved(first->Depth, level);
  return descriptor;
}
