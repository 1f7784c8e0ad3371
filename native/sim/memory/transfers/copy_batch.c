/* Batches of copies, and single copies with the same parameters. Every element is checked before the first one is
 * submitted. */
#include "sim/memory/memory.h"

enum { OPERAND_POINTER = 1, OPERAND_ARRAY = 2 };

/* A batch in any of its forms: access to the copy with a given number. */
struct batch {
  size_t count;
  const CUdeviceptr *dsts, *srcs;
  const size_t *sizes;
  const CUDA_MEMCPY3D_BATCH_OP *ops;
};

static CUresult place_operand(const CUmemcpy3DOperand *operand, uint64_t element, CUmemorytype *type,
                              CUdeviceptr *device, CUarray *array, size_t *pitch, size_t *rows, size_t offset[3]) {
  if (operand->type == OPERAND_POINTER) {
    *type = CU_MEMORYTYPE_UNIFIED;
    *device = operand->op.ptr.ptr;
    *pitch = operand->op.ptr.rowLength * element;
    *rows = operand->op.ptr.layerHeight;
  } else if (operand->type == OPERAND_ARRAY) {
    *type = CU_MEMORYTYPE_ARRAY;
    *array = operand->op.array.array;
    offset[0] = operand->op.array.offset.x * element;
    offset[1] = operand->op.array.offset.y;
    offset[2] = operand->op.array.offset.z;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/* Size in bytes of the unit of the extents: an element if one end is an array, otherwise a byte. */
static CUresult element_of(const CUDA_MEMCPY3D_BATCH_OP *op, uint64_t *element) {
  struct sim_array_view view;
  const CUmemcpy3DOperand *with = op->src.type == OPERAND_ARRAY ? &op->src : &op->dst;
  *element = 1;
  if (with->type != OPERAND_ARRAY)
    return CUDA_SUCCESS;
  CUresult result = sim_array_get(with->op.array.array, &view);
  if (result == CUDA_SUCCESS)
    *element = view.element_bytes;
  return result;
}

/* If no row or layer length is given, the box is packed. */
static void pack(const CUDA_MEMCPY3D *params, size_t *pitch, size_t *rows) {
  if (*pitch == 0)
    *pitch = params->WidthInBytes;
  if (*rows == 0)
    *rows = params->Height;
}

static CUresult convert_op(const CUDA_MEMCPY3D_BATCH_OP *op, CUDA_MEMCPY3D *params) {
  uint64_t element;
  size_t from[3] = {0}, to[3] = {0};
  CUresult result = element_of(op, &element);
  if (result != CUDA_SUCCESS)
    return result;
  if (op->extent.width == 0 || op->extent.height == 0 || op->extent.depth == 0 || op->extent.width > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_INVALID_VALUE;
  *params = (CUDA_MEMCPY3D){
      .WidthInBytes = op->extent.width * element, .Height = op->extent.height, .Depth = op->extent.depth};
  result = place_operand(&op->src, element, &params->srcMemoryType, &params->srcDevice, &params->srcArray,
                         &params->srcPitch, &params->srcHeight, from);
  if (result == CUDA_SUCCESS)
    result = place_operand(&op->dst, element, &params->dstMemoryType, &params->dstDevice, &params->dstArray,
                           &params->dstPitch, &params->dstHeight, to);
  params->srcXInBytes = from[0];
  params->srcY = from[1];
  params->srcZ = from[2];
  params->dstXInBytes = to[0];
  params->dstY = to[1];
  params->dstZ = to[2];
  pack(params, &params->srcPitch, &params->srcHeight);
  pack(params, &params->dstPitch, &params->dstHeight);
  return result;
}

static CUresult nth(const struct batch *batch, size_t i, CUDA_MEMCPY3D *params) {
  if (batch->ops)
    return convert_op(&batch->ops[i], params);
  if (batch->sizes[i] == 0)
    return CUDA_ERROR_INVALID_VALUE;
  *params = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                            .srcDevice = batch->srcs[i],
                            .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                            .dstDevice = batch->dsts[i],
                            .WidthInBytes = batch->sizes[i],
                            .Height = 1,
                            .Depth = 1};
  return CUDA_SUCCESS;
}

/* fail_index (may be NULL) receives the index of the invalid element, or SIZE_MAX if the error concerns no particular
 * element. */
static CUresult submit(const struct batch *batch, unsigned long long flags, size_t *fail_index, CUstream handle) {
  struct sim_stream *stream;
  struct sim_op op;
  union sim_op_storage storage;
  CUDA_MEMCPY3D params;
  CUresult result = sim_stream_get(handle, &stream);
  if (fail_index)
    *fail_index = SIZE_MAX;
  if (result != CUDA_SUCCESS)
    return result;
  if (batch->count == 0 || flags || handle == CU_STREAM_LEGACY || (!handle && !sim_per_thread))
    return CUDA_ERROR_INVALID_VALUE; /* batches are not allowed on the legacy stream */
  if (sim_stream_capturing(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  for (size_t i = 0; i < batch->count; i++) {
    result = nth(batch, i, &params);
    if (result == CUDA_SUCCESS)
      result = sim_memcpy_op(sim_stream_ctx(stream), &params, &op, &storage);
    if (result != CUDA_SUCCESS) {
      if (fail_index)
        *fail_index = i;
      return result;
    }
  }
  for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++) {
    result = nth(batch, i, &params);
    if (result == CUDA_SUCCESS)
      result = sim_copy_submit(&params, handle, SIM_COPY_ASYNC);
  }
  return result;
}

static CUresult submit_linear(const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes, size_t count,
                              const CUmemcpyAttributes *attrs, const size_t *starts, size_t nattrs, size_t *fail_index,
                              CUstream stream) {
  if (!dsts || !srcs || !sizes || !attrs || !starts || nattrs == 0 || nattrs > count || starts[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 1; i < nattrs; i++)
    if (starts[i] <= starts[i - 1] || starts[i] >= count)
      return CUDA_ERROR_INVALID_VALUE;
  const struct batch batch = {.count = count, .dsts = dsts, .srcs = srcs, .sizes = sizes};
  return submit(&batch, 0, fail_index, stream);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
                            CUstream hStream) {
  return submit_linear(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream);
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream) {
  return submit_linear(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL, hStream);
}

static CUresult submit_boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *ops, size_t *fail_index,
                             unsigned long long flags, CUstream stream) {
  const struct batch batch = {.count = count, .ops = ops};
  return ops ? submit(&batch, flags, fail_index, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx, unsigned long long flags,
                              CUstream hStream) {
  return submit_boxes(numOps, opList, failIdx, flags, hStream);
}
CUresult cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags,
                                 CUstream hStream) {
  return submit_boxes(numOps, opList, NULL, flags, hStream);
}

/* ---- one copy ---- */

static CUresult one_linear(CUdeviceptr to, CUdeviceptr from, size_t size, const CUmemcpyAttributes *attributes,
                           CUstream stream) {
  const struct batch batch = {.count = 1, .dsts = &to, .srcs = &from, .sizes = &size};
  CUDA_MEMCPY3D params;
  CUresult result = attributes ? nth(&batch, 0, &params) : CUDA_ERROR_INVALID_VALUE;
  return result == CUDA_SUCCESS ? sim_copy_submit(&params, stream, SIM_COPY_ASYNC) : result;
}

CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attr,
                                     CUstream hStream) {
  return one_linear(dst, src, size, attr, hStream);
}

static CUresult one_box(const CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream) {
  CUDA_MEMCPY3D params;
  CUresult result = op && !flags ? convert_op(op, &params) : CUDA_ERROR_INVALID_VALUE;
  return result == CUDA_SUCCESS ? sim_copy_submit(&params, stream, SIM_COPY_ASYNC) : result;
}

CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream hStream) {
  return one_box(op, flags, hStream);
}
