/* Calls that copy and fill memory. */
#ifndef GPUSHARE_HOOKS_COPIES_H
#define GPUSHARE_HOOKS_COPIES_H

#include "interposer/process/process.h"
#include "interposer/time/gate/submit.h"

enum gs_copy { GS_COPY_IN = 0, GS_COPY_OUT = 1, GS_COPY_WITHIN = 2, GS_COPY_UNKNOWN = 3 };

/* Directions and sizes in bytes of copies, by the form in which the call describes them. */
enum gs_copy gs_direction(CUdeviceptr to, CUdeviceptr from);
enum gs_copy gs_batch_direction(const CUdeviceptr *to, const CUdeviceptr *from, size_t count);
enum gs_copy gs_boxes_direction(const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t count);
enum gs_copy gs_shape_2d_direction(const CUDA_MEMCPY2D *copy);
enum gs_copy gs_shape_3d_direction(const CUDA_MEMCPY3D *copy);
enum gs_copy gs_shape_3d_peer_direction(const CUDA_MEMCPY3D_PEER *copy);
enum gs_copy gs_old_2d_direction(const CUDA_MEMCPY2D_v1 *copy);
enum gs_copy gs_old_3d_direction(const CUDA_MEMCPY3D_v1 *copy);
size_t gs_shape_2d_bytes(const CUDA_MEMCPY2D *copy);
size_t gs_shape_3d_bytes(const CUDA_MEMCPY3D *copy);
size_t gs_shape_3d_peer_bytes(const CUDA_MEMCPY3D_PEER *copy);
size_t gs_old_2d_bytes(const CUDA_MEMCPY2D_v1 *copy);
size_t gs_old_3d_bytes(const CUDA_MEMCPY3D_v1 *copy);

struct gs_around_copy {
  struct gs_submission submission; /* only for copies within the device */
  /* for a long copy over the link: the stream in which its begin was marked; else NULL */
  struct gs_stream *marked;
};
CUresult gs_before_copy(struct gs_around_copy *around, enum gs_copy direction, size_t bytes, CUstream stream);
CUresult gs_after_copy(struct gs_around_copy *around, CUresult result);

/* A copy that returns only when it, and everything before it in its stream, is done. */
struct gs_around_copy_wait {
  bool waits; /* false: this copy does not wait, and is treated as any other */
  struct gs_stream *stream;
  struct gs_around_copy copy;
};
CUresult gs_before_copy_wait(struct gs_around_copy_wait *around, enum gs_copy direction, size_t bytes, CUstream stream);
CUresult gs_after_copy_wait(struct gs_around_copy_wait *around, CUresult result);

struct gs_around_fill {
  struct gs_submission submission;
};
CUresult gs_before_fill(struct gs_around_fill *around, size_t bytes, CUstream stream);
CUresult gs_after_fill(struct gs_around_fill *around, CUresult result);

#endif
