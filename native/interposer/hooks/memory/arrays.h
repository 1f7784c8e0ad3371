/* Calls that create and destroy CUDA arrays. */
#ifndef GPUSHARE_HOOKS_ARRAYS_H
#define GPUSHARE_HOOKS_ARRAYS_H

#include "interposer/hooks/call.h"
#include "interposer/memory/books/life.h"
#include "interposer/process/process.h"

/* The array that a program asks for, whichever descriptor it used. */
struct gs_box {
  bool given;
  CUDA_ARRAY3D_DESCRIPTOR full;
};

struct gs_box gs_box_2d(const CUDA_ARRAY_DESCRIPTOR *descriptor);
struct gs_box gs_box_2d_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor);
struct gs_box gs_box_3d(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
struct gs_box gs_box_3d_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor);

/* An array that is being created. */
struct gs_array_charge {
  int ordinal; /* GS_NO_DEVICE: nothing is charged */
  uint64_t bytes;
  struct gs_maker maker;
  bool unbacked; /* a sparse array, or one whose memory is mapped later */
  bool hopeless; /* it does not fit; nothing is charged and the driver is called only to report other errors */
  void *const *out;
};

struct gs_around_array {
  struct gs_array_charge charge;
};
CUresult gs_before_array(struct gs_around_array *around, CUarray *array, struct gs_box box);
CUresult gs_after_array(struct gs_around_array *around, CUresult result);

struct gs_around_mipmap {
  struct gs_array_charge charge;
};
CUresult gs_before_mipmap(struct gs_around_mipmap *around, CUmipmappedArray *array, struct gs_box box,
                          unsigned int levels);
CUresult gs_after_mipmap(struct gs_around_mipmap *around, CUresult result);

/* Around the driver's call that makes an array or a mipmapped array of any kind. array: NULL if it made none. The books
 * must have room for one. */
void gs_array_begin(struct gs_maker *maker, CUcontext context);
void gs_array_end(const struct gs_maker *maker, const void *array, const struct gs_allocation *as);

/* handle: a CUarray or a CUmipmappedArray. */
CUresult gs_do_array_destroy(const struct gs_call *call, uintptr_t handle);

#endif
