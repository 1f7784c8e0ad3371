/* Arrays: charged the size that the driver reports. */
#include "rows.h"

enum { FLOAT32 = 0x20, WIDTH = PITCH / 4, HEIGHT = BYTES / PITCH, LAYERS = 4 };

static void used_and_freed(struct rows *r, CUarray array) {
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
  meet(r, "allocated");
  need(r, cuArrayGetMemoryRequirements(&needs, array, r->device), "what the array needs");
  expect(r, needs.size >= BYTES, "an array smaller than its elements");
  put_array(r, array, pattern());
  array_holds(r, array, pattern());
  need(r, cuArrayDestroy(array), "free it");
  meet(r, "freed");
}

void row_cuArrayCreate_v2(struct rows *r) {
  const CUDA_ARRAY_DESCRIPTOR about = {.Width = WIDTH, .Height = HEIGHT, .Format = FLOAT32, .NumChannels = 1};
  CUarray array = NULL;
  context(r);
  if (done(r, start(r)->cuArrayCreate_v2(&array, &about)))
    used_and_freed(r, array);
}

/* The bytes are stored layer by layer, each layer like a 2D array. */
static void cube_used_and_freed(struct rows *r, CUarray cube) {
  unsigned char *got = zeroes();
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = pattern(),
                        .srcPitch = PITCH,
                        .srcHeight = HEIGHT / LAYERS,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = cube,
                        .WidthInBytes = PITCH,
                        .Height = HEIGHT / LAYERS,
                        .Depth = LAYERS};
  meet(r, "allocated");
  need(r, cuMemcpy3D_v2(&copy), "a copy into the cube");
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = cube;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = got;
  copy.dstPitch = PITCH;
  copy.dstHeight = HEIGHT / LAYERS;
  need(r, cuMemcpy3D_v2(&copy), "a copy from the cube");
  same(r, got, pattern(), BYTES, "other bytes in the cube");
  need(r, cuArrayDestroy(cube), "free it");
  meet(r, "freed");
}

void row_cuArray3DCreate_v2(struct rows *r) {
  const CUDA_ARRAY3D_DESCRIPTOR about = {
      .Width = WIDTH, .Height = HEIGHT / LAYERS, .Depth = LAYERS, .Format = FLOAT32, .NumChannels = 1};
  CUarray cube = NULL;
  context(r);
  if (done(r, start(r)->cuArray3DCreate_v2(&cube, &about)))
    cube_used_and_freed(r, cube);
}

static const CUDA_ARRAY3D_DESCRIPTOR LEVELS = {.Width = WIDTH, .Height = HEIGHT, .Format = FLOAT32, .NumChannels = 1};

void row_cuMipmappedArrayCreate(struct rows *r) {
  CUmipmappedArray made = NULL;
  CUarray level = NULL;
  context(r);
  if (!done(r, start(r)->cuMipmappedArrayCreate(&made, &LEVELS, 3)))
    return;
  meet(r, "allocated");
  need(r, cuMipmappedArrayGetLevel(&level, made, 0), "its first level");
  put_array(r, level, pattern());
  array_holds(r, level, pattern());
  need(r, cuMipmappedArrayDestroy(made), "free it");
  meet(r, "freed");
}

void row_cuArrayDestroy(struct rows *r) {
  CUarray array = array_2d(r);
  meet(r, "allocated");
  done(r, start(r)->cuArrayDestroy(array));
  meet(r, "freed");
  done_with(r, CUDA_ERROR_INVALID_HANDLE, start(r)->cuArrayDestroy(array));
}

void row_cuMipmappedArrayDestroy(struct rows *r) {
  CUmipmappedArray made = NULL;
  context(r);
  need(r, cuMipmappedArrayCreate(&made, &LEVELS, 3), "a mipmapped array");
  meet(r, "allocated");
  done(r, start(r)->cuMipmappedArrayDestroy(made));
  meet(r, "freed");
  done_with(r, CUDA_ERROR_INVALID_HANDLE, start(r)->cuMipmappedArrayDestroy(made));
}
