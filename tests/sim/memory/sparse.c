/* Sparse arrays: the memory that their tiles keep. */
#include "client.h"

enum { TILE = 65536, MIB = 1 << 20, TILE_POOL = 1 };

static struct client c;
static CUstream stream;

static size_t used(void) {
  size_t available, total;
  OK(cuMemGetInfo_v2(&available, &total));
  return total - available;
}

static CUmemGenericAllocationHandle memory(size_t bytes) {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  how.allocFlags.usage = TILE_POOL;
  OK(cuMemCreate(&handle, bytes, &how, 0));
  return handle;
}

static CUarrayMapInfo info(CUarray array, CUmemGenericAllocationHandle handle, unsigned x, unsigned y, unsigned width,
                           unsigned height) {
  CUarrayMapInfo one = {.resourceType = CU_RESOURCE_TYPE_ARRAY, .deviceBitMask = 1};
  one.resource.array = array;
  one.memOperationType = handle ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
  one.memHandle.memHandle = handle;
  one.subresource.sparseLevel.offsetX = x;
  one.subresource.sparseLevel.offsetY = y;
  one.subresource.sparseLevel.extentWidth = width;
  one.subresource.sparseLevel.extentHeight = height;
  one.subresource.sparseLevel.extentDepth = 1;
  return one;
}

static void tiles(void) {
  CUDA_ARRAY3D_DESCRIPTOR shape = {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
  CUDA_ARRAY_SPARSE_PROPERTIES is;
  CUarray array, plain;
  size_t before = used();
  OK(cuArray3DCreate_v2(&array, &shape));
  CHECK(used() == before); /* no memory of its own */
  OK(cuArrayGetSparseProperties(&is, array));
  CHECK(is.tileExtent.width == 128 && is.tileExtent.height == 128 && is.tileExtent.depth == 1);

  CUmemGenericAllocationHandle a = memory(2 * MIB), b = memory(2 * MIB);
  CUarrayMapInfo two[] = {info(array, a, 0, 0, 512, 1024), info(array, b, 512, 0, 512, 1024)};
  gate_close(&c, stream);
  OK(cuMemMapArrayAsync(two, 2, stream));
  OK(cuMemRelease(a)); /* the call holds it until the stream gets there, then the tiles do */
  CHECK(used() == before + 4 * MIB);
  gate_open();
  OK(cuStreamSynchronize(stream));
  OK(cuMemRelease(b));
  CHECK(used() == before + 4 * MIB);

  CUmemGenericAllocationHandle d = memory(2 * MIB);
  CUarrayMapInfo over = info(array, d, 0, 0, 512, 1024); /* replaces a's */
  OK(cuMemMapArrayAsync(&over, 1, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(used() == before + 4 * MIB);
  CUarrayMapInfo part = info(array, 0, 512, 0, 512, 896), rest = info(array, 0, 512, 896, 512, 128);
  OK(cuMemMapArrayAsync(&part, 1, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(used() == before + 4 * MIB); /* four of b's tiles are left */
  OK(cuMemMapArrayAsync(&rest, 1, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(used() == before + 2 * MIB);
  OK(cuMemRelease(d));
  OK(cuArrayDestroy(array));
  CHECK(used() == before);

  /* what is refused */
  CUmemGenericAllocationHandle e = memory(2 * MIB);
  OK(cuArray3DCreate_v2(&array, &shape));
  CUarrayMapInfo bad = info(array, e, 0, 0, 4096, 4096);
  EXPECT(cuMemMapArrayAsync(&bad, 1, stream), CUDA_ERROR_INVALID_VALUE); /* larger than the memory */
  bad = info(array, e, 64, 0, 128, 128);
  EXPECT(cuMemMapArrayAsync(&bad, 1, stream), CUDA_ERROR_INVALID_VALUE); /* not a whole tile */
  bad = info(array, e + 8, 0, 0, 128, 128);
  EXPECT(cuMemMapArrayAsync(&bad, 1, stream), CUDA_ERROR_INVALID_HANDLE);
  bad = info(array, e, 0, 0, 128, 128);
  bad.deviceBitMask = 2;
  EXPECT(cuMemMapArrayAsync(&bad, 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuMemMapArrayAsync(NULL, 1, stream), CUDA_ERROR_INVALID_VALUE);
  shape.Flags = 0;
  OK(cuArray3DCreate_v2(&plain, &shape));
  bad = info(plain, e, 0, 0, 128, 128);
  EXPECT(cuMemMapArrayAsync(&bad, 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuArrayGetSparseProperties(&is, plain), CUDA_ERROR_INVALID_VALUE);
  OK(cuArrayDestroy(plain));
  OK(cuArrayDestroy(array));
  OK(cuMemRelease(e));
  CHECK(used() == before);
}

static void levels(void) {
  CUDA_ARRAY3D_DESCRIPTOR shape = {
      1024, 1024, 2, CU_AD_FORMAT_UNSIGNED_INT8, 4, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_LAYERED};
  CUDA_ARRAY_SPARSE_PROPERTIES is;
  CUmipmappedArray mipmapped;
  size_t before = used();
  OK(cuMipmappedArrayCreate(&mipmapped, &shape, 11));
  OK(cuMipmappedArrayGetSparseProperties(&is, mipmapped));
  CHECK(is.miptailFirstLevel == 4 && is.miptailSize == TILE);
  CUmemGenericAllocationHandle a = memory(2 * MIB);
  CUarrayMapInfo one = info(NULL, a, 0, 0, 256, 256);
  one.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  one.resource.mipmap = mipmapped;
  one.subresource.sparseLevel.level = 2;
  one.subresource.sparseLevel.layer = 1;
  OK(cuMemMapArrayAsync(&one, 1, stream));
  one.subresource.sparseLevel.level = 4; /* in the tail */
  EXPECT(cuMemMapArrayAsync(&one, 1, stream), CUDA_ERROR_INVALID_VALUE);
  memset(&one.subresource, 0, sizeof one.subresource);
  one.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
  one.subresource.miptail.size = TILE;
  OK(cuMemMapArrayAsync(&one, 1, stream));
  OK(cuMemRelease(a));
  OK(cuStreamSynchronize(stream));
  CHECK(used() == before + 2 * MIB);
  OK(cuMipmappedArrayDestroy(mipmapped));
  CHECK(used() == before);
}

int main(void) {
  c = client_start();
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  tiles();
  levels();
  CUDA_ARRAY3D_DESCRIPTOR shape = {512, 512, 64, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
  CUarray array;
  OK(cuArray3DCreate_v2(&array, &shape));
  CUarrayMapInfo deep = info(array, memory(2 * MIB), 0, 0, 32, 32);
  deep.subresource.sparseLevel.extentDepth = 16;
  OK(cuMemMapArrayAsync(&deep, 1, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemRelease(deep.memHandle.memHandle));
  OK(cuCtxDestroy_v2(c.ctx)); /* ends the array */
  return 0;
}
