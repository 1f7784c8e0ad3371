/* Copies and fills. Within the device they are compute work. Over the link they run on copy engines: no lease, no
 * bound, no device time; the marks around a long copy keep its time out of that of concurrent kernels. */
#include "interposer/hooks/work/copies.h"

#include "interposer/memory/pools/reserve.h"
#include "interposer/process/answers.h"
#include "interposer/process/passage/passage.h"
#include "interposer/residency/movable.h"
#include "interposer/time/marks/marks.h"
#include "interposer/time/marks/waits.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/repeat.h"
#include "interposer/time/streams/streams.h"

enum {
  LONG_COPY_BYTES = 256 << 10, /* ~10 us on PCIe 4; two events cost half of that */
  SHORT_COPY_BYTES = 16 << 10, /* a few us from pageable memory */
  KEY_COPY = 1 << 8,           /* no function or graph has an address this low */
  KEY_FILL = 2 << 8
};

static bool on_host(CUdeviceptr pointer) {
  struct gs_movable movable;
  unsigned int type = 0;
  if (gs_movable_find(pointer, &movable)) /* the driver does not know its address while it is hosted */
    return false;
  /* Memory unknown to the driver is ordinary memory of the program. */
  if (gs_real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) != CUDA_SUCCESS)
    return true;
  return type == CU_MEMORYTYPE_HOST;
}

static enum gs_copy direction_of(bool from_host, bool to_host) {
  if (from_host)
    return GS_COPY_IN; /* a copy between host pointers does not use the device */
  return to_host ? GS_COPY_OUT : GS_COPY_WITHIN;
}

static bool joined(void) { return __atomic_load_n(&gs_process->joined, __ATOMIC_ACQUIRE) == GS_JOINED; }

enum gs_copy gs_direction(CUdeviceptr to, CUdeviceptr from) {
  if (!joined())
    return GS_COPY_UNKNOWN;
  return on_host(from) ? GS_COPY_IN : direction_of(false, on_host(to));
}

/* A batch is compute work if one of its copies is. */
enum gs_copy gs_batch_direction(const CUdeviceptr *to, const CUdeviceptr *from, size_t count) {
  enum gs_copy direction = GS_COPY_UNKNOWN;
  for (size_t i = 0; to && from && i < count && joined() && direction != GS_COPY_WITHIN; i++)
    direction = gs_direction(to[i], from[i]);
  return direction;
}

static bool side_on_host(CUmemorytype type, CUdeviceptr unified) {
  if (type == CU_MEMORYTYPE_UNIFIED)
    return joined() && on_host(unified);
  return type == CU_MEMORYTYPE_HOST;
}

/* The source or the destination of a box of a batch. */
static bool operand_on_host(const CUmemcpy3DOperand *operand) {
  return operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER && on_host(operand->op.ptr.ptr);
}

enum gs_copy gs_boxes_direction(const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t count) {
  enum gs_copy direction = GS_COPY_UNKNOWN;
  for (size_t i = 0; boxes && i < count && joined() && direction != GS_COPY_WITHIN; i++)
    direction = direction_of(operand_on_host(&boxes[i].src), operand_on_host(&boxes[i].dst));
  return direction;
}

enum gs_copy gs_shape_2d_direction(const CUDA_MEMCPY2D *copy) {
  if (!copy)
    return GS_COPY_UNKNOWN;
  return direction_of(side_on_host(copy->srcMemoryType, copy->srcDevice),
                      side_on_host(copy->dstMemoryType, copy->dstDevice));
}

enum gs_copy gs_shape_3d_direction(const CUDA_MEMCPY3D *copy) {
  if (!copy)
    return GS_COPY_UNKNOWN;
  return direction_of(side_on_host(copy->srcMemoryType, copy->srcDevice),
                      side_on_host(copy->dstMemoryType, copy->dstDevice));
}

enum gs_copy gs_shape_3d_peer_direction(const CUDA_MEMCPY3D_PEER *copy) {
  if (!copy)
    return GS_COPY_UNKNOWN;
  return direction_of(side_on_host(copy->srcMemoryType, copy->srcDevice),
                      side_on_host(copy->dstMemoryType, copy->dstDevice));
}

enum gs_copy gs_old_2d_direction(const CUDA_MEMCPY2D_v1 *copy) {
  if (!copy)
    return GS_COPY_UNKNOWN;
  return direction_of(side_on_host(copy->srcMemoryType, copy->srcDevice),
                      side_on_host(copy->dstMemoryType, copy->dstDevice));
}

enum gs_copy gs_old_3d_direction(const CUDA_MEMCPY3D_v1 *copy) {
  if (!copy)
    return GS_COPY_UNKNOWN;
  return direction_of(side_on_host(copy->srcMemoryType, copy->srcDevice),
                      side_on_host(copy->dstMemoryType, copy->dstDevice));
}

size_t gs_shape_2d_bytes(const CUDA_MEMCPY2D *copy) { return copy ? copy->WidthInBytes * copy->Height : 0; }
size_t gs_shape_3d_bytes(const CUDA_MEMCPY3D *copy) {
  return copy ? copy->WidthInBytes * copy->Height * copy->Depth : 0;
}
size_t gs_shape_3d_peer_bytes(const CUDA_MEMCPY3D_PEER *copy) {
  return copy ? copy->WidthInBytes * copy->Height * copy->Depth : 0;
}

size_t gs_old_2d_bytes(const CUDA_MEMCPY2D_v1 *copy) { return copy ? (size_t)copy->WidthInBytes * copy->Height : 0; }
size_t gs_old_3d_bytes(const CUDA_MEMCPY3D_v1 *copy) {
  return copy ? (size_t)copy->WidthInBytes * copy->Height * copy->Depth : 0;
}

static bool captured(CUstream stream) {
  struct gs_time *time = gs_time();
  return time && __atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) > 0 && gs_stream_capturing(stream);
}

CUresult gs_before_fill(struct gs_around_fill *around, size_t bytes, CUstream stream) {
  if (captured(stream))
    gs_touch_begin(); /* the driver looks at the address now */
  return gs_enter_submit(&around->submission, KEY_FILL | gs_size_class(bytes), stream);
}

CUresult gs_after_fill(struct gs_around_fill *around, CUresult result) {
  gs_touch_end();
  return gs_submitted(&around->submission, result);
}

CUresult gs_before_copy(struct gs_around_copy *around, enum gs_copy direction, size_t bytes, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->submission.stream = NULL;
  around->marked = NULL;
  if (!gs_enter(&result))
    return result;
  bool within = direction == GS_COPY_WITHIN || direction == GS_COPY_UNKNOWN, is_captured = captured(stream);
  /* the gate stops what it lets pass; the driver looks at the addresses of what is captured now */
  if (!within || is_captured)
    gs_touch_begin();
  if (within)
    return gs_submit(&around->submission, KEY_COPY | gs_size_class(bytes), stream);
  if (is_captured)
    return CUDA_SUCCESS;
  gs_copied(direction == GS_COPY_IN, bytes);
  if (bytes < LONG_COPY_BYTES) {
    gs_stream_clouded(stream);
    return CUDA_SUCCESS;
  }
  around->marked = gs_stream_known(stream);
  if (around->marked && around->marked->queue.open.launches > 0)
    gs_mark_record(around->marked, false);
  return CUDA_SUCCESS;
}

CUresult gs_after_copy(struct gs_around_copy *around, CUresult result) {
  gs_touch_end();
  gs_submitted(&around->submission, result);
  if (around->marked)
    gs_mark_record(around->marked, true);
  return result;
}

CUresult gs_before_copy_wait(struct gs_around_copy_wait *around, enum gs_copy direction, size_t bytes,
                             CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->waits = direction != GS_COPY_WITHIN && direction != GS_COPY_UNKNOWN;
  if (!around->waits)
    return gs_before_copy(&around->copy, direction, bytes, stream);
  around->stream = NULL;
  if (!gs_enter(&result))
    return result;
  gs_answered(CUDA_SUCCESS);
  gs_copied(direction == GS_COPY_IN, bytes);
  gs_touch_begin();
  around->stream = gs_stream_known(stream);
  /* how long the program waits shows little about kernels, unless the device measures when they are done */
  if (bytes >= LONG_COPY_BYTES && around->stream && !captured(stream) && gs_stream_open(around->stream))
    gs_mark_record(around->stream, false);
  if (around->stream && bytes >= SHORT_COPY_BYTES)
    gs_stream_clouded(stream);
  gs_before_wait(around->stream);
  return CUDA_SUCCESS;
}

CUresult gs_after_copy_wait(struct gs_around_copy_wait *around, CUresult result) {
  if (!around->waits)
    return gs_after_copy(&around->copy, result);
  gs_touch_end();
  if (result == CUDA_SUCCESS && around->stream)
    gs_stream_synced(around->stream, false);
  gs_wait_ended();
  return result;
}
