/* Copies: every variant is converted to a CUDA_MEMCPY3D and then to one op that moves the bytes when it completes. */
#include <stdlib.h>
#include <string.h>

#include "sim/memory/memory.h"

/* Pageable sources up to this size in bytes are staged during the call, as in the real driver; the call waits for
 * copies of larger ones. */
enum { STAGING_MAX = 65536 };

enum place { PLACE_PAGEABLE, PLACE_PINNED, PLACE_DEVICE };

struct side {
  uint8_t *at; /* first byte of the copied box */
  uint64_t pitch, slice;
  enum place place;
  CUdevice device;
};

struct copy_work {
  uint8_t *dst;
  const uint8_t *src;
  uint64_t dst_pitch, dst_slice, src_pitch, src_slice, width, height, depth;
  void *staging;               /* freed after the copy */
  bool dst_mapped, src_mapped; /* by cuMemMap */
};
_Static_assert(sizeof(struct copy_work) <= SIM_PAYLOAD_MAX, "payload");
_Static_assert(sizeof(CUDA_MEMCPY3D) <= SIM_PAYLOAD_MAX, "params");

/* Whether there is memory at one end of a copy. The context has a fault if it was unmapped since. */
static bool present(const struct copy_work *work, const uint8_t *at, uint64_t pitch, uint64_t slice, bool mapped) {
  uint64_t span = (work->depth - 1) * slice + (work->height - 1) * pitch + work->width;
  if (!mapped)
    return sim_memory_present(at, span);
  bool there = sim_memory_host((uint64_t)(uintptr_t)at, span) != NULL;
  if (!there)
    sim_effect_illegal();
  return there;
}

static void move_bytes(const struct copy_work *work) {
  for (uint64_t z = 0; z < work->depth; z++)
    for (uint64_t y = 0; y < work->height; y++)
      memmove(work->dst + z * work->dst_slice + y * work->dst_pitch,
              work->src + z * work->src_slice + y * work->src_pitch, work->width);
}

static void run_copy(void *payload) {
  struct copy_work *work = payload;
  if (sim_effect_sound() && present(work, work->dst, work->dst_pitch, work->dst_slice, work->dst_mapped) &&
      present(work, work->src, work->src_pitch, work->src_slice, work->src_mapped))
    move_bytes(work);
  free(work->staging);
}

/* One end of a CUDA_MEMCPY3D, source and destination alike. */
struct end {
  uint64_t x, y, z, pitch, rows;
  CUmemorytype type;
  uint64_t host, device;
  CUarray array;
};

/* The number of bytes from the first to the last byte of a box in pitched memory; false if the box is not valid. */
static bool span_of(const struct end *end, const CUDA_MEMCPY3D *box, uint64_t pitch, uint64_t rows, uint64_t *skip,
                    uint64_t *span) {
  uint64_t last_row, last;
  if (end->x > SIM_ADDRESS_SPACE || end->y > SIM_ADDRESS_SPACE || end->z > SIM_ADDRESS_SPACE)
    return false;
  if (__builtin_mul_overflow(end->z, rows, &last_row) || __builtin_add_overflow(last_row, end->y, &last_row) ||
      __builtin_mul_overflow(last_row, pitch, skip) || __builtin_add_overflow(*skip, end->x, skip))
    return false;
  if (__builtin_mul_overflow(box->Depth - 1, rows, &last_row) ||
      __builtin_add_overflow(last_row, box->Height - 1, &last_row) || __builtin_mul_overflow(last_row, pitch, &last))
    return false;
  *span = last + box->WidthInBytes;
  return *skip < SIM_ADDRESS_SPACE && *span <= SIM_ADDRESS_SPACE;
}

/* Determines the kind of memory at an address. False if the address is known to the driver but not all of [address,
 * address + bytes) is. */
static bool place_of(uint64_t address, uint64_t bytes, enum place *place, CUdevice *device) {
  bool fits = true;
  sim_ranges_lock();
  struct sim_range *range = sim_range_find(address);
  *place = PLACE_PAGEABLE;
  *device = -1;
  if (range) {
    bool host = range->kind == SIM_RANGE_HOST || range->kind == SIM_RANGE_REGISTERED;
    fits = sim_range_covers(range, address, bytes);
    *place = host ? PLACE_PINNED : PLACE_DEVICE;
    *device = range->device;
  }
  sim_ranges_unlock();
  return fits;
}

static CUresult resolve_array(const struct end *end, const CUDA_MEMCPY3D *box, struct side *side) {
  struct sim_array_view view;
  CUresult result = sim_array_get(end->array, &view);
  if (result != CUDA_SUCCESS)
    return result;
  if (end->x > view.row_bytes || box->WidthInBytes > view.row_bytes - end->x || end->y > view.rows ||
      box->Height > view.rows - end->y || end->z > view.layers || box->Depth > view.layers - end->z)
    return CUDA_ERROR_INVALID_VALUE;
  *side = (struct side){.at = (uint8_t *)view.at + (end->z * view.rows + end->y) * view.row_bytes + end->x,
                        .pitch = view.row_bytes,
                        .slice = view.row_bytes * view.rows,
                        .place = PLACE_DEVICE,
                        .device = view.device};
  return CUDA_SUCCESS;
}

static CUresult resolve(const struct end *end, const CUDA_MEMCPY3D *box, struct side *side) {
  uint64_t skip, span;
  if (end->type == CU_MEMORYTYPE_ARRAY)
    return resolve_array(end, box, side);
  if (end->type != CU_MEMORYTYPE_HOST && end->type != CU_MEMORYTYPE_DEVICE && end->type != CU_MEMORYTYPE_UNIFIED)
    return CUDA_ERROR_INVALID_VALUE;
  if ((end->pitch == 0 && (box->Height > 1 || box->Depth > 1)) || (end->rows == 0 && box->Depth > 1))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t pitch = end->pitch ? end->pitch : end->x + box->WidthInBytes;
  uint64_t rows = end->rows ? end->rows : end->y + box->Height;
  if (pitch < box->WidthInBytes || pitch - box->WidthInBytes < end->x ||
      (box->Depth > 1 && (rows < box->Height || rows - box->Height < end->y)))
    return CUDA_ERROR_INVALID_VALUE;
  if (!span_of(end, box, pitch, rows, &skip, &span))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t base = end->type == CU_MEMORYTYPE_HOST ? end->host : end->device;
  if (base == 0)
    return CUDA_ERROR_INVALID_VALUE;
  *side = (struct side){.at = (uint8_t *)(uintptr_t)(base + skip), .pitch = pitch, .slice = pitch * rows};
  bool fits = place_of(base + skip, span, &side->place, &side->device);
  if (end->type == CU_MEMORYTYPE_HOST) {
    /* managed memory accessed as host memory, or a buffer that is only partly registered */
    if (side->place == PLACE_DEVICE || !fits)
      side->place = PLACE_PAGEABLE;
    return CUDA_SUCCESS;
  }
  if (!fits || (end->type == CU_MEMORYTYPE_DEVICE && side->place == PLACE_PAGEABLE))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static uint64_t at_least(uint64_t value, uint64_t minimum) { return value > minimum ? value : minimum; }

static void cost_of(const struct side *src, const struct side *dst, uint64_t bytes, struct sim_op *op) {
  bool inside = src->place == PLACE_DEVICE && dst->place == PLACE_DEVICE && src->device == dst->device;
  if (inside) {
    op->resource = SIM_COMPUTE;
    op->duration_ns = at_least(bytes / SIM_DEVICE_BYTES_PER_NS, SIM_MIN_WORK_NS);
  } else {
    op->resource = src->place == PLACE_DEVICE ? SIM_COPY_OUT : SIM_COPY_IN;
    op->bytes = bytes;
    op->pageable = src->place == PLACE_PAGEABLE || dst->place == PLACE_PAGEABLE;
    op->duration_ns = at_least(sim_copy_ns(bytes, op->pageable), SIM_MIN_WORK_NS);
  }
}

static CUresult resolve_both(const CUDA_MEMCPY3D *params, struct side *src, struct side *dst) {
  const struct end from = {params->srcXInBytes,
                           params->srcY,
                           params->srcZ,
                           params->srcPitch,
                           params->srcHeight,
                           params->srcMemoryType,
                           (uint64_t)(uintptr_t)params->srcHost,
                           params->srcDevice,
                           params->srcArray};
  const struct end to = {params->dstXInBytes,
                         params->dstY,
                         params->dstZ,
                         params->dstPitch,
                         params->dstHeight,
                         params->dstMemoryType,
                         (uint64_t)(uintptr_t)params->dstHost,
                         params->dstDevice,
                         params->dstArray};
  if (params->WidthInBytes > SIM_ADDRESS_SPACE || params->Height > SIM_ADDRESS_SPACE ||
      params->Depth > SIM_ADDRESS_SPACE)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = resolve(&from, params, src);
  return result == CUDA_SUCCESS ? resolve(&to, params, dst) : result;
}

static bool empty(const CUDA_MEMCPY3D *params) {
  return params->WidthInBytes == 0 || params->Height == 0 || params->Depth == 0;
}

static CUresult make_op(const CUDA_MEMCPY3D *params, struct sim_op *op, union sim_op_storage *storage, struct side *src,
                        struct side *dst) {
  CUresult result = resolve_both(params, src, dst);
  if (result != CUDA_SUCCESS)
    return result;
  struct copy_work *work = (struct copy_work *)(void *)storage->bytes;
  *work = (struct copy_work){.dst = dst->at,
                             .src = src->at,
                             .dst_pitch = dst->pitch,
                             .dst_slice = dst->slice,
                             .src_pitch = src->pitch,
                             .src_slice = src->slice,
                             .width = params->WidthInBytes,
                             .height = params->Height,
                             .depth = params->Depth,
                             .dst_mapped = sim_memory_mapped(dst->at),
                             .src_mapped = sim_memory_mapped(src->at)};
  memcpy(storage->bytes + SIM_PAYLOAD_MAX, params, sizeof *params);
  *op = (struct sim_op){.run = run_copy,
                        .node_type = CU_GRAPH_NODE_TYPE_MEMCPY,
                        .payload = work,
                        .payload_bytes = sizeof *work,
                        .params = storage->bytes + SIM_PAYLOAD_MAX,
                        .params_bytes = sizeof *params};
  cost_of(src, dst, work->width * work->height * work->depth, op);
  return CUDA_SUCCESS;
}

CUresult sim_memcpy_op(struct sim_ctx *ctx, const CUDA_MEMCPY3D *params, struct sim_op *op,
                       union sim_op_storage *storage) {
  struct side src, dst;
  (void)ctx; /* with unified addresses the address determines the device */
  if (empty(params))
    return CUDA_ERROR_INVALID_VALUE;
  return make_op(params, op, storage, &src, &dst);
}

/* Copies a small pageable source into a staging buffer, so that the caller may change it when the call returns. */
static bool stage(struct copy_work *work) {
  uint64_t bytes = work->width * work->height * work->depth;
  if (bytes > STAGING_MAX)
    return false;
  uint8_t *aside = malloc(bytes);
  if (!aside)
    return false;
  struct copy_work gather = *work;
  gather.dst = aside;
  gather.dst_pitch = work->width;
  gather.dst_slice = work->width * work->height;
  move_bytes(&gather);
  work->src = aside;
  work->src_pitch = gather.dst_pitch;
  work->src_slice = gather.dst_slice;
  work->staging = aside;
  return true;
}

CUresult sim_copy_submit(const CUDA_MEMCPY3D *params, CUstream handle, enum sim_copy_mode mode) {
  struct sim_stream *stream;
  struct side src, dst;
  struct sim_op op;
  union sim_op_storage storage;
  CUresult result = sim_stream_get(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  bool capturing = sim_stream_capturing(stream);
  if (capturing && mode == SIM_COPY_SYNC)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (empty(params))
    return CUDA_SUCCESS;
  result = make_op(params, &op, &storage, &src, &dst);
  if (result != CUDA_SUCCESS)
    return result;
  bool in_device = src.place == PLACE_DEVICE && dst.place == PLACE_DEVICE;
  bool wait = mode == SIM_COPY_SYNC && !in_device;
  struct copy_work *work = (struct copy_work *)(void *)storage.bytes;
  if (!wait && !capturing) {
    if (src.place == PLACE_PAGEABLE)
      wait = !stage(work);
    if (dst.place == PLACE_PAGEABLE)
      wait = true;
  }
  void *staging = work->staging;
  result = wait ? sim_submit_and_wait(stream, &op) : sim_submit(stream, &op);
  if (result != CUDA_SUCCESS && staging)
    free(staging); /* submission failed, so run_copy is not called */
  return result;
}
