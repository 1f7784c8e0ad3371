/* Memory fills (cuMemset*). */
#include <string.h>

#include "sim/memory/memory.h"

struct fill_work {
  uint8_t *at;
  uint64_t pitch, width, height; /* width in bytes */
  uint32_t value, element;
  bool mapped; /* by cuMemMap */
};

static void fill_row(uint8_t *row, const struct fill_work *work) {
  if (work->element == 1) {
    memset(row, (int)work->value, work->width);
  } else if (work->element == 2) {
    uint16_t value = (uint16_t)work->value;
    for (uint64_t x = 0; x < work->width; x += sizeof value)
      memcpy(row + x, &value, sizeof value);
  } else {
    for (uint64_t x = 0; x < work->width; x += sizeof work->value)
      memcpy(row + x, &work->value, sizeof work->value);
  }
}

static uint64_t span_of(const struct fill_work *work) { return (work->height - 1) * work->pitch + work->width; }

static void run_fill(void *payload) {
  const struct fill_work *work = payload;
  if (work->mapped && !sim_memory_host((uint64_t)(uintptr_t)work->at, span_of(work))) {
    sim_effect_illegal();
    return;
  }
  if (!sim_memory_present(work->at, span_of(work)))
    return;
  for (uint64_t y = 0; y < work->height; y++)
    fill_row(work->at + y * work->pitch, work);
}

CUresult sim_memset_op(struct sim_ctx *ctx, const CUDA_MEMSET_NODE_PARAMS *params, struct sim_op *op,
                       union sim_op_storage *storage) {
  uint64_t width, span, element = params->elementSize;
  (void)ctx; /* with unified addresses the address determines the device */
  if (element != 1 && element != 2 && element != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (params->width == 0 || params->height == 0 || params->dst % element)
    return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(params->width, element, &width))
    return CUDA_ERROR_INVALID_VALUE;
  if (params->height > 1 && (params->pitch < width || params->pitch % element))
    return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(params->height - 1, params->pitch, &span) || __builtin_add_overflow(span, width, &span))
    return CUDA_ERROR_INVALID_VALUE;
  uint8_t *at = sim_memory_host(params->dst, span);
  if (!at)
    return CUDA_ERROR_INVALID_VALUE;
  struct fill_work *work = (struct fill_work *)(void *)storage->bytes;
  *work = (struct fill_work){
      at, params->pitch, width, params->height, params->value, params->elementSize, sim_memory_mapped(at)};
  memcpy(storage->bytes + SIM_PAYLOAD_MAX, params, sizeof *params);
  uint64_t ns = width * params->height / SIM_FILL_BYTES_PER_NS;
  *op = (struct sim_op){.resource = SIM_COMPUTE,
                        .duration_ns = ns > SIM_MIN_WORK_NS ? ns : SIM_MIN_WORK_NS,
                        .run = run_fill,
                        .node_type = CU_GRAPH_NODE_TYPE_MEMSET,
                        .payload = work,
                        .payload_bytes = sizeof *work,
                        .params = storage->bytes + SIM_PAYLOAD_MAX,
                        .params_bytes = sizeof *params};
  return CUDA_SUCCESS;
}

/* Fills do not wait for the device, except fills of pinned host memory. */
static CUresult fill(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned element, size_t width, size_t height,
                     CUstream handle, bool asynchronous) {
  struct sim_stream *stream;
  struct sim_op op;
  union sim_op_storage storage;
  CUresult result = sim_stream_get(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!asynchronous && sim_stream_capturing(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (width == 0 || height == 0)
    return CUDA_SUCCESS;
  const CUDA_MEMSET_NODE_PARAMS params = {dst, pitch, value, element, width, height};
  result = sim_memset_op(sim_stream_ctx(stream), &params, &op, &storage);
  if (result != CUDA_SUCCESS)
    return result;
  bool wait = !asynchronous && sim_memory_pinned((const void *)(uintptr_t)dst, 1);
  return wait ? sim_submit_and_wait(stream, &op) : sim_submit(stream, &op);
}

enum { ONE_ROW = 1 };

CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return fill(dstDevice, 0, uc, 1, N, ONE_ROW, NULL, false);
}
CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
  return fill(dstDevice, 0, uc, 1, N, ONE_ROW, hStream, true);
}
CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N) {
  return fill(dstDevice, 0, us, 2, N, ONE_ROW, NULL, false);
}
CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
  return fill(dstDevice, 0, us, 2, N, ONE_ROW, hStream, true);
}
CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return fill(dstDevice, 0, ui, 4, N, ONE_ROW, NULL, false);
}
CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
  return fill(dstDevice, 0, ui, 4, N, ONE_ROW, hStream, true);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height) {
  return fill(dstDevice, dstPitch, uc, 1, Width, Height, NULL, false);
}
CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height,
                           CUstream hStream) {
  return fill(dstDevice, dstPitch, uc, 1, Width, Height, hStream, true);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height) {
  return fill(dstDevice, dstPitch, us, 2, Width, Height, NULL, false);
}
CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height,
                            CUstream hStream) {
  return fill(dstDevice, dstPitch, us, 2, Width, Height, hStream, true);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height) {
  return fill(dstDevice, dstPitch, ui, 4, Width, Height, NULL, false);
}
CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height,
                            CUstream hStream) {
  return fill(dstDevice, dstPitch, ui, 4, Width, Height, hStream, true);
}
