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

CUresult gs_do_array(const struct gs_call *call, CUarray *array, struct gs_box box);
CUresult gs_do_mipmap(const struct gs_call *call, CUmipmappedArray *array, struct gs_box box, unsigned int levels);

/* Around the driver's call that makes an array or a mipmapped array of any kind. array: NULL if it made none. The books
 * must have room for one. */
void gs_array_begin(struct gs_maker *maker, CUcontext context);
void gs_array_end(const struct gs_maker *maker, const void *array, const struct gs_allocation *as);

/* handle: a CUarray or a CUmipmappedArray. */
CUresult gs_do_array_destroy(const struct gs_call *call, uintptr_t handle);

#endif
