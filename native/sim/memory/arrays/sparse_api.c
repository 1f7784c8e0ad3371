/* The API of sparse arrays. */
#include "sim/memory/arrays/sparse.h"

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUarray array) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  const struct sim_sparse *sparse = sim_array_sparse(array);
  if (sparse && sparseProperties)
    *sparseProperties = sim_sparse_properties(sparse);
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUmipmappedArray mipmap) {
  CUresult result = CUDA_SUCCESS;
  sim_ranges_lock();
  const struct sim_sparse *sparse = sim_mipmapped_sparse(mipmap);
  if (sparse && sparseProperties)
    *sparseProperties = sim_sparse_properties(sparse);
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  return result;
}

static CUresult submit(const CUarrayMapInfo *info, CUdevice device, struct sim_stream *stream) {
  struct sim_tile_operation op;
  sim_ranges_lock();
  const struct sim_sparse *sparse = NULL;
  if (info->resourceType == CU_RESOURCE_TYPE_ARRAY)
    sparse = sim_array_sparse(info->resource.array);
  if (info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
    sparse = sim_mipmapped_sparse(info->resource.mipmap);
  CUresult result = sparse ? sim_sparse_read(sparse, info, device, &op) : CUDA_ERROR_INVALID_VALUE;
  sim_ranges_unlock();
  if (result != CUDA_SUCCESS)
    return result;
  const struct sim_op work = {.resource = SIM_INSTANT,
                              .run = sim_sparse_run,
                              .node_type = SIM_NODE_NONE,
                              .payload = &op,
                              .payload_bytes = sizeof op};
  result = sim_submit(stream, &work);
  if (result != CUDA_SUCCESS) {
    sim_ranges_lock();
    sim_sparse_end(&op);
    sim_ranges_unlock();
  }
  return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(hStream, &stream);
  if (result == CUDA_SUCCESS && (!mapInfoList || count == 0))
    result = CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
    result = submit(&mapInfoList[i], sim_stream_ctx(stream)->device, stream);
  return result;
}
